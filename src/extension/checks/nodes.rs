//! Checks of the agents, one per node. Pure.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize as _;
use serde_json::Value;

use super::NODES;
use crate::VERSION;
use crate::agent::status_body::StatusBody;
use crate::agent::subject::Subject;
use crate::extension::agents::{Agent, DAEMONSET, is_ready};
use crate::extension::facts::{Facts, readable};
use crate::extension::objects::{
    admin_port, agent_container, event_text, pod_spec, text, variable,
};
use crate::extension::report::{Check, CheckResult, Severity};
use crate::failure;
use crate::kube::scheduling::{Exclusion, Placement, exclusion};

/// Checks the agents, and what the agents report about their nodes.
pub fn checks(facts: &Facts, daemonset: &Value) -> Vec<Check> {
    let placed = placed(facts, daemonset);
    let mut checks = vec![
        Check::new(NODES, "agent-on-each-node", "an agent runs on each node", placed),
        Check::new(NODES, "agent-ready", "each agent is ready", ready(facts)),
    ];
    let Ok(agents) = &facts.agents else {
        return checks;
    };
    if admin_port(pod_spec(daemonset)).is_none() {
        checks.push(unknown_state(daemonset));
        return checks;
    }
    let bodies = status_bodies(facts);
    let same_version = format!("each agent has this command's version {VERSION}");
    checks.extend([
        Check::new(
            NODES,
            "agent-state",
            "the state of each agent can be read",
            readable_states(agents),
        ),
        Check::new(NODES, "agent-note", "no agent adds a note to its readiness", notes(&bodies)),
        Check::new(NODES, "version", same_version, versions(&bodies)),
    ]);
    if variable(daemonset, "LINKERD_CNI_CHAINED") != Some("false") {
        let called = "the active network config of each node calls the plugin";
        checks.push(Check::new(NODES, "conflist", called, conflists(&bodies)));
    }
    let not_overwritten = "no other program overwrites the agents' files";
    let known_pods = "the agents know the pods of their nodes";
    let succeed = format!("plugin calls succeed ({})", backends(&bodies));
    checks.extend([
        Check::new(NODES, "token", "the plugin's token is valid on each node", tokens(&bodies)),
        Check::new(NODES, "contention", not_overwritten, contention(&bodies)),
        Check::new(NODES, "pod-copy", known_pods, pod_copies(&bodies)),
        Check::new(NODES, "plugin-calls", succeed, plugin_calls(&bodies)),
    ]);
    checks
}

/// Fails with the nodes that lack an agent. Warns of nodes whose taints keep the agent away.
fn placed(facts: &Facts, daemonset: &Value) -> CheckResult {
    let placement = Placement::deserialize(pod_spec(daemonset)).unwrap_or_default();
    let nodes = readable(&facts.nodes, "the nodes")?;
    let agents = readable(&facts.agents, "the agents' pods")?;
    let mut missing = Vec::new();
    let mut tainted = Vec::new();
    for node in nodes {
        let name = &node.metadata.name;
        if agents.iter().any(|agent| agent.node() == name) {
            continue;
        }
        match exclusion(&placement, node) {
            None => missing.push(name.clone()),
            Some(Exclusion::Tainted(why)) => tainted.push(format!("{name}: {why}")),
            // A node selector is a decision of the chart's user, such as for Windows nodes.
            Some(Exclusion::NotSelected(_)) => {}
        }
    }
    let cause = match daemonset_event(&facts.events) {
        Some(event) => format!(" ({})", event_text(event)),
        None => String::new(),
    };
    let summary =
        format!("nodes without an agent, where meshed pods start without redirect rules{cause}");
    Severity::Pending.if_any(&summary, &missing)?;
    Severity::Warning.if_any(
        "nodes out of the DaemonSet's scope, where meshed pods start without redirect rules",
        &tainted,
    )
}

/// Returns the newest Event on the DaemonSet.
fn daemonset_event(events: &[Value]) -> Option<&Value> {
    events.iter().rev().find(|event| {
        let object = &event["involvedObject"];
        object["kind"] == "DaemonSet" && object["name"] == DAEMONSET
    })
}

/// Fails with the agents that are not ready, each with the reason.
fn ready(facts: &Facts) -> CheckResult {
    let agents = match &facts.agents {
        Ok(agents) => agents,
        Err(why) => return Severity::Error.unreadable("the agents' pods", why),
    };
    let mut reasons = Vec::new();
    for agent in agents {
        if let Some(why) = agent.not_ready(&facts.events) {
            reasons.push(on_node_and_pod(agent, &why));
        }
    }
    Severity::Pending.if_any("agents that are not ready", &reasons)
}

/// Warns that Linkerd's own agent runs, which has no `/status`.
fn unknown_state(daemonset: &Value) -> Check {
    let image = text(&agent_container(pod_spec(daemonset))["image"]);
    let unknown = Severity::Warning.because(format!(
        "Linkerd's own agent (image {image}) runs here, which reports no state: network config, \
         token and contention are not checked; install this chart in its place"
    ));
    Check::new(NODES, "upstream", "the agents report their state", unknown)
}

