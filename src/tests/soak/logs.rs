//! What the logs of kubelet and of the API server show of a whole run.

use std::fs::File;
use std::io::{BufRead as _, BufReader};

use serde_json::Value;

use crate::ledger::{Invariant, Ledger};
use crate::node::Node;

const AUDIT_LOG: &str = "/var/lib/linkerd2-cni-cluster/audit.log";
/// What the name of an unmeshed pod begins with.
const UNMESHED: &str = "unmeshed-";

/// Failed tries of ADD. Those of unmeshed pods, and those without the plugin binary, are violations. Returns the number
/// of the others.
pub fn check_kubelet_log(node: &Node, ledger: &Ledger) -> usize {
    let log = node.kubelet_log();
    let failures = log.lines().filter(|line| line.contains("Failed to create sandbox for pod"));
    let mut failed = 0;
    for line in failures.filter(|line| line.contains("linkerd-cni")) {
        if line.contains("failed to find plugin") {
            ledger.violated(Invariant::Files, line);
        } else if line.contains(UNMESHED) {
            ledger.violated(Invariant::UnmeshedStart, line);
        } else {
            failed += 1;
        }
    }
    failed
}

/// The plugin sends no API request for an unmeshed pod.
pub fn check_audit_log(ledger: &Ledger) {
    let log = BufReader::new(File::open(AUDIT_LOG).expect("the API server's audit log"));
    let lines = log.lines().map_while(Result::ok);
    // Only these lines are decoded: the log of an hour is long.
    let of_plugin = lines.filter(|line| line.contains("\"linkerd-cni/") && line.contains(UNMESHED));
    for line in of_plugin {
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        let name = event["objectRef"]["name"].as_str().unwrap_or_default();
        let agent = event["userAgent"].as_str().unwrap_or_default();
        if agent.starts_with("linkerd-cni/") && name.starts_with(UNMESHED) {
            let seen = format!("API request for {name}: {}", event["requestURI"]);
            ledger.violated(Invariant::UnmeshedStart, seen);
        }
    }
}
