//! Tests the repair of pods with interfaces to networks inside the pod. Needs root.

use serde_json::{Value, json};

use crate::node::{Node, add, entry, running, waiting};

const SYSCTL: &str = "cat /proc/sys/net/ipv4/conf/default/route_localnet";

/// Returns the pod with an annotation that names two interfaces.
fn annotated(mut pod: Value) -> Value {
    pod["metadata"]["annotations"]["config.linkerd.io/inner-interfaces"] =
        json!("docker0,k6t-eth0");
    pod
}

#[test]
fn stranded_pod_gets_the_rules_and_the_sysctl_for_its_interfaces() {
    let node = Node::with(&annotated(waiting()));
    assert_eq!(node.namespaces.sh(SYSCTL), "0\n");
    let controller = node.controller(&[]);
    controller.until_metric_is("pods_repaired_total", 1);
    let ruleset = node.ruleset();
    assert!(ruleset.contains("iifname \"k6t-eth0\""), "{ruleset}");
    assert_eq!(node.namespaces.sh(SYSCTL), "1\n");
}

#[test]
fn audit_restores_a_missing_rule_for_an_interface() {
    let node = Node::with(&annotated(waiting()));
    let controller = node.controller(&[]);
    controller.until_metric_is("pods_repaired_total", 1);
    drop(controller);
    let before = node.ruleset();
    node.namespaces
        .sh("nft -a list table ip linkerd-cni | sed -n 's/.*all-from-docker0.*handle //p' | \
         xargs nft delete rule ip linkerd-cni PROXY_INIT_REDIRECT handle");
    assert_ne!(node.ruleset(), before);
    node.knows(&annotated(running()));
    let _controller = node.repaired();
    assert_eq!(node.ruleset(), before);
}

#[test]
fn interfaces_that_are_added_to_the_chart_values_later_are_drift_and_not_repaired() {
    let node = Node::with(&running());
    add(&node, "native", "9999");
    let before = node.ruleset();
    let mut entry = entry("native");
    entry["linkerd"]["inner-interfaces"] = json!(["docker0"]);
    node.chain(&entry);
    let controller = node.auditing(&[]);
    controller.until_metric_reaches("audits_total", 2);
    assert_eq!(controller.metric("audit_pods_drifted"), 1);
    assert_eq!(node.ruleset(), before);
    assert_eq!(node.namespaces.sh(SYSCTL), "0\n");
}
