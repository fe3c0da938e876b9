//! What the log of kubelet shows of a whole run.

use crate::helm::NAMESPACE;
use crate::ledger::{Invariant, violated};
use crate::node::Node;

/// Start of the names of unmeshed pods.
const UNMESHED: &str = "unmeshed-";

/// Failed tries of ADD. Those of unmeshed pods, and those without the plugin binary, are violations. Returns the number
/// of the others.
pub fn check_kubelet_log(node: &Node) -> usize {
    let log = node.kubelet_log();
    let failures = log.lines().filter(|line| line.contains("Failed to create sandbox for pod"));
    let mut failed = 0;
    // The pod of the agent is in the release's namespace: its name has the plugin's name in it.
    let release = format!("pod=\"{NAMESPACE}/");
    let of_plugin = failures.filter(|line| {
        let error = line.replace('\\', "");
        error.contains("plugin type=\"linkerd-cni\"") && !line.contains(&release)
    });
    for line in of_plugin {
        if line.contains("failed to find plugin") {
            violated(Invariant::Files, line);
        } else if line.contains(UNMESHED) {
            violated(Invariant::UnmeshedStart, line);
        } else {
            failed += 1;
        }
    }
    failed
}
