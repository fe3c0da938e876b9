//! Checks of the rollout of the DaemonSet.

use serde_json::Value;

use crate::extension::agents::Agent;
use crate::extension::cluster_node::NodeState;
use crate::extension::facts::Facts;
use crate::extension::report::{CheckResult, Severity};

/// How far the DaemonSet's controller has replaced the pods.
enum Rollout {
    NotProcessed,
    /// No node is in the scope of the DaemonSet.
    NoNode,
    Outdated {
        updated: u64,
        nodes: u64,
    },
    Done,
}

fn read_rollout(daemonset: &Value) -> Rollout {
    let status = &daemonset["status"];
    if number_or_zero(&status["observedGeneration"])
        < number_or_zero(&daemonset["metadata"]["generation"])
    {
        return Rollout::NotProcessed;
    }
    let nodes = number_or_zero(&status["desiredNumberScheduled"]);
    let updated = number_or_zero(&status["updatedNumberScheduled"]);
    if nodes == 0 {
        Rollout::NoNode
    } else if updated < nodes {
        Rollout::Outdated { updated, nodes }
    } else {
        Rollout::Done
    }
}

/// Returns a number of a status; the API server omits numbers that are 0.
fn number_or_zero(field: &Value) -> u64 {
    field.as_u64().unwrap_or_default()
}

/// Fails until all nodes in the scope of the DaemonSet have a pod of its newest revision.
pub fn check_rollout(name: &str, daemonset: &Value) -> CheckResult {
    match read_rollout(daemonset) {
        Rollout::Done => Ok(()),
        Rollout::NotProcessed => Severity::Pending
            .fail(format!("Kubernetes has not processed the newest change of {name} yet")),
        Rollout::NoNode => Severity::Error.fail(format!(
            "no node is in the scope of {name}; check its nodeSelector, affinity and tolerations"
        )),
        Rollout::Outdated { updated, nodes } => {
            Severity::Pending.fail(describe_outdated(name, updated, nodes))
        }
    }
}

fn describe_outdated(name: &str, updated: u64, nodes: u64) -> String {
    format!("{updated} of {nodes} nodes have a pod of the newest revision of {name}")
}

/// Checks the same as [`check_rollout`], but does not return [`Severity::Pending`] if waiting is
/// useless. With the strategy `OnDelete`, an old pod stays until somebody deletes it. A node that
/// is not ready starts no new pod.
pub fn check_rollout_progress(name: &str, daemonset: &Value, facts: &Facts) -> CheckResult {
    let Rollout::Outdated { updated, nodes } = read_rollout(daemonset) else {
        return check_rollout(name, daemonset);
    };
    let count = describe_outdated(name, updated, nodes);
    if daemonset["spec"]["updateStrategy"]["type"] == "OnDelete" {
        return Severity::Warning.fail(format!(
            "{count}; with the updateStrategy OnDelete, delete the other pods to replace them"
        ));
    }
    let not_ready = find_outdated_unready_nodes(daemonset, facts);
    if nodes - updated > not_ready.len() as u64 {
        return Severity::Pending.fail(count);
    }
    Severity::Unknown
        .fail_if_any(&format!("{count}; nodes that are not ready have none"), &not_ready)
}

/// Returns the nodes that are not ready, and have no pod of the newest revision.
fn find_outdated_unready_nodes(daemonset: &Value, facts: &Facts) -> Vec<String> {
    let (Ok(nodes), Ok(agents)) = (&facts.nodes, &facts.agents) else { return Vec::new() };
    let mut outdated = Vec::new();
    for node in nodes {
        if node.state() != NodeState::Ready && !has_current_agent(node.name(), daemonset, agents) {
            outdated.push(node.name().to_owned());
        }
    }
    outdated
}

fn has_current_agent(node: &str, daemonset: &Value, agents: &[Agent]) -> bool {
    agents.iter().any(|agent| agent.node() == node && agent.is_current(daemonset))
}
