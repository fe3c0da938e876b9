//! Checks of the agents, one per node. Pure.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{NODES, unreadable, unreadable_text};
use crate::agent::contention::OVERWRITTEN;
use crate::agent::readiness::StatusBody;
use crate::extension::agents::{Agent, DAEMONSET, unasked_counts};
use crate::extension::facts::Facts;
use crate::extension::metrics::{failures, samples};
use crate::extension::objects::{AgentDaemonSet, EventObject};
use crate::extension::report::{Check, bullets};
use crate::kube::scope::exclusion;

/// Heading of the nodes with an expired token. Pods with the injector's mark start redirected by
/// their annotations.
const EXPIRED: &str = "nodes on which meshed pods without the proxy injector's mark fail to start";
/// A token that expires sooner should have been renewed.
const TOKEN_MARGIN: Duration = Duration::from_secs(600);

pub fn checks(facts: &Facts, daemonset: &AgentDaemonSet) -> Vec<Check> {
    let placed = placed(facts, daemonset);
    let agents = match &facts.agents {
        Ok(agents) => agents,
        Err(why) => {
            return vec![placed, ready_check().error(unreadable_text("the agents' pods", why))];
        }
    };
    let mut checks = vec![placed, ready(agents, &facts.events)];
    let spec = &daemonset.spec.template.spec;
    if spec.admin_port().is_none() {
        let state = Check::new(NODES, "upstream", "the agents report their state");
        checks.push(state.warning(format!(
            "Linkerd's own agent (image {}) runs here, which reports no state: network config, token \
             and contention are not checked; install this chart with its own image in its place",
            spec.image()
        )));
        return checks;
    }
    checks.push(reports(agents));
    let bodies: Vec<(&str, &StatusBody)> =
        agents.iter().filter_map(|agent| Some((agent.node(), agent.body()?))).collect();
    checks.push(versions(&bodies));
    if spec.variable("LINKERD_CNI_CHAINED") != Some("false") {
        checks.push(conflists(&bodies));
    }
    checks.extend([tokens(&bodies, facts.now), contention(&bodies), calls(agents)]);
    checks
}

/// Checks that each node in the scope of the DaemonSet has an agent.
fn placed(facts: &Facts, daemonset: &AgentDaemonSet) -> Check {
    let check = Check::new(NODES, "agent-on-each-node", "an agent runs on each node");
    let (nodes, agents) = match (&facts.nodes, &facts.agents) {
        (Ok(nodes), Ok(agents)) => (nodes, agents),
        (Err(why), _) => return unreadable(check, "the nodes", why),
        (_, Err(why)) => return unreadable(check, "the agents' pods", why),
    };
    let placement = &daemonset.spec.template.spec.placement;
    let (mut missing, mut tainted) = (Vec::new(), Vec::new());
    for node in nodes {
        let name = &node.metadata.name;
        match exclusion(placement, &node.scheduling()) {
            _ if agents.iter().any(|agent| agent.node() == name) => {}
            None => missing.push(name.clone()),
            Some(why) if why.starts_with("taint") => tainted.push(format!("{name}: {why}")),
            // A node selector is a decision of the chart's user, such as for Windows nodes.
            Some(_) => {}
        }
    }
    if missing.is_empty() {
        return check.warning_if_any(
            "nodes out of the DaemonSet's scope, where meshed pods start without redirect rules",
            &tainted,
        );
    }
    let event = facts.events.iter().rev().find(|event| {
        event.involved_object.kind == "DaemonSet" && event.involved_object.name == DAEMONSET
    });
    let cause = event.map(|event| format!(" ({}: {})", event.reason, event.message));
    let summary = format!(
        "nodes without an agent, where meshed pods start without redirect rules{}",
        cause.unwrap_or_default()
    );
    check.pending(bullets(&summary, &missing))
}

fn ready_check() -> Check {
    Check::new(NODES, "agent-ready", "each agent is ready")
}

fn ready(agents: &[Agent], events: &[EventObject]) -> Check {
    let reasons: Vec<String> = agents
        .iter()
        .filter_map(|agent| {
            let why = not_ready(agent, events)?;
            Some(format!("{}: pod {}: {why}", agent.node(), agent.pod.metadata.name))
        })
        .collect();
    match reasons.is_empty() {
        true => ready_check(),
        false => ready_check().pending(bullets("agents that are not ready", &reasons)),
    }
}

/// Returns why the agent is not ready: from the agent, else from its containers, its conditions or
/// Events on its pod. `None` if it is ready.
pub fn not_ready(agent: &Agent, events: &[EventObject]) -> Option<String> {
    let pod = &agent.pod;
    if let Some(body) = agent.body() {
        return body.not_ready.clone();
    }
    if let Some(waiting) = pod.status.container_statuses.iter().find_map(|container| {
        let waiting = container.state.waiting.as_ref()?;
        let text = format!("container {}: {}", container.name, waiting.reason);
        Some((text, &waiting.message))
    }) {
        // Other Warning Events, such as MissingClusterDNS, do not keep a container from starting.
        let event = events.iter().rev().find(|event| {
            event.involved_object.uid == pod.metadata.uid && event.reason.starts_with("Failed")
        });
        let message = match (waiting.1.is_empty(), event) {
            (false, _) => format!(": {}", waiting.1),
            (true, Some(event)) => format!(": {}: {}", event.reason, event.message),
            (true, None) => String::new(),
        };
        return Some(waiting.0 + &message);
    }
    let unscheduled = pod
        .status
        .conditions
        .iter()
        .find(|condition| condition.kind == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        return Some(format!("not scheduled: {}", condition.message));
    }
    match &agent.status {
        _ if pod.is_ready() => None,
        Some(Err(why)) => Some(format!("its /status cannot be read: {why}")),
        _ => Some("its readiness probe fails".to_owned()),
    }
}

