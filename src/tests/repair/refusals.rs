//! Tests mode `delete` with API servers that allow or reject evictions. A rejected eviction must
//! never be followed by a deletion.

use std::thread;

use serde::Deserialize;
use serde_json::{Value, json};
use testkit::table::rows;

use crate::api::{Answer, Api, NOT_PERMITTED};
use crate::controller::Controller;
use crate::node::{Node, add, running};
use crate::until::until;
use crate::{path, stranded};

const WEBHOOK: &str = r#"admission webhook "pods.example.com" denied the request: pods "web-1" is forbidden: User "a" cannot create resource "pods/eviction""#;
/// Message of the chart's admission policy if the pod is on another node.
const POLICY: &str = r#"pods "web-1" is forbidden: ValidatingAdmissionPolicy 'linkerd-cni-repair' with binding 'linkerd-cni-repair' denied request: linkerd-cni on node a may not evict pod web-1 on node b"#;

/// Message of the API server when a disruption budget rejects an eviction.
const BUDGET: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

#[test]
fn pod_whose_eviction_is_rejected_is_reported_once_and_never_deleted() {
    for (code, why) in [
        (403, WEBHOOK),
        (403, POLICY),
        (422, POLICY),
        (405, WEBHOOK),
        (429, WEBHOOK),
        (429, BUDGET),
    ] {
        let api = Api::start();
        api.state().evict = Answer::Refusal(code, why);
        let controller = Controller::watching(&api);
        for name in ["web-1", "web-1", "web-1", "web-2"] {
            api.modify(&stranded(name));
        }
        until("each pod is deleted or reported", || api.deleted().len() + api.events().len() >= 2);
        assert!(api.deleted().is_empty(), "deleted after HTTP {code} {why}");
        let names = api.events().iter().map(|event| event["regarding"]["name"].clone()).collect();
        assert_eq!(Value::Array(names), json!(["web-1", "web-2"]));
        assert_eq!(api.events()[0]["type"], "Warning");
        assert_eq!(api.events()[0]["note"], format!("Pod skipped for now: {why}"));
        assert_eq!(controller.metric("pods_skipped_total"), 2);
        assert_eq!(controller.metric("pods_deleted_total"), 0);
    }
}

/// A row of `evictions.yaml`: a response to an eviction, and the reaction of the controller.
#[derive(Deserialize)]
struct Row {
    code: u16,
    message: String,
    then: String,
}

impl Row {
    fn answer(&self) -> Answer {
        // The fake API server keeps the text until the process ends.
        let message = self.message.clone().leak();
        if message.starts_with("<html>") {
            return Answer::Proxy(self.code, message);
        }
        Answer::Refusal(self.code, message)
    }
}

#[test]
fn controller_reacts_to_each_response_of_the_eviction_api() {
    let rows: Vec<_> = rows::<Row>(include_str!("../../repair/act/evictions.yaml")).collect();
    for rows in rows.chunks(8) {
        thread::scope(|scope| {
            for (name, row) in rows {
                scope.spawn(move || assert_reaction(name, row));
            }
        });
    }
}

fn assert_reaction(name: &str, row: &Row) {
    let (api, controller) = Controller::watched();
    api.state().evict = row.answer();
    api.modify(&stranded("web-1"));
    let reported = |controller: &Controller| {
        let metrics = ["pods_deleted_total", "pods_skipped_total", "pods_delete_errors_total"];
        metrics.map(|metric| controller.metric(metric))
    };
    match row.then.as_str() {
        "nothing" => {
            until(name, || !api.evictions().is_empty());
            // The queue is ordered, so when this pod is deleted, the first one has been handled.
            api.state().evict = Answer::Status(201);
            api.modify(&stranded("web-2"));
            controller.until_metric_is("events_publish_latency_seconds_count", 1);
            assert_eq!(reported(&controller), [1, 0, 0], "{name}");
            assert_eq!(api.events()[0]["regarding"]["name"], "web-2", "{name}");
            assert_eq!(api.evictions().len(), 2, "{name}");
        }
        "report" => {
            controller.until_metric_is("events_publish_latency_seconds_count", 1);
            assert_eq!(reported(&controller), [0, 1, 0], "{name}");
            assert_eq!(api.events()[0]["action"], "Skipping", "{name}");
        }
        "retry" => {
            controller.until_metric_reaches("pods_delete_errors_total", 1);
            assert!(api.events().is_empty(), "{name}");
            api.state().evict = Answer::Status(201);
            controller.until_metric_is("events_publish_latency_seconds_count", 1);
            assert_eq!(reported(&controller)[..2], [1, 0], "{name}");
        }
        "delete" => {
            controller.until_metric_is("events_publish_latency_seconds_count", 1);
            assert_eq!(reported(&controller), [1, 0, 0], "{name}");
        }
        other => panic!("{name}: {other}"),
    }
    let deleted = if row.then == "delete" { vec![path("web-1")] } else { Vec::new() };
    assert_eq!(api.deleted(), deleted, "{name}");
}

