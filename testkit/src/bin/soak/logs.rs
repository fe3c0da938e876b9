//! What the logs of kubelet and of the API server show of a whole run.

use std::fs::File;
use std::io::{BufRead as _, BufReader};

use serde_json::Value;

use crate::helm::NAMESPACE;
use crate::ledger::{Invariant, violated};
use crate::node::Node;
use crate::outages::{self, Cause};

const AUDIT_LOG: &str = "/var/lib/linkerd2-cni-cluster/audit.log";
/// What the name of an unmeshed pod begins with.
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

/// The plugin sends no API request for an unmeshed pod while an agent keeps the copy of the node's pods and nothing
/// disturbs it. The agent sends requests: without any, the log cannot show that.
pub fn check_audit_log() {
    let log = BufReader::new(File::open(AUDIT_LOG).expect("the API server's audit log"));
    let lines = log.lines().map_while(Result::ok);
    let mut of_agent = 0;
    for line in lines {
        of_agent += usize::from(line.contains("\"linkerd2-cni-install/"));
        // Only these lines are decoded: the log of an hour is long.
        if !(line.contains("\"linkerd-cni/") && line.contains(UNMESHED)) {
            continue;
        }
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&event["objectRef"]["name"]);
        let is_of_plugin = text(&event["userAgent"]).starts_with("linkerd-cni/");
        let received = humantime::parse_rfc3339(&text(&event["requestReceivedTimestamp"]));
        let age = received.ok().and_then(|received| received.elapsed().ok()).unwrap_or_default();
        let mut causes = [Cause::Copy, Cause::ApiServer].into_iter();
        let is_disturbed = causes.any(|cause| outages::was_open(cause, age));
        if is_of_plugin && name.starts_with(UNMESHED) && !is_disturbed {
            let seen = format!("API request for {name}: {}", event["requestURI"]);
            violated(Invariant::UnmeshedStart, seen);
        }
    }
    if of_agent == 0 {
        let seen = "the audit log has no API request of the agent";
        violated(Invariant::UnmeshedStart, seen);
    }
}
