//! The files that a dead agent left on the node.

use std::time::Duration;

use super::agent::is_agent;
use super::kubectl::{field, kubectl};
use super::node::{Files, Node};
use crate::until::until_within;

/// Longest wait for the agent to end, and longest wait for the command.
const LIMIT: Duration = Duration::from_secs(60);

/// Removes the files with the command in docs/uninstall.md, with further `options` of `kubectl
/// debug`. Fails unless the node then has the same files as `before`.
pub fn remove_leftovers(node: &Node, before: &Files, options: &str) {
    // The agent has to end first, because it would restore the files. It may outlive its pod for a
    // moment: kubelet may have started it again before kubelet saw that the pod was deleted.
    until_within(LIMIT, "no agent runs", || !crate::pids().any(is_agent));
    let node_name = kubectl("get nodes -o name");
    let debug = format!("debug {} --image={} --profile=sysadmin", node_name.trim(), crate::image());
    kubectl(&format!(
        "{debug} -n linkerd-cni {options} -- /usr/bin/linkerd2-cni-install uninstall"
    ));
    let pod = "-n linkerd-cni -l app.kubernetes.io/managed-by=kubectl-debug";
    until_within(LIMIT, "the command has ended", || {
        let phase = field(&format!("pods {pod}"), ".items[*].status.phase");
        phase == "Succeeded" || phase == "Failed"
    });
    assert_eq!(node.files(), *before, "the command says: {}", kubectl(&format!("logs {pod}")));
    kubectl("delete pods -n linkerd-cni --all --timeout=60s");
}