/// An administrator restores the rules of a pod that the controller may not evict.
#[test]
fn the_report_of_a_pod_that_is_not_evicted_ends_when_it_has_its_rules() {
    let node = Node::with(&running());
    node.api.state().evict = Answer::Refusal(403, POLICY);
    let controller = node.auditing(&["--mode=delete"]);
    until("the Event", || !node.events().is_empty());
    assert_eq!(node.events()[0]["type"], "Warning");
    // Reports of earlier controllers may be about this pod.
    assert!(node.api.events().iter().all(|event| event["action"] != "Audited"));
    add(&node, "native", "9999");
    until("the Event that ends the other", || node.events().len() == 2);
    let event = &node.events()[1];
    assert_eq!((&event["type"], &event["action"]), (&json!("Normal"), &json!("Auditing")));
    assert_eq!(event["reason"], "LinkerdCNIRulesMissing");
    assert_eq!(event["regarding"]["uid"], "uid-of-web-1");
    assert_eq!(controller.metric("pods_repaired_total"), 0);
}

#[test]
fn running_pod_is_not_deleted_if_its_eviction_is_rejected() {
    for evict in [NOT_PERMITTED, WEBHOOK, POLICY] {
        let node = Node::with(&running());
        node.api.state().evict = Answer::Refusal(403, evict);
        let controller = node.auditing(&["--mode=delete"]);
        let deleted = || node.api.deleted();
        until("the pod is deleted or reported", || {
            !deleted().is_empty() || !node.events().is_empty()
        });
        assert!(deleted().is_empty(), "deleted after {evict}");
        assert_eq!(node.events()[0]["reason"], "LinkerdCNIRulesMissing");
        assert_eq!(node.events()[0]["action"], "Skipping");
        controller.until_metric_reaches("audits_total", 3);
        assert_eq!(controller.metric("pods_skipped_total"), 1, "reported once: {evict}");
        assert_eq!(controller.metric("pods_deleted_total"), 0);
    }
}

#[test]
fn pods_are_evicted_instead_of_deleted_if_evictions_are_allowed() {
    let api = Api::start();
    api.state().evict = Answer::Status(201);
    let controller = Controller::watching(&api);
    api.modify(&stranded("web-1"));
    controller.until_metric_is("pods_deleted_total", 1);
    let eviction = &api.received(|request| request.is_eviction())[0].body;
    let preconditions = json!({"uid": "uid-of-web-1", "resourceVersion": "101"});
    let options = json!({"gracePeriodSeconds": 0, "preconditions": preconditions});
    assert_eq!(eviction["deleteOptions"], options);
    assert!(api.deleted().is_empty());
}

#[test]
fn eviction_that_is_rejected_because_of_overload_is_retried_and_not_reported() {
    let api = Api::start();
    api.state().evict = Answer::Refusal(429, "Too many requests, please try again later.");
    api.state().pods = vec![stranded("web-1")];
    let controller = Controller::watching(&api);
    controller.until_metric_is("pods_delete_errors_total", 1);
    assert_eq!(api.events().len(), 0);
    api.state().evict = Answer::Status(201);
    controller.until_metric_is("pods_deleted_total", 1);
    assert_eq!(controller.metric("pods_skipped_total"), 0);
}
