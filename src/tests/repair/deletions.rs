//! Which stranded pods mode `delete` deletes, and what it reports.

use std::thread;
use std::time::{Duration, Instant};

use linkerd2_cni::kube::pod_stream::MAX_PODS;
use serde_json::json;
use testkit::api::ApiFault;

use crate::api::{Answer, Api};
use crate::controller::Controller;
use crate::modes::changed;
use crate::until::until;
use crate::{ended, path, pod, stranded};

#[test]
fn pods_stranded_before_the_controller_started_are_deleted_with_an_event() {
    let api = Api::start();
    let healthy = pod("healthy", json!({"ready": true}));
    api.state().pods = vec![healthy, stranded("web-1"), stranded("web-2")];
    let controller = Controller::start(&api);
    controller.counts("pods_deleted_total", 2);
    controller.counts("events_publish_latency_seconds_count", 2);
    assert_eq!(api.deleted(), [path("web-1"), path("web-2")]);

    let delete = &api.received(|request| request.method == "DELETE")[0];
    let preconditions = json!({"uid": "uid-of-web-1", "resourceVersion": "101"});
    let options = json!({"gracePeriodSeconds": 0, "preconditions": preconditions});
    assert_eq!(delete.body, options);
    assert_eq!(delete.token(), "first");

    let event = &api.received(|request| request.is_event())[0];
    let events = "/apis/events.k8s.io/v1/namespaces/emojivoto/events";
    assert_eq!(event.path, events);
    let body = &event.body;
    assert_eq!(body["reason"], "LinkerdCNINotConfigured");
    assert_eq!(body["action"], "Deleting");
    assert_eq!(body["regarding"]["uid"], "uid-of-web-1");
    assert_eq!(body["reportingController"], "linkerd-cni-repair-controller");
    assert_eq!(body["reportingInstance"], "linkerd-cni-x");

    controller.logs("Deleted pod namespace=\"emojivoto\" name=\"web-1\"");
    controller.counts("pods_delete_latency_seconds_count", 2);
    crate::promtool::assert_clean(&controller.get("/metrics").1);
    until("ready", || controller.get("/ready").1 == "ready\n");
    let list = &api.received(|request| request.is_list())[0].path;
    assert!(list.contains("spec%2EnodeName%3Dnode%2D1"), "{list}");
}