/// Warns of agents whose state cannot be read, on which the next checks depend.
fn readable_states(agents: &[Agent]) -> CheckResult {
    let mut silent = Vec::new();
    for agent in agents {
        if is_ready(&agent.pod)
            && let Some(why) = agent.status_error()
        {
            silent.push(on_node_and_pod(agent, &why.to_string()));
        }
    }
    Severity::Warning.if_any(
        "agents without readable /status, whose network config, token and contention are not \
         checked",
        &silent,
    )
}

fn on_node_and_pod(agent: &Agent, why: &str) -> String {
    format!("{}: pod {}: {why}", agent.node(), agent.name())
}

/// Bodies of `/status`, each with its node.
type StatusBodies<'a> = Vec<(&'a str, &'a StatusBody)>;

pub fn status_bodies(facts: &Facts) -> StatusBodies<'_> {
    let agents = facts.agents.iter().flatten();
    agents.filter_map(|agent| Some((agent.node(), agent.body()?))).collect()
}

/// Fails with the problems in the bodies, each with its node.
pub fn judge_bodies<P: IntoIterator<Item = String>>(
    bodies: &StatusBodies<'_>,
    severity: Severity,
    summary: &str,
    problems_of: impl Fn(&StatusBody) -> P,
) -> CheckResult {
    let mut problems = Vec::new();
    for (node, body) in bodies {
        for problem in problems_of(body) {
            problems.push(format!("{node}: {problem}"));
        }
    }
    severity.if_any(summary, &problems)
}

/// Warns of agents that are ready but for a note, such as a skipped self-test.
fn notes(bodies: &StatusBodies<'_>) -> CheckResult {
    judge_bodies(bodies, Severity::Warning, "agents whose readiness has a note", |body| {
        // The agent also adds a failed TokenRequest, which the check of the token names.
        let is_of_token = body.note.as_deref() == body.problem(&Subject::TokenRequest);
        if is_of_token { None } else { body.note.clone() }
    })
}

fn versions(bodies: &StatusBodies<'_>) -> CheckResult {
    let summary = "agents with another version than this command";
    judge_bodies(bodies, Severity::Warning, summary, |body| {
        if body.version == VERSION { None } else { Some(body.version.clone()) }
    })
}

/// Fails with the nodes whose active network config does not call the plugin.
fn conflists(bodies: &StatusBodies<'_>) -> CheckResult {
    let summary = "nodes whose active network config does not call the plugin";
    judge_bodies(bodies, Severity::Error, summary, |body| {
        if body.conflist.is_some() {
            return None;
        }
        let why = body.problem(&Subject::NetworkConfig);
        Some(why.unwrap_or("the agent reports none").to_owned())
    })
}

fn tokens(bodies: &StatusBodies<'_>) -> CheckResult {
    // Pods with the mark start redirected by their annotations.
    let summary = "nodes on which meshed pods without the proxy injector's mark fail to start";
    judge_bodies(bodies, Severity::Error, summary, |body| {
        if token_has_expired(body) { Some("expired".to_owned()) } else { None }
    })?;
    judge_bodies(bodies, Severity::Warning, "nodes with a problem of the token", token_problems)
}

fn token_has_expired(body: &StatusBody) -> bool {
    // A program in the agent's place may report any number.
    let seconds = body.token_expires.map(Duration::from_secs);
    let expiry = seconds.and_then(|seconds| UNIX_EPOCH.checked_add(seconds));
    expiry.is_some_and(|expiry| expiry <= SystemTime::now())
}

fn token_problems(body: &StatusBody) -> Vec<String> {
    let subjects = [Subject::KubeconfigToken, Subject::TokenRequest];
    subjects.iter().filter_map(|subject| body.problem(subject)).map(str::to_owned).collect()
}

fn contention(bodies: &StatusBodies<'_>) -> CheckResult {
    judge_bodies(bodies, Severity::Warning, "nodes with contention", |body| {
        if body.contended.is_empty() { None } else { Some(body.contended.join("; ")) }
    })
}

fn pod_copies(bodies: &StatusBodies<'_>) -> CheckResult {
    let summary = "nodes on which the plugin sends API requests for pods that start";
    judge_bodies(bodies, Severity::Warning, summary, |body| {
        let pod_copy = body.pod_copy.as_ref()?;
        // An agent that gives no cause is starting.
        if pod_copy.current { None } else { pod_copy.problem.clone() }
    })
}

fn backends(bodies: &StatusBodies<'_>) -> String {
    let redirects = bodies.iter().flat_map(|(_, body)| body.calls.redirects.keys());
    let names: BTreeSet<&str> = redirects.map(String::as_str).collect();
    if names.is_empty() {
        return "no pod redirected yet".to_owned();
    }
    format!("backend {}", Vec::from_iter(names).join(" and "))
}

/// Warns of plugin calls that failed, or redirected by annotations alone.
fn plugin_calls(bodies: &StatusBodies<'_>) -> CheckResult {
    let summary = "plugin calls since the agent started";
    judge_bodies(bodies, Severity::Warning, summary, |body| {
        let mut problems = Vec::new();
        for (code, count) in &body.calls.failures {
            problems.push(counted_calls(*count, "failed", code));
        }
        for (code, count) in &body.calls.degraded {
            problems.push(counted_calls(*count, "redirected by annotations alone", code));
        }
        problems
    })
}

fn counted_calls(count: u64, result: &str, code: &str) -> String {
    match failure::causes(code) {
        Some(causes) => format!("{count} {result} with code {code}: {causes}"),
        None => format!("{count} {result} with code {code}"),
    }
}
