//! Pods whose redirect rules an audit cannot read: they are audited again, counted, and after a minute
//! reported. Needs root.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::Answer;
use crate::controller::Controller;
use crate::drift::node_events;
use crate::node::{Node, add, entry, meshed, running, waiting};
use crate::path;
use crate::until::{until, until_within};

/// Longest time to the Event of a state that lasts for a minute.
const LIMIT: Duration = Duration::from_secs(180);

fn until_event(node: &Node) -> Value {
    until_within(LIMIT, "an Event", || !node.events().is_empty());
    node.events().remove(0)
}

/// A node with the running pod, of which the runtime has no CNI result.
fn without_result() -> Node {
    let node = Node::new();
    node.knows(&running());
    node
}

#[test]
fn the_audit_after_the_start_comes_again_for_a_pod_that_it_could_not_judge() {
    let node = without_result();
    let controller = node.controller(&[]);
    until_within(LIMIT, "the first audit", || controller.metric("audits_total") >= 1);
    assert!(controller.metric("audit_errors_total") >= 1);
    // The runtime caches the result later.
    node.cache_cni_result("uid-of-web-1");
    until_within(LIMIT, "the pod is repaired", || controller.metric("pods_repaired_total") == 1);
    assert!(node.ruleset().contains("redirect to :4140"), "{}", node.ruleset());
}

#[test]
fn the_audit_after_the_start_comes_again_for_a_pod_that_did_not_run_yet() {
    let node = Node::new();
    node.cache_cni_result("uid-of-web-1");
    let mut starting = running();
    starting["status"]["phase"] = json!("Pending");
    node.knows(&starting);
    let controller = node.controller(&[]);
    until_within(LIMIT, "the first audit", || controller.metric("audits_total") >= 1);
    node.knows(&running());
    until_within(LIMIT, "the pod is repaired", || controller.metric("pods_repaired_total") == 1);
}

#[test]
fn a_pod_whose_rules_are_unknown_for_a_minute_is_reported_until_they_are_known() {
    let node = without_result();
    let controller = node.auditing(&[]);
    let event = until_event(&node);
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "LinkerdCNIRulesUnknown");
    assert_eq!(event["action"], "Skipping");
    assert_eq!(event["regarding"]["uid"], "uid-of-web-1");
    let note = event["note"].as_str().unwrap();
    let unknown =
        "Pod skipped for now: its redirect rules are unknown: no CNI result of the pod in ";
    assert!(note.starts_with(unknown) && note.ends_with("delete the pod to replace it"), "{note}");
    until("the metric", || controller.metric("audit_pods_unknown") == 1);
    let audits = controller.metric("audits_total");
    controller.until_metric_reaches("audits_total", audits + 3);
    assert_eq!(node.events().len(), 1, "reported once");

    add(&node, "native", "9999");
    node.cache_cni_result("uid-of-web-1");
    until("the pod is judged", || controller.metric("audit_pods_unknown") == 0);
    until("the Event that ends the other", || node.events().len() == 2);
    let event = &node.events()[1];
    assert_eq!(event["type"], "Normal");
    assert_eq!(event["reason"], "LinkerdCNIRulesUnknown");
    assert_eq!(event["note"], "The pod's redirect rules are known again");
    assert_eq!(controller.metric("pods_repaired_total"), 0);
}

#[test]
fn a_pod_with_rules_in_a_legacy_table_is_reported_after_a_minute() {
    let node = meshed("legacy");
    let controller = node.auditing(&[]);
    let event = until_event(&node);
    assert_eq!(event["reason"], "LinkerdCNIRulesUnknown");
    assert!(event["note"].as_str().unwrap().contains("has a table of iptables-legacy"), "{event}");
    until("the metric", || controller.metric("audit_pods_unknown") == 1);
}

#[test]
fn audits_that_judge_no_pod_for_a_minute_are_reported_on_the_node() {
    let node = meshed("native");
    let conflist = node.dir("etc/cni/net.d").join("10-net.conflist");
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]});
    fs::write(conflist, list.to_string()).unwrap();
    let controller = node.auditing(&[]);
    let event = until_event(&node);
    assert_eq!(node_events(&node).len(), 1);
    assert_eq!(event["reason"], "LinkerdCNIRulesUnknown");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("10-net.conflist has no plugin entry"), "{note}");
    assert_eq!(controller.metric("audits_failing"), 1);
    assert_eq!(controller.metric("audits_total"), 0);

    node.chain(&entry("auto"));
    until("an audit", || controller.metric("audits_total") >= 1);
    assert_eq!(controller.metric("audits_failing"), 0);
    let event = node_events(&node).remove(1);
    assert_eq!(
        (&event["type"], &event["reason"]),
        (&json!("Normal"), &json!("LinkerdCNIRulesUnknown"))
    );
}

fn assert_failing_repair_is_reported(node: &Node, controller: &Controller, metric: &str) {
    let event = until_event(node);
    assert_eq!(event["action"], "Skipping");
    let note = event["note"].as_str().unwrap();
    let failing = "Pod skipped for now: its repair has failed for more than a minute";
    assert!(note.starts_with(failing), "{note}");
    let failures = controller.metric(metric);
    assert!(failures >= 3, "{failures}: it is tried again");
}

/// Nothing says that the pod is fine: a webhook that fails, as its Service is gone, rejects all
/// evictions.
#[test]
fn an_eviction_that_fails_for_a_minute_is_reported_on_the_pod() {
    const WEBHOOK: &str = "Internal error occurred: failed calling webhook \"a\": no endpoints";
    let node = Node::with(&waiting());
    node.api.state().evict = Answer::Refusal(500, WEBHOOK);
    let controller = node.controller(&["--mode=delete"]);
    assert_failing_repair_is_reported(&node, &controller, "pods_delete_errors_total");
    let note = node.events()[0]["note"].to_string();
    assert!(note.contains("failed calling webhook"), "{note}");
    assert!(node.api.deleted().is_empty());
}

#[test]
fn a_repair_in_place_that_fails_for_a_minute_is_reported_on_the_pod() {
    let node = Node::with(&waiting());
    node.api.answer(&path("web-1"), 503, "{}");
    let controller = node.controller(&[]);
    assert_failing_repair_is_reported(&node, &controller, "repair_errors_total");
}
