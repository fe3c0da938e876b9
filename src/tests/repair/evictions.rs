//! Mode `delete` where evictions are permitted: disruption budgets.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::api::{Answer, Api};
use crate::controller::Controller;
use crate::stranded;
use crate::until::until;

/// Message of the API server when a disruption budget rejects an eviction.
const BUDGET: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

#[test]
fn pods_are_evicted_rather_than_deleted_where_evictions_are_allowed() {
    let api = Api::start();
    api.state().evict = Answer::Status(201);
    let controller = Controller::watching(&api);
    api.modify(&stranded("web-1"));
    controller.counts("pods_deleted_total", 1);
    let eviction = &api.received(|request| request.is_eviction())[0].body;
    assert_eq!(
        eviction["deleteOptions"],
        json!({
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": "uid-of-web-1", "resourceVersion": "101"},
        })
    );
    assert!(api.deleted().is_empty());
}

#[test]
fn a_pod_protected_by_a_disruption_budget_is_skipped_and_reported_once() {
    let api = Api::start();
    api.state().evict = Answer::Refusal(429, BUDGET);
    let controller = Controller::watching(&api);
    for _ in 0..3 {
        api.modify(&stranded("web-1"));
    }
    api.modify(&stranded("web-2"));
    controller.counts("pods_skipped_total", 2);
    assert!(api.deleted().is_empty());
    until("an Event on each pod", || api.events().len() == 2);
    assert_eq!(api.events()[0]["type"], "Warning");
    assert_eq!(api.events()[0]["note"], format!("Pod skipped for now: {BUDGET}"));
    assert_eq!(controller.metric("pods_deleted_total"), 0);
}

#[test]
fn a_pod_protected_by_a_disruption_budget_is_evicted_later_without_another_report() {
    let api = Api::start();
    api.state().evict = Answer::Refusal(429, BUDGET);
    api.state().pods = vec![stranded("web-1")];
    let controller = Controller::watching(&api);
    controller.counts("pods_skipped_total", 1);
    api.modify(&stranded("web-1"));
    api.state().evict = Answer::Status(201);
    thread::sleep(Duration::from_secs(61));
    assert_eq!(api.evictions().len(), 1);
    api.bookmark();
    controller.counts("pods_deleted_total", 1);
    until("one Event for the skipped pod, one for the eviction", || api.events().len() == 2);
}

#[test]
fn an_eviction_rejected_by_an_overloaded_api_server_is_retried_and_not_reported() {
    let api = Api::start();
    api.state().evict = Answer::Refusal(429, "Too many requests, please try again later.");
    api.state().pods = vec![stranded("web-1")];
    let controller = Controller::watching(&api);
    controller.counts("pods_delete_errors_total", 1);
    assert_eq!(api.events().len(), 0);
    api.state().evict = Answer::Status(201);
    until("it is deleted", || {
        api.bookmark_now();
        controller.metric("pods_deleted_total") == 1
    });
    assert_eq!(controller.metric("pods_skipped_total"), 0);
}
