//! What the logs of kubelet and of the API server show of a whole run.

use std::fs::File;
use std::io::{BufRead as _, BufReader};

use serde_json::Value;

use crate::helm::NAMESPACE;
use crate::ledger::{Invariant, Ledger};
use crate::node::Node;

const AUDIT_LOG: &str = "/var/lib/linkerd2-cni-cluster/audit.log";
/// What the name of an unmeshed pod begins with.
const UNMESHED: &str = "unmeshed-";
/// The same of a meshed pod without the injector's mark, for which the plugin needs the API server.
const MANUAL: &str = "manual-";

/// Failed tries of ADD. Those of unmeshed pods, and those without the plugin binary, are violations. Returns the number
/// of the others.
pub fn check_kubelet_log(node: &Node, ledger: &Ledger) -> usize {
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
            ledger.violated(Invariant::Files, line);
        } else if line.contains(UNMESHED) {
            ledger.violated(Invariant::UnmeshedStart, line);
        } else {
            failed += 1;
        }
    }
    failed
}

/// The plugin sends no API request for an unmeshed pod. It sends some for meshed pods: without any, the log cannot show
/// that.
pub fn check_audit_log(ledger: &Ledger) {
    let log = BufReader::new(File::open(AUDIT_LOG).expect("the API server's audit log"));
    let lines = log.lines().map_while(Result::ok);
    // Only these lines are decoded: the log of an hour is long.
    let is_of_pod = |line: &str| line.contains(UNMESHED) || line.contains(MANUAL);
    let of_plugin = lines.filter(|line| line.contains("\"linkerd-cni/") && is_of_pod(line));
    let mut of_meshed = 0;
    for line in of_plugin {
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        let name = event["objectRef"]["name"].as_str().unwrap_or_default();
        let agent = event["userAgent"].as_str().unwrap_or_default();
        if !agent.starts_with("linkerd-cni/") {
            continue;
        }
        of_meshed += usize::from(name.starts_with(MANUAL));
        if name.starts_with(UNMESHED) {
            let seen = format!("API request for {name}: {}", event["requestURI"]);
            ledger.violated(Invariant::UnmeshedStart, seen);
        }
    }
    if of_meshed == 0 {
        let seen = "the audit log has no API request of the plugin for a meshed pod";
        ledger.violated(Invariant::UnmeshedStart, seen);
    }
}
