//! The files that a dead agent left on the node.

use std::time::Duration;

use super::agent::is_agent;
use super::api;
use super::helm::NAMESPACE;
use super::kubectl::kubectl;
use super::node::{self, Files, Node};
use super::pods;
use crate::until::until_within;

/// Longest wait for the agent to end, and longest wait for the command.
const LIMIT: Duration = Duration::from_secs(60);

/// Removes the files with the command in docs/uninstall.md, with further `options` of `kubectl
/// debug`. Fails unless the node then has the same files as `before`.
pub fn remove_leftovers(node: &Node, before: &Files, options: &str) {
    // The agent has to end first, because it would restore the files. It may outlive its pod for a
    // moment: kubelet may have started it again before kubelet saw that the pod was deleted.
    until_within(LIMIT, "no agent runs", || !crate::pids().any(is_agent));
    let debug =
        format!("debug node/{} --image={} --profile=sysadmin", node::name(), crate::image());
    kubectl(&format!(
        "{debug} -n {NAMESPACE} {options} -- /usr/bin/linkerd2-cni-install uninstall"
    ));
    let label = "app.kubernetes.io/managed-by=kubectl-debug";
    let path = format!("{}?labelSelector={label}", pods::path(NAMESPACE));
    until_within(LIMIT, "the command has ended", || {
        let pods = api::list(&path);
        pods.len() == 1 && pods::has_ended(&pods[0])
    });
    let log = kubectl(&format!("logs -n {NAMESPACE} -l {label}"));
    assert_eq!(node.files(), *before, "the command says: {log}");
    pods::delete_all(NAMESPACE);
}
