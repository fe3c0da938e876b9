//! Checks of the agents, one per node. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize as _;
use serde_json::Value;

use super::{NODES, readable};
use crate::agent::status_body::StatusBody;
use crate::extension::agents::{Agent, DAEMONSET, is_ready, token_left};
use crate::extension::facts::Facts;
use crate::extension::objects::{admin_port, agent_container, pod_spec, text, variable};
use crate::extension::report::{Check, Severity, Verdict};
use crate::failure;
use crate::kube::scheduling::Placement;
use crate::kube::scope::{Exclusion, exclusion};

/// Heading of the nodes with an expired token. Pods with the injector's mark start redirected by
/// their annotations.
const EXPIRED: &str = "nodes on which meshed pods without the proxy injector's mark fail to start";

pub fn checks(facts: &Facts, daemonset: &Value) -> Vec<Check> {
    let check = |hint, description: &str, verdict| Check::new(NODES, hint, description, verdict);
    let mut checks = vec![
        check("agent-on-each-node", "an agent runs on each node", placed(facts, daemonset)),
        check("agent-ready", "each agent is ready", ready(facts)),
    ];
    let Ok(agents) = &facts.agents else {
        return checks;
    };
    let spec = pod_spec(daemonset);
    if admin_port(spec).is_none() {
        let unknown = Severity::Warning.because(format!(
            "Linkerd's own agent (image {}) runs here, which reports no state: network config, token \
             and contention are not checked; install this chart in its place",
            text(&agent_container(spec)["image"])
        ));
        checks.push(check("upstream", "the agents report their state", unknown));
        return checks;
    }
    let bodies: Bodies<'_> =
        agents.iter().filter_map(|agent| Some((agent.node(), agent.body()?))).collect();
    let own = env!("CARGO_PKG_VERSION");
    let same_version = format!("each agent has this command's version {own}");
    checks.extend([
        check("agent-state", "the state of each agent can be read", reports(agents)),
        check("version", &same_version, versions(&bodies, own)),
    ]);
    if variable(daemonset, "LINKERD_CNI_CHAINED") != Some("false") {
        let called = "the active network config of each node calls the plugin";
        checks.push(check("conflist", called, conflists(&bodies)));
    }
    let succeed = format!("plugin calls succeed ({})", backends(&bodies));
    checks.extend([
        check("token", "the plugin's token is valid on each node", tokens(&bodies)),
        check("contention", "no other program overwrites the agents' files", contention(&bodies)),
        check("pod-copy", "the agents know the pods of their nodes", copies(&bodies)),
        check("plugin-calls", &succeed, calls(&bodies)),
    ]);
    checks
}

fn placed(facts: &Facts, daemonset: &Value) -> Verdict {
    let placement = Placement::deserialize(pod_spec(daemonset)).unwrap_or_default();
    let nodes = readable(&facts.nodes, "the nodes")?;
    let agents = readable(&facts.agents, "the agents' pods")?;
    let (mut missing, mut tainted) = (Vec::new(), Vec::new());
    for node in nodes {
        let name = &node.metadata.name;
        match exclusion(&placement, node) {
            _ if agents.iter().any(|agent| agent.node() == name) => {}
            None => missing.push(name.clone()),
            Some(Exclusion::Tainted(why)) => tainted.push(format!("{name}: {why}")),
            // A node selector is a decision of the chart's user, such as for Windows nodes.
            Some(Exclusion::NotSelected(_)) => {}
        }
    }
    let is_about_it = |event: &&Value| {
        let object = &event["involvedObject"];
        object["kind"] == "DaemonSet" && object["name"] == DAEMONSET
    };
    let event = facts.events.iter().rev().find(is_about_it);
    let cause =
        event.map(|event| format!(" ({}: {})", text(&event["reason"]), text(&event["message"])));
    let summary = format!(
        "nodes without an agent, where meshed pods start without redirect rules{}",
        cause.unwrap_or_default()
    );
    Severity::Pending.if_any(&summary, &missing)?;
    Severity::Warning.if_any(
        "nodes out of the DaemonSet's scope, where meshed pods start without redirect rules",
        &tainted,
    )
}

