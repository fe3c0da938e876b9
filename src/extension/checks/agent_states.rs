//! The states that the agents report in `/status`, and the agents whose state is unknown.

use crate::agent::status_body::StatusBody;
use crate::extension::facts::Facts;
use crate::extension::report::{CheckResult, Severity};

/// The states that the agents report, and why other states are unknown.
pub struct AgentStates<'a> {
    /// The bodies of `/status`, each with its node.
    pub bodies: Vec<(&'a str, &'a StatusBody)>,
    /// Why the states of other agents are unknown.
    unknown_agents: Vec<String>,
}

impl<'a> AgentStates<'a> {
    pub fn new(facts: &'a Facts) -> AgentStates<'a> {
        let agents = match &facts.agents {
            Ok(agents) => agents,
            Err(error) => {
                let unknown_agents = vec![format!("cannot read the agents' pods: {error}")];
                return AgentStates { bodies: Vec::new(), unknown_agents };
            }
        };
        let mut bodies = Vec::new();
        let mut unknown_agents = Vec::new();
        for agent in agents {
            if let Some(body) = agent.body() {
                bodies.push((agent.node(), body));
            }
            if !agent.missing_keys.is_empty() {
                let keys = agent.missing_keys.join(", ");
                unknown_agents.push(format!("{}: its agent does not report {keys}", agent.node()));
            }
        }
        unknown_agents.extend(describe_unread_agents(agents.len(), bodies.len()));
        AgentStates { bodies, unknown_agents }
    }

    /// Returns the texts that `texts_of` finds in each body, with the name of the body's node.
    pub fn collect_texts<T: IntoIterator<Item = String>>(
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

    /// Fails, and lists the problems that `problems_of` finds in the bodies, and the agents whose
    /// state is unknown.
    pub fn judge<T: IntoIterator<Item = String>>(
        &self,
        severity: Severity,
        summary: &str,
        problems_of: impl Fn(&StatusBody) -> T,
    ) -> CheckResult {
        severity.fail_if_any_or_unknown(
            summary,
            &self.collect_texts(problems_of),
            &self.unknown_agents,
        )
    }

    /// Does the same as [`AgentStates::judge`], and also fails with the texts of `unknown_of`,
    /// which say why an agent does not know the result.
    pub fn judge_with_unknown<T: IntoIterator<Item = String>>(
        &self,
        severity: Severity,
        summary: &str,
        problems_of: impl Fn(&StatusBody) -> T,
        unknown_of: impl Fn(&StatusBody) -> Option<String>,
    ) -> CheckResult {
        let unknown = [self.collect_texts(unknown_of), self.unknown_agents.clone()].concat();
        severity.fail_if_any_or_unknown(summary, &self.collect_texts(problems_of), &unknown)
    }
}

/// Returns how many agents have a `/status` that was not read. `None` if all were read.
fn describe_unread_agents(agents: usize, read: usize) -> Option<String> {
    if agents == 0 {
        return Some("no agent runs".to_owned());
    }
    let unread = agents - read;
    if unread == 0 {
        return None;
    }
    Some(format!("{unread} of {agents} agents, whose /status was not read"))
}
