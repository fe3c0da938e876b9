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
use crate::extension::report::{Check, Severity, Verdict};
use crate::failure;
use crate::kube::scheduling::{Exclusion, Placement, exclusion};

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
    let bodies = bodies(facts);
    let same_version = format!("each agent has this command's version {VERSION}");
    let others =
        each(&bodies, Severity::Warning, "agents with another version than this command", |body| {
            (body.version != VERSION).then(|| body.version.clone())
        });
    checks.extend([
        check("agent-state", "the state of each agent can be read", reports(agents)),
        check("agent-note", "no agent adds a note to its readiness", notes(&bodies)),
        check("version", &same_version, others),
    ]);
    if variable(daemonset, "LINKERD_CNI_CHAINED") != Some("false") {
        let summary = "nodes whose active network config does not call the plugin";
        let uncalled = each(&bodies, Severity::Error, summary, |body| {
            let why = body.problem(&Subject::NetworkConfig).unwrap_or("the agent reports none");
            body.conflist.is_none().then(|| why.to_owned())
        });
        let called = "the active network config of each node calls the plugin";
        checks.push(check("conflist", called, uncalled));
    }
    let contended = each(&bodies, Severity::Warning, "nodes with contention", |body| {
        (!body.contended.is_empty()).then(|| body.contended.join("; "))
    });
    // An agent that gives no cause is starting.
    let summary = "nodes on which the plugin sends API requests for pods that start";
    let unkept = each(&bodies, Severity::Warning, summary, |body| {
        body.pod_copy.clone().filter(|copy| !copy.kept)?.problem
    });
    let succeed = format!("plugin calls succeed ({})", backends(&bodies));
    let failed = each(&bodies, Severity::Warning, "plugin calls since the agent started", calls);
    checks.extend([
        check("token", "the plugin's token is valid on each node", tokens(&bodies)),
        check("contention", "no other program overwrites the agents' files", contended),
        check("pod-copy", "the agents know the pods of their nodes", unkept),
        check("plugin-calls", &succeed, failed),
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
    let cause = event.map(|event| format!(" ({})", event_text(event))).unwrap_or_default();
    let summary =
        format!("nodes without an agent, where meshed pods start without redirect rules{cause}");
    Severity::Pending.if_any(&summary, &missing)?;
    Severity::Warning.if_any(
        "nodes out of the DaemonSet's scope, where meshed pods start without redirect rules",
        &tainted,
    )
}

fn ready(facts: &Facts) -> Verdict {
    let agents = facts.agents.as_ref();
    let agents = agents.or_else(|why| Severity::Error.unreadable("the agents' pods", why))?;
    let why = |agent: &Agent| Some(named(agent, agent.not_ready(&facts.events)?));
    let reasons: Vec<String> = agents.iter().filter_map(why).collect();
    Severity::Pending.if_any("agents that are not ready", &reasons)
}

/// Warns of agents whose state cannot be read, on which the next checks depend.
fn reports(agents: &[Agent]) -> Verdict {
    let why =
        |agent: &Agent| Some(named(agent, agent.status.as_ref()?.as_ref().err()?.to_string()));
    let silent = agents.iter().filter(|agent| is_ready(&agent.pod)).filter_map(why);
    Severity::Warning.if_any(
        "agents without readable /status, whose network config, token and contention are not checked",
        &silent.collect::<Vec<_>>(),
    )
}

fn named(agent: &Agent, why: String) -> String {
    format!("{}: pod {}: {why}", agent.node(), agent.name())
}

type Bodies<'a> = Vec<(&'a str, &'a StatusBody)>;

pub fn bodies(facts: &Facts) -> Bodies<'_> {
    let agents = facts.agents.iter().flatten();
    agents.filter_map(|agent| Some((agent.node(), agent.body()?))).collect()
}

/// Fails with the problems in the reports, each with its node.
pub fn each<P: IntoIterator<Item = String>>(
    bodies: &Bodies<'_>,
    severity: Severity,
    summary: &str,
    problems: impl Fn(&StatusBody) -> P,
) -> Verdict {
    let named = |(node, body): &(&str, &StatusBody)| {
        let on_node = problems(body).into_iter().map(|problem| format!("{node}: {problem}"));
        on_node.collect::<Vec<_>>()
    };
    severity.if_any(summary, &bodies.iter().flat_map(named).collect::<Vec<_>>())
}

/// Warns of agents that are ready but for a note, such as a skipped self-test.
fn notes(bodies: &Bodies<'_>) -> Verdict {
    each(bodies, Severity::Warning, "agents whose readiness has a note", |body| {
        // The agent also adds a failed TokenRequest, which the check of the token names.
        let is_of_token = body.note.as_deref() == body.problem(&Subject::TokenRequest);
        if is_of_token { None } else { body.note.clone() }
    })
}

fn tokens(bodies: &Bodies<'_>) -> Verdict {
    // Pods with the mark start redirected by their annotations.
    let summary = "nodes on which meshed pods without the proxy injector's mark fail to start";
    each(bodies, Severity::Error, summary, |body| {
        if token_has_expired(body) { Some("expired".to_owned()) } else { None }
    })?;
    each(bodies, Severity::Warning, "nodes with a problem of the token", |body| {
        [Subject::KubeconfigToken, Subject::TokenRequest]
            .iter()
            .filter_map(|subject| body.problem(subject).map(str::to_owned))
            .collect::<Vec<_>>()
    })
}

fn token_has_expired(body: &StatusBody) -> bool {
    // A program in the agent's place may report any number.
    let seconds = body.token_expires.map(Duration::from_secs);
    let expiry = seconds.and_then(|seconds| UNIX_EPOCH.checked_add(seconds));
    expiry.is_some_and(|expiry| expiry <= SystemTime::now())
}

fn backends(bodies: &Bodies<'_>) -> String {
    let redirects = bodies.iter().flat_map(|(_, body)| body.calls.redirects.keys());
    let names: BTreeSet<&str> = redirects.map(String::as_str).collect();
    match names.is_empty() {
        true => "no pod redirected yet".to_owned(),
        false => format!("backend {}", Vec::from_iter(names).join(" and ")),
    }
}

/// Returns the plugin calls of this agent that failed, or redirected by annotations alone.
fn calls(body: &StatusBody) -> Vec<String> {
    let failures = body.calls.failures.iter().map(|counted| (counted, "failed"));
    let degraded = body.calls.degraded.iter();
    let degraded = degraded.map(|counted| (counted, "redirected by annotations alone"));
    let line = |((code, count), what): ((&String, &u64), &str)| {
        let causes = failure::causes(code).map_or(String::new(), |why| format!(": {why}"));
        format!("{count} {what} with code {code}{causes}")
    };
    failures.chain(degraded).map(line).collect()
}