fn ready(facts: &Facts) -> Verdict {
    let agents = match &facts.agents {
        Ok(agents) => agents,
        Err(why) => return Severity::Error.unreadable("the agents' pods", why),
    };
    let reasons: Vec<String> = agents
        .iter()
        .filter_map(|agent| Some(named(agent, agent.not_ready(&facts.events)?)))
        .collect();
    Severity::Pending.if_any("agents that are not ready", &reasons)
}

/// Warns of agents whose state cannot be read, on which the next checks depend.
fn reports(agents: &[Agent]) -> Verdict {
    let silent = agents.iter().filter(|agent| is_ready(&agent.pod));
    let silent = silent
        .filter_map(|agent| Some(named(agent, agent.status.as_ref()?.as_ref().err()?.to_string())));
    Severity::Warning.if_any(
        "agents without readable /status, whose network config, token and contention are not checked",
        &silent.collect::<Vec<_>>(),
    )
}

fn named(agent: &Agent, why: String) -> String {
    format!("{}: pod {}: {why}", agent.node(), agent.name())
}

/// The reports of the agents, each with its node.
type Bodies<'a> = Vec<(&'a str, &'a StatusBody)>;

/// Returns what `problem` finds in the reports, each with its node.
fn each(bodies: &Bodies<'_>, problem: impl Fn(&StatusBody) -> Option<String>) -> Vec<String> {
    let found = |(node, body): &(&str, &StatusBody)| Some(format!("{node}: {}", problem(body)?));
    bodies.iter().filter_map(found).collect()
}

fn versions(bodies: &Bodies<'_>, own: &str) -> Verdict {
    let others = each(bodies, |body| (body.version != own).then(|| body.version.clone()));
    Severity::Warning.if_any("agents with another version than this command", &others)
}

fn conflists(bodies: &Bodies<'_>) -> Verdict {
    let missing = bodies.iter().filter(|(_, body)| body.conflist.is_none());
    let missing: Vec<String> = missing
        .map(|(node, body)| match body.problems.get("network config") {
            Some(why) => format!("{node}: {why}"),
            None => (*node).to_owned(),
        })
        .collect();
    Severity::Error.if_any("nodes whose active network config does not call the plugin", &missing)
}

fn tokens(bodies: &Bodies<'_>) -> Verdict {
    let is_expired = |body: &StatusBody| token_left(body) == Some(Duration::ZERO);
    let expired = each(bodies, |body| is_expired(body).then(|| "expired".to_owned()));
    Severity::Error.if_any(EXPIRED, &expired)?;
    let unrenewed = each(bodies, |body| body.problems.get("TokenRequest").cloned());
    Severity::Warning.if_any("nodes with a problem of the token", &unrenewed)
}

fn contention(bodies: &Bodies<'_>) -> Verdict {
    let contended =
        each(bodies, |body| (!body.contended.is_empty()).then(|| body.contended.join("; ")));
    Severity::Warning.if_any("nodes with contention", &contended)
}

/// Warns of nodes on which the plugin has to ask the API server. A node without a cause is starting.
fn copies(bodies: &Bodies<'_>) -> Verdict {
    let unkept = each(bodies, |body| body.pod_copy.clone().filter(|copy| !copy.kept)?.problem);
    let summary = "nodes on which the plugin sends API requests for pods that start";
    Severity::Warning.if_any(summary, &unkept)
}

fn backends(bodies: &Bodies<'_>) -> String {
    let redirects = bodies.iter().flat_map(|(_, body)| body.calls.redirects.keys());
    let names: BTreeSet<&str> = redirects.map(String::as_str).collect();
    match names.is_empty() {
        true => "no pod redirected yet".to_owned(),
        false => format!("backend {}", Vec::from_iter(names).join(" and ")),
    }
}

/// Fails for plugin calls that failed or were redirected by annotations alone, since the agents
/// started.
fn calls(bodies: &Bodies<'_>) -> Verdict {
    let mut failed = Vec::new();
    for (node, body) in bodies {
        let StatusBody { calls, .. } = body;
        for (counts, what) in
            [(&calls.failures, "failed"), (&calls.degraded, "redirected by annotations alone")]
        {
            for (code, count) in counts {
                let causes = failure::causes(code).map_or(String::new(), |why| format!(": {why}"));
                failed.push(format!("{node}: {count} {what} with code {code}{causes}"));
            }
        }
    }
    Severity::Warning.if_any("plugin calls since the agent started", &failed)
}
