//! Tests that mode `delete` suspends evictions while most pods of the node are damaged. Needs root.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::api::Answer;
use crate::drift::node_events;
use crate::modes::agent;
use crate::namespaces::{Namespaces, POD};
use crate::node::{Node, add_in, running};
use crate::stranded;
use crate::until::until;

/// Adds a pod with a netns of its own. Installs the redirect rules if `has_rules` is true.
fn add_pod(node: &Node, namespace: &str, name: &str, has_rules: bool) -> Namespaces {
    let object = json!({"metadata": {"name": namespace}});
    let path = format!("/api/v1/namespaces/{namespace}");
    node.api.state().answers.entry(path).or_insert((200, object.to_string()));
    let namespaces = Namespaces::new();
    node.name_netns(&namespaces, name);
    node.cache_result_of(&format!("uid-of-{name}"), name);
    if has_rules {
        add_in(&namespaces.path(), "native", "9999");
    }
    let mut pod = running();
    pod["metadata"] = stranded(name)["metadata"].clone();
    pod["metadata"]["namespace"] = json!(namespace);
    pod["status"]["podIPs"] = json!([{"ip": POD[0]}]);
    node.api.knows(&pod);
    node.api.state().pods.push(pod);
    namespaces
}

/// Returns the Events on this pod.
fn pod_events(node: &Node, name: &str) -> Vec<Value> {
    let mut events = node.events();
    events.retain(|event| event["regarding"]["name"] == name);
    events
}

#[test]
fn audit_evicts_no_pod_and_reports_each_one_if_most_pods_are_damaged() {
    let node = Node::new();
    node.api.state().evict = Answer::Status(201);
    let names = ["web-1", "web-2", "web-3"];
    let damaged = names.map(|name| add_pod(&node, "emojivoto", name, false));
    let _complete = ["web-4", "web-5"].map(|name| add_pod(&node, "emojivoto", name, true));
    let controller = node.auditing(&["--mode=delete"]);
    controller.until_metric_reaches("audits_total", 3);
    assert!(node.changes().is_empty(), "{:?}", node.changes());
    assert_eq!(controller.metric("audit_repairs_suspended"), 1);
    assert_eq!(controller.metric("pods_deleted_total"), 0);
    assert!(controller.metric("audit_pods_incomplete_total") >= 9);
    let events = node.events();
    assert_eq!(events.len(), 4, "once on the node and on each damaged pod: {events:#?}");
    assert_eq!(node_events(&node)[0]["reason"], "LinkerdCNIRepairsSuspended");
    assert_eq!(node_events(&node)[0]["type"], "Warning");
    for name in names {
        let events = pod_events(&node, name);
        assert_eq!(events.len(), 1, "{name}: {events:#?}");
        assert_eq!(events[0]["reason"], "LinkerdCNIRulesMissing", "{name}");
        assert_eq!(events[0]["action"], "Skipping", "{name}");
        let note = events[0]["note"].as_str().unwrap();
        assert!(note.contains("so audits evict none of them"), "{name}: {note}");
    }
    assert_eq!(controller.metric("pods_skipped_total"), 3);

    // Repair one pod. Now less than half of the pods are damaged, so they are evicted. A second
    // Event says that the repaired pod has its rules.
    add_in(&damaged[0].path(), "native", "9999");
    controller.until_metric_reaches("pods_deleted_total", 2);
    until("repairs resume", || controller.metric("audit_repairs_suspended") == 0);
    for events in [pod_events(&node, names[0]), node_events(&node)] {
        assert_eq!(events.len(), 2, "{events:#?}");
        assert_eq!(events[1]["type"], "Normal");
        assert_eq!(events[1]["reason"], events[0]["reason"]);
    }
}

#[test]
fn mode_in_place_repairs_all_pods_although_most_are_damaged() {
    let node = Node::new();
    let damaged = ["web-1", "web-2", "web-3"].map(|name| add_pod(&node, "emojivoto", name, false));
    let controller = node.auditing(&[]);
    controller.until_metric_is("pods_repaired_total", 3);
    assert_eq!(controller.metric("audit_repairs_suspended"), 0);
    for pod in damaged {
        let ruleset = pod.run("nft", &["list", "ruleset"]);
        assert!(ruleset.contains("redirect to :4140"), "{ruleset}");
    }
}

#[test]
fn mode_report_reports_all_pods_although_most_are_damaged() {
    let node = Node::new();
    let _damaged = ["web-1", "web-2", "web-3"].map(|name| add_pod(&node, "emojivoto", name, false));
    let controller = node.auditing(&["--mode=report"]);
    controller.until_metric_is("pods_reported_total", 3);
    assert_eq!(controller.metric("audit_repairs_suspended"), 0);
}

#[test]
fn evictions_are_not_suspended_if_all_damaged_pods_are_in_one_of_several_namespaces() {
    let node = Node::new();
    node.api.state().evict = Answer::Status(201);
    let _damaged = ["web-1", "web-2", "web-3"].map(|name| add_pod(&node, "tenant", name, false));
    let _complete = add_pod(&node, "emojivoto", "web-4", true);
    let controller = node.auditing(&["--mode=delete"]);
    controller.until_metric_reaches("pods_deleted_total", 3);
    assert_eq!(controller.metric("audit_repairs_suspended"), 0);
}

#[test]
fn suspension_also_applies_to_pods_that_are_already_queued() {
    let node = Node::new();
    node.api.state().evict = Answer::Status(201);
    let ready = Arc::default();
    let address = agent(&ready);
    let _queued = ["web-1", "web-2"].map(|name| add_pod(&node, "emojivoto", name, false));
    let controller =
        node.controller(&["--audit-seconds=1", "--mode=delete", "--agent-addr", &address]);
    controller.until_logged("Repairs are paused: the agent at ");
    let damaged = add_pod(&node, "emojivoto", "web-3", false);
    until("repairs are suspended", || controller.metric("audit_repairs_suspended") == 1);
    ready.store(true, Ordering::Relaxed);
    let audits = controller.metric("audits_total");
    controller.until_metric_reaches("audits_total", audits + 3);
    assert!(node.changes().is_empty(), "{:?}", node.changes());

    add_in(&damaged.path(), "native", "9999");
    controller.until_metric_reaches("pods_deleted_total", 2);
}
