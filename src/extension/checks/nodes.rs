//! Checks of the nodes, and of the agent on each node.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::Value;

use super::NODES;
use crate::extension::agents::{Agent, DAEMONSET};
use crate::extension::cluster_node::{ClusterNode, NodeState};
use crate::extension::facts::{Facts, require_readable};
use crate::extension::objects::{event_text, pod_spec};
use crate::extension::report::{Check, CheckResult, Severity};
use crate::kube::scheduling::{Exclusion, Placement, exclusion};

/// Checks that the nodes can start pods, and that each has a ready agent.
pub fn checks(facts: &Facts, daemonset: &Value) -> Vec<Check> {
    let placement = Placement::deserialize(pod_spec(daemonset)).unwrap_or_default();
    vec![
        Check::new(
            NODES,
            "node-ready",
            "each node can start pods",
            check_nodes_ready(facts, &placement),
        ),
        Check::new(
            NODES,
            "agent-on-each-node",
            "an agent runs on each node",
            check_placement(facts, &placement),
        ),
        Check::new(NODES, "agent-ready", "each agent is ready", check_agents_ready(facts)),
    ]
}

/// Fails, and lists the nodes in the DaemonSet's scope that have no network. The result for other
/// nodes that are not ready is unknown, because nobody reports what runs on them.
fn check_nodes_ready(facts: &Facts, placement: &Placement) -> CheckResult {
    let nodes = require_readable(&facts.nodes, "the nodes")?;
    let mut without_network = Vec::new();
    let mut unknown = Vec::new();
    for node in nodes {
        let is_in_scope = exclusion(placement, &node.scheduled).is_none();
        if !is_in_scope {
            continue;
        }
        match node.state() {
            NodeState::Ready => {}
            NodeState::NoNetwork(reason) => {
                without_network.push(format!("{}: {reason}", node.name()))
            }
            NodeState::NotReady(reason) => {
                unknown.push(format!("{}: the node is not ready: {reason}", node.name()));
            }
        }
    }
    let summary = "nodes on which no pod starts, because the container runtime has no usable \
                   network config; correct the first file in its CNI directory, or restart the \
                   primary CNI on the node";
    Severity::Error.fail_if_any_or_unknown(summary, &without_network, &unknown)
}

/// Nodes without an agent, each with the reason where there is one.
#[derive(Default)]
struct NodesWithoutAgent {
    /// Ready nodes in the DaemonSet's scope, which should have an agent.
    missing: Vec<String>,
    /// Nodes that are not ready, where no agent can start.
    unknown: Vec<String>,
    /// Nodes whose taints keep the agent away.
    tainted: Vec<String>,
}

/// Fails, and lists the nodes that lack an agent. Warns of nodes whose taints keep the agent away.
fn check_placement(facts: &Facts, placement: &Placement) -> CheckResult {
    let nodes = require_readable(&facts.nodes, "the nodes")?;
    let agents = require_readable(&facts.agents, "the agents' pods")?;
    let without_agent = find_nodes_without_agent(nodes, agents, placement);
    let NodesWithoutAgent { missing, unknown, tainted } = without_agent;
    let cause = match find_daemonset_event(&facts.events) {
        Some(event) => format!(" ({})", event_text(event)),
        None => String::new(),
    };
    let summary =
        format!("nodes without an agent, where meshed pods start without redirect rules{cause}");
    Severity::Pending.fail_if_any_or_unknown(&summary, &missing, &unknown)?;
    Severity::Warning.fail_if_any(
        "nodes out of the DaemonSet's scope, where meshed pods start without redirect rules",
        &tainted,
    )
}

/// Returns the nodes without an agent. The chart's user has chosen the node selector, for example
/// to leave out Windows nodes, so nodes that the selector excludes are left out.
fn find_nodes_without_agent(
    nodes: &[ClusterNode],
    agents: &[Agent],
    placement: &Placement,
) -> NodesWithoutAgent {
    let mut found = NodesWithoutAgent::default();
    for node in nodes {
        let name = node.name();
        let has_agent = agents.iter().any(|agent| agent.node() == name);
        if has_agent {
            continue;
        }
        match exclusion(placement, &node.scheduled) {
            Some(Exclusion::NotSelected(_)) => {}
            Some(Exclusion::Tainted(reason)) => found.tainted.push(format!("{name}: {reason}")),
            None => {
                if node.state() == NodeState::Ready {
                    found.missing.push(name.to_owned());
                } else {
                    found.unknown.push(format!("{name}: the node is not ready"));
                }
            }
        }
    }
    found
}

/// Returns the newest Event on the DaemonSet.
fn find_daemonset_event(events: &[Value]) -> Option<&Value> {
    events.iter().rev().find(|event| {
        let object = &event["involvedObject"];
        object["kind"] == "DaemonSet" && object["name"] == DAEMONSET
    })
}

/// Fails, and lists the agents that are not ready, each with the reason. An agent on a node that is
/// not ready cannot become ready, so it counts as unknown.
fn check_agents_ready(facts: &Facts) -> CheckResult {
    let agents = require_readable(&facts.agents, "the agents' pods")?;
    let nodes = nodes_by_name(facts);
    let mut reasons = Vec::new();
    let mut unknown = Vec::new();
    for agent in agents {
        let Some(reason) = agent.unready_reason(&facts.events) else { continue };
        let reason = with_node_and_pod(agent, &reason);
        let is_node_unready = match nodes.get(agent.node()) {
            Some(node) => node.state() != NodeState::Ready,
            None => false,
        };
        if is_node_unready {
            unknown.push(reason);
        } else {
            reasons.push(reason);
        }
    }
    Severity::Pending.fail_if_any_or_unknown("agents that are not ready", &reasons, &unknown)
}

fn nodes_by_name(facts: &Facts) -> BTreeMap<&str, &ClusterNode> {
    let nodes = facts.nodes.iter().flatten();
    nodes.map(|node| (node.name(), node)).collect()
}

/// Puts the names of the agent's node and pod before the text.
pub fn with_node_and_pod(agent: &Agent, reason: &str) -> String {
    format!("{}: pod {}: {reason}", agent.node(), agent.name())
}