#[test]
fn only_stranded_pods_of_the_own_node_are_deleted_on_watch_events() {
    // The API server may send more than it is asked for.
    let elsewhere = |name| changed(name, "/spec/nodeName", json!("node-2"));
    let api = Api::start();
    api.state().pods = vec![elsewhere("listed")];
    let _controller = Controller::watching(&api);
    let mut terminating = stranded("going");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut passed = stranded("passed");
    passed["status"]["initContainerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 0}});
    let first_failure = json!({"state": {"terminated": {"exitCode": 95}}});
    for (kind, pod) in [
        ("MODIFIED", pod("other-reason", ended(1))),
        ("MODIFIED", terminating),
        ("MODIFIED", elsewhere("on-another-node")),
        ("MODIFIED", passed),
        ("DELETED", stranded("gone")),
        ("ADDED", stranded("added")),
        ("MODIFIED", pod("first-failure", first_failure)),
        ("MODIFIED", stranded("modified")),
    ] {
        api.send(kind, &pod);
    }
    until("the last one is deleted", || api.deleted().contains(&path("modified")));
    let expected = [path("added"), path("first-failure"), path("modified")];
    assert_eq!(api.deleted(), expected);
}

#[test]
fn failed_deletions_are_counted_and_publish_no_event() {
    let (api, controller) = Controller::watched();
    for (name, answer, metric) in [
        ("forbidden", Answer::Status(403), "pods_delete_errors_total"),
        ("late", Answer::Fault(ApiFault::Hang), "pods_delete_timeout_total"),
    ] {
        api.state().delete = answer;
        api.modify(&stranded(name));
        controller.counts(metric, 1);
    }
    controller.logs("WARN Error deleting pod");
    // The failures cause a list at the next event. Unlike the API server, the fake one loses a pod
    // that it sends between the end of the old watch and that list.
    let watches = || api.watches().len();
    let before = watches();
    until("the pods are listed and watched again", || {
        api.bookmark_now();
        watches() > before
    });
    for (name, code) in [("gone", 404), ("another-by-now", 409)] {
        api.state().delete = Answer::Status(code);
        api.modify(&stranded(name));
        until(name, || api.deleted().contains(&path(name)));
    }
    api.state().delete = Answer::Status(200);
    api.modify(&stranded("fine"));
    controller.counts("events_publish_latency_seconds_count", 1);
    assert_eq!(controller.metric("pods_delete_errors_total"), 1);
    assert_eq!(controller.metric("pods_delete_timeout_total"), 1);
    assert_eq!(controller.metric("pods_deleted_total"), 1);
    assert_eq!(api.received(|request| request.is_event()).len(), 1);
}

#[test]
fn events_that_cannot_be_published_are_counted() {
    let (api, controller) = Controller::watched();
    api.state().event = Answer::Status(403);
    api.modify(&stranded("a"));
    controller.counts("events_publish_errors_total", 1);
    api.state().event = Answer::Fault(ApiFault::Hang);
    api.modify(&stranded("b"));
    controller.counts("events_publish_timeouts_total", 1);
    assert_eq!(controller.metric("pods_deleted_total"), 2);
}

#[test]
fn a_replacement_that_is_stranded_again_is_held_for_a_minute() {
    let (api, controller) = Controller::watched();
    let owned = |name, created| {
        let mut pod = stranded(name);
        pod["metadata"]["ownerReferences"] = json!([{"uid": "replica-set", "controller": true}]);
        pod["metadata"]["creationTimestamp"] = json!(created);
        pod
    };
    api.modify(&owned("first", "2026-01-01T00:00:00Z"));
    controller.counts("pods_deleted_total", 1);
    api.modify(&owned("replacement", "2999-01-01T00:00:00Z"));
    api.modify(&owned("sibling", "2026-01-01T00:00:01Z"));
    controller.counts("pods_deleted_total", 2);
    assert_eq!(controller.metric("pods_held_total"), 1);
    assert_eq!(api.deleted(), [path("first"), path("sibling")]);
    // The held pod is listed again and deleted, but only after the hold: an earlier list is useless.
    api.state().pods = vec![owned("replacement", "2999-01-01T00:00:00Z")];
    let (before, held) = (api.lists(), Instant::now());
    while api.lists() == before {
        assert!(held.elapsed() < Duration::from_secs(90), "not in time");
        api.bookmark();
        thread::sleep(Duration::from_secs(1));
    }
    assert!(held.elapsed() > Duration::from_secs(50), "too early");
    controller.counts("pods_deleted_total", 3);
}

#[test]
fn a_pod_that_exceeds_the_queue_is_dropped_and_counted_and_causes_a_list() {
    let api = Api::start();
    let controller = Controller::with(&api, &["--rate=1"]);
    until("the watch has begun", || !api.watches().is_empty());
    // The first repair uses the budget up: the second pod waits in the queue for a minute, and the queue only fills.
    api.modify(&stranded("first"));
    api.modify(&stranded("second"));
    controller.counts("budget_waits_total", 1);
    let send = |number: usize| api.modify(&stranded(&format!("web-{number}")));
    (1..MAX_PODS).for_each(send);
    let last = MAX_PODS - 1;
    controller.logs(&format!("Pod is stranded namespace=\"emojivoto\" name=\"web-{last}\""));
    let lists = || api.lists();
    assert_eq!((controller.metric("queue_overflow_total"), lists()), (0, 1));
    send(MAX_PODS);
    controller.counts("queue_overflow_total", 1);
    until("the pods are listed again", || {
        api.bookmark_now();
        lists() == 2
    });
    assert_eq!(api.deleted(), [path("first")]);
}

#[test]
fn all_pods_of_a_long_list_are_repaired() {
    let api = Api::start();
    let pods = (0..200).map(|name| stranded(&format!("web-{name}")));
    api.state().pods = pods.collect();
    let controller = Controller::with(&api, &["--rate=1000"]);
    controller.counts("pods_deleted_total", 200);
    assert_eq!(controller.metric("queue_overflow_total"), 0);
}
