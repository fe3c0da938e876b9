//! Mode `delete` where evictions are permitted: disruption budgets.

use serde_json::json;

use crate::api::{Answer, Api};
use crate::controller::Controller;
use crate::stranded;
use crate::until::until;

#[test]
fn pods_are_evicted_rather_than_deleted_where_evictions_are_allowed() {
    let api = Api::start();
    api.state().evict = Answer::Status(201);
    let controller = Controller::watching(&api);
    api.modify(&stranded("web-1"));
    controller.counts("pods_deleted_total", 1);
    let eviction = &api.received(|request| request.is_eviction())[0].body;
    let preconditions = json!({"uid": "uid-of-web-1", "resourceVersion": "101"});
    let options = json!({"gracePeriodSeconds": 0, "preconditions": preconditions});
    assert_eq!(eviction["deleteOptions"], options);
    assert!(api.deleted().is_empty());
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
