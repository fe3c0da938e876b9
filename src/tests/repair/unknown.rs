//! Tests pods whose redirect rules an audit cannot read. They are audited again, counted, and
//! reported after a minute. Needs root.

use std::fs;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::api::Answer;
use crate::controller::Controller;
use crate::drift::node_events;
use crate::node::{Node, add, entry, meshed, running, waiting};
use crate::path;
use crate::until::{until, until_within};

/// Time limit for waiting for an Event that is posted after a minute.
const LIMIT: Duration = Duration::from_secs(180);

fn until_event(node: &Node) -> Value {
    until_within(LIMIT, "an Event", || !node.events().is_empty());
    node.events().remove(0)
}

/// Creates a node with a running pod. The runtime has no CNI result of the pod.
fn without_result() -> Node {
    let node = Node::new();
    node.knows(&running());
    node
}

#[test]
fn audit_after_the_start_is_repeated_if_the_rules_of_a_pod_are_unknown() {
    let node = without_result();
    let controller = node.controller(&[]);
    until_within(LIMIT, "the first audit", || controller.metric("audits_total") >= 1);
    assert!(controller.metric("audit_errors_total") >= 1);
    // Now the runtime caches the result.
    node.cache_cni_result("uid-of-web-1");
    until_within(LIMIT, "the pod is repaired", || controller.metric("pods_repaired_total") == 1);
    assert!(node.ruleset().contains("redirect to :4140"), "{}", node.ruleset());
}

#[test]
fn audit_after_the_start_is_repeated_if_a_pod_did_not_run_yet() {
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
fn pod_whose_rules_are_unknown_for_a_minute_is_reported_until_they_are_known() {
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
    until("the rules are known", || controller.metric("audit_pods_unknown") == 0);
    until("a second Event", || node.events().len() == 2);
    let event = &node.events()[1];
    assert_eq!(event["type"], "Normal");
    assert_eq!(event["reason"], "LinkerdCNIRulesUnknown");
    assert_eq!(event["note"], "The pod's redirect rules are known again");
    assert_eq!(controller.metric("pods_repaired_total"), 0);
}

/// The Events of the node's controller, in their order, and when they happened.
fn actions(node: &Node) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let events = node.api.events();
    events.iter().map(|event| (text(&event["action"]), text(&event["eventTime"]))).collect()
}

/// An earlier controller, such as that of the pod before an upgrade, cannot end its reports.
#[test]
fn reports_of_an_earlier_controller_end_when_all_that_applies_is_reported_again() {
    let node = without_result();
    let before = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    let _controller = node.auditing(&[]);
    until_within(LIMIT, "the end of earlier reports", || {
        actions(&node).iter().any(|(action, _)| action == "Audited")
    });
    let actions = actions(&node);
    let [(first, reported), (second, audited)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((&**first, &**second), ("Skipping", "Audited"));
    // It ends no report of this controller.
    assert!(*audited > before && audited < reported, "{before} {actions:?}");
    let event = &node.api.events()[1];
    assert_eq!((&event["type"], &event["regarding"]["name"]), (&json!("Normal"), &json!("node-1")));
    assert_eq!(event["reason"], "LinkerdCNIRulesUnknown");
}

#[test]
fn pod_with_rules_in_a_legacy_table_is_reported_after_a_minute() {
    let node = meshed("legacy");
    let controller = node.auditing(&[]);
    let event = until_event(&node);
    assert_eq!(event["reason"], "LinkerdCNIRulesUnknown");
    assert!(event["note"].as_str().unwrap().contains("has a table of iptables-legacy"), "{event}");
    until("the metric", || controller.metric("audit_pods_unknown") == 1);
}

#[test]
fn audits_that_fail_for_a_minute_are_reported_on_the_node() {
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
    assert!(failures >= 3, "{failures} failures: the repair is not retried");
}

/// A webhook without endpoints rejects all evictions. The pod still has no rules, so this must be
/// reported.
#[test]
fn eviction_that_fails_for_a_minute_is_reported_on_the_pod() {
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
fn repair_in_place_that_fails_for_a_minute_is_reported_on_the_pod() {
    let node = Node::with(&waiting());
    node.api.answer(&path("web-1"), 503, "{}");
    let controller = node.controller(&[]);
    assert_failing_repair_is_reported(&node, &controller, "repair_errors_total");
}
