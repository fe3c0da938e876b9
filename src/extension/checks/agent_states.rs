//! What the agents report in `/status`, and which of them report nothing. Pure.

use crate::agent::status_body::StatusBody;
use crate::extension::facts::Facts;
use crate::extension::report::{CheckResult, Severity};

/// The states that the agents report, and why other states are unknown.
pub struct AgentStates<'a> {
    /// The bodies of `/status`, each with its node.
    pub bodies: Vec<(&'a str, &'a StatusBody)>,
    /// Why the states of other agents are unknown.
    unseen: Vec<String>,
}

impl<'a> AgentStates<'a> {
    pub fn new(facts: &'a Facts) -> AgentStates<'a> {
        let agents = match &facts.agents {
            Ok(agents) => agents,
            Err(why) => {
                let unseen = vec![format!("cannot read the agents' pods: {why}")];
                return AgentStates { bodies: Vec::new(), unseen };
            }
        };
        let mut bodies = Vec::new();
        let mut unseen = Vec::new();
        for agent in agents {
            bodies.extend(agent.body().map(|body| (agent.node(), body)));
            if !agent.missing_keys.is_empty() {
                let keys = agent.missing_keys.join(", ");
                unseen.push(format!("{}: its agent does not report {keys}", agent.node()));
            }
        }
        let unread = agents.len() - bodies.len();
        if agents.is_empty() {
            unseen.push("no agent runs".to_owned());
        } else if unread > 0 {
            unseen.push(format!("{unread} of {} agents, whose /status was not read", agents.len()));
        }
        AgentStates { bodies, unseen }
    }

    /// Returns the texts that `texts_of` finds in each body, with the name of the body's node.
    pub fn each<T: IntoIterator<Item = String>>(
        &self,
        texts_of: impl Fn(&StatusBody) -> T,
    ) -> Vec<String> {
        let mut texts = Vec::new();
        for (node, body) in &self.bodies {
            for text in texts_of(body) {
                texts.push(format!("{node}: {text}"));
            }
        }
        texts
    }

    /// Fails with the problems that `problems_of` finds in the bodies, and with the agents whose
    /// state is unknown.
    pub fn judge<T: IntoIterator<Item = String>>(
        &self,
        severity: Severity,
        summary: &str,
        problems_of: impl Fn(&StatusBody) -> T,
    ) -> CheckResult {
        severity.if_any_or_unknown(summary, &self.each(problems_of), &self.unseen)
    }

    /// Like [`AgentStates::judge`], for a check of which a body can say that the result is unknown.
    pub fn judge_known<T: IntoIterator<Item = String>>(
        &self,
        severity: Severity,
        summary: &str,
        problems_of: impl Fn(&StatusBody) -> T,
        unknown_of: impl Fn(&StatusBody) -> Option<String>,
    ) -> CheckResult {
        let unknown = [self.each(unknown_of), self.unseen.clone()].concat();
        severity.if_any_or_unknown(summary, &self.each(problems_of), &unknown)
    }
}