/// Checks that the agents' state can be read, on which the next checks depend.
fn reports(agents: &[Agent]) -> Check {
    let check = Check::new(NODES, "agent-state", "the state of each agent can be read");
    let silent = agents.iter().filter(|agent| agent.pod.is_ready()).filter_map(|agent| {
        let why = agent.status.as_ref()?.as_ref().err()?;
        Some(format!("{}: pod {}: {why}", agent.node(), agent.pod.metadata.name))
    });
    let summary = "agents without readable /status, whose network config, token and contention are \
                   not checked";
    let items: Vec<String> = unasked_counts(agents).into_iter().chain(silent).collect();
    check.warning_if_any(summary, &items)
}

fn versions(bodies: &[(&str, &StatusBody)]) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    let found: BTreeSet<&str> = bodies.iter().map(|(_, body)| body.version.as_str()).collect();
    let check =
        Check::new(NODES, "version", format!("each agent has this command's version {own}"));
    let others: Vec<String> = bodies
        .iter()
        .filter(|(_, body)| body.version != own)
        .map(|(node, body)| format!("{node}: {}", body.version))
        .collect();
    let summary = match found.len() {
        0 | 1 => "agents with another version than this command",
        _ => "agents with another version than this command; the agents' versions differ",
    };
    check.warning_if_any(summary, &others)
}

fn conflists(bodies: &[(&str, &StatusBody)]) -> Check {
    let check =
        Check::new(NODES, "conflist", "the active network config of each node calls the plugin");
    let missing = bodies.iter().filter(|(_, body)| body.conflist.is_none());
    let missing: Vec<String> = missing
        .map(|(node, body)| match body.problems.get("network config") {
            Some(why) => format!("{node}: {why}"),
            None => (*node).to_owned(),
        })
        .collect();
    check.error_if_any("nodes whose active network config does not call the plugin", &missing)
}

fn tokens(bodies: &[(&str, &StatusBody)], now: SystemTime) -> Check {
    let check = Check::new(NODES, "token", "the plugin's token is valid on each node");
    let (mut expired, mut doubtful) = (Vec::new(), Vec::new());
    for (node, body) in bodies {
        match token_state(body, now) {
            Token::Expired => expired.push(format!("{node}: expired")),
            Token::Ending => doubtful.push(format!("{node}: expires within 10 minutes")),
            Token::Valid(_) | Token::Unlimited => {
                let request = body.problems.get("TokenRequest");
                doubtful.extend(request.map(|why| format!("{node}: {why}")));
            }
        }
    }
    match expired.is_empty() {
        false => check.error_if_any(EXPIRED, &expired),
        true => check.warning_if_any("nodes with a problem of the token", &doubtful),
    }
}

/// The state of the token on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// Valid for this time.
    Valid(Duration),
    /// Valid, and expires within [`TOKEN_MARGIN`].
    Ending,
    Expired,
    /// The token has no expiry, or none is known.
    Unlimited,
}

/// Returns the state of the token on a node.
pub fn token_state(body: &StatusBody, now: SystemTime) -> Token {
    let Some(end) = body.token_expires else {
        return Token::Unlimited;
    };
    // A program in the agent's place may report any number.
    let Some(end) = UNIX_EPOCH.checked_add(Duration::from_secs(end)) else {
        return Token::Unlimited;
    };
    match end.duration_since(now) {
        Err(_) => Token::Expired,
        Ok(left) if left < TOKEN_MARGIN => Token::Ending,
        Ok(left) => Token::Valid(left),
    }
}

fn contention(bodies: &[(&str, &StatusBody)]) -> Check {
    let check = Check::new(NODES, "contention", "no other program overwrites the agents' files");
    let fights = bodies.iter().filter(|(_, body)| body.contention).map(|(node, body)| {
        let problems = body.problems.iter().filter(|(_, why)| why.contains(OVERWRITTEN));
        let problems: Vec<String> =
            problems.map(|(subject, why)| format!("{subject}: {why}")).collect();
        match problems.is_empty() {
            true => format!("{node}: see the agent's log"),
            false => format!("{node}: {}", problems.join("; ")),
        }
    });
    check.warning_if_any("nodes with contention", &fights.collect::<Vec<_>>())
}

/// Checks the plugin calls since each agent started. The description names the backends.
fn calls(agents: &[Agent]) -> Check {
    let mut backends = BTreeSet::new();
    let mut failed = Vec::new();
    for agent in agents {
        let of = |metric: &str, label| samples(&agent.metrics, metric, label);
        backends.extend(of("linkerd_cni_plugin_redirects_total", "backend").iter().map(|s| s.0));
        let degraded = of("linkerd_cni_plugin_degraded_total", "code");
        for (samples, what) in
            [(failures(&agent.metrics), "failed"), (degraded, "redirected by annotations alone")]
        {
            for (code, count) in samples {
                failed.push(format!("{}: {count} {what} with code {code}", agent.node()));
            }
        }
    }
    let names: Vec<&str> = backends.into_iter().collect();
    let by = match names.is_empty() {
        true => "no pod redirected yet".to_owned(),
        false => format!("backend {}", names.join(" and ")),
    };
    let check = Check::new(NODES, "plugin-calls", format!("plugin calls succeed ({by})"));
    check.warning_if_any("plugin calls since the agent started", &failed)
}
