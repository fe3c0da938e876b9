//! The files that a dead agent left on the node.

use std::time::Duration;

use super::agent::is_agent;
use super::kubectl::{field, kubectl};
use super::node::{Files, Node};
use crate::until::until_within;

/// Time for the agent's end, and for the command.
const LIMIT: Duration = Duration::from_secs(60);

/// Removes the files with the command in docs/uninstall.md, and more `options` of `kubectl debug`.
/// Fails unless the node's files are as `before`.
pub fn remove_leftovers(node: &Node, before: &Files, options: &str) {
    // An agent that kubelet started again before it saw the deletion of the pod outlives the pod,
    // and restores the files.
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
