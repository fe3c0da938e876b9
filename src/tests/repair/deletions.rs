//! Tests which stranded pods mode `delete` deletes, and which it only reports.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use linkerd2_cni::kube::pod_list::MAX_PODS;
use serde_json::{Value, json};
use testkit::api::ApiFault;
use testkit::table;

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
    controller.until_metric_is("pods_deleted_total", 2);
    controller.until_metric_is("events_publish_latency_seconds_count", 2);
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

    controller.until_logged("Deleted pod namespace=\"emojivoto\" name=\"web-1\"");
    controller.until_metric_is("pods_delete_latency_seconds_count", 2);
    crate::promtool::assert_clean(&controller.get("/metrics").1);
    until("ready", || controller.get("/ready").1 == "ready\n");
    let list = &api.received(|request| request.is_list())[0].path;
    assert!(list.contains("spec%2EnodeName%3Dnode%2D1"), "{list}");
}

#[test]
fn only_stranded_pods_are_deleted_on_watch_events() {
    let (api, _controller) = Controller::watched();
    let mut terminating = stranded("going");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut passed = stranded("passed");
    passed["status"]["initContainerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 0}});
    let first_failure = json!({"state": {"terminated": {"exitCode": 95}}});
    for (kind, pod) in [
        ("MODIFIED", pod("other-reason", ended(1))),
        ("MODIFIED", terminating),
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
fn failed_deletions_are_counted_and_retried_without_list_or_event() {
    for (name, (answer, metric)) in table::named([
        ("a rejected deletion", (Answer::Status(403), "pods_delete_errors_total")),
        ("a hanging deletion", (Answer::Fault(ApiFault::Hang), "pods_delete_timeout_total")),
    ]) {
        let (api, controller) = Controller::watched();
        api.state().delete = answer;
        api.modify(&stranded("web-1"));
        controller.until_metric_reaches(metric, 2);
        controller.until_logged("WARN Error deleting pod");
        assert!(api.events().is_empty(), "{name}");
        api.state().delete = Answer::Status(200);
        controller.until_metric_is("events_publish_latency_seconds_count", 1);
        assert_eq!((controller.metric("pods_deleted_total"), api.lists()), (1, 1), "{name}");
    }
}

#[test]
fn deletion_of_a_pod_that_is_gone_or_replaced_is_neither_counted_nor_retried() {
    let (api, controller) = Controller::watched();
    for (name, code) in [("gone", 404), ("replaced", 409)] {
        api.state().delete = Answer::Status(code);
        api.modify(&stranded(name));
        until(name, || api.deleted().contains(&path(name)));
    }
    thread::sleep(Duration::from_secs(6));
    api.state().delete = Answer::Status(200);
    api.modify(&stranded("fine"));
    controller.until_metric_is("events_publish_latency_seconds_count", 1);
    assert_eq!(controller.metric("pods_delete_errors_total"), 0);
    assert_eq!(api.deleted(), ["gone", "replaced", "fine"].map(path));
}

#[test]
fn events_that_cannot_be_published_are_counted_and_published_later() {
    let (api, controller) = Controller::watched();
    api.state().event = Answer::Status(403);
    api.modify(&stranded("a"));
    controller.until_metric_reaches("events_publish_errors_total", 1);
    api.state().event = Answer::Fault(ApiFault::Hang);
    api.modify(&stranded("b"));
    controller.until_metric_is("pods_deleted_total", 2);
    controller.until_metric_reaches("events_publish_timeouts_total", 1);
    let later = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    api.state().event = Answer::Status(201);
    controller.until_metric_is("events_publish_latency_seconds_count", 2);
    let events = api.events();
    let posted = [1, 2].map(|last| &events[events.len() - last]);
    let names = posted.map(|event| &event["regarding"]["name"]);
    assert!(names.contains(&&json!("a")) && names.contains(&&json!("b")), "{names:?}");
    for event in posted {
        let happened = event["eventTime"].as_str().unwrap();
        assert!(*happened < *later, "dated when it was posted: {happened}, not before {later}");
    }
}

/// Returns the names of the pods of the Events that the API server received.
fn names_in_events(api: &Api) -> Vec<String> {
    let events = api.events();
    let names = events.iter().map(|event| event["regarding"]["name"].as_str().unwrap().to_owned());
    names.collect()
}

/// A tenant can set a ResourceQuota in a namespace of its own.
#[test]
fn event_that_is_denied_in_one_namespace_does_not_delay_those_of_others() {
    let (api, controller) = Controller::watched();
    api.state().full_namespaces = vec!["tenant".to_owned()];
    for name in ["denied-1", "denied-2"] {
        api.modify(&changed(name, "/metadata/namespace", json!("tenant")));
    }
    until("two denials", || names_in_events(&api).contains(&"denied-2".to_owned()));
    // The next Events fail for another reason, so they wait behind the denied ones.
    api.state().event = Answer::Status(503);
    for name in ["a", "b"] {
        api.modify(&stranded(name));
    }
    until("two failures", || names_in_events(&api).contains(&"b".to_owned()));
    let mut state = api.state();
    state.requests.clear();
    state.event = Answer::Status(201);
    drop(state);
    controller.until_metric_is("events_publish_latency_seconds_count", 2);
    let names = names_in_events(&api);
    for name in ["a", "b"] {
        assert_eq!(names.iter().filter(|posted| *posted == name).count(), 1, "{names:?}");
    }
    api.state().full_namespaces.clear();
    controller.until_metric_is("events_publish_latency_seconds_count", 4);
}

#[test]
fn replacement_that_is_stranded_again_is_deleted_only_after_a_minute() {
    let (api, controller) = Controller::watched();
    let owned = |name, created| {
        let mut pod = stranded(name);
        pod["metadata"]["ownerReferences"] = json!([{"uid": "replica-set", "controller": true}]);
        pod["metadata"]["creationTimestamp"] = json!(created);
        pod
    };
    api.modify(&owned("first", "2026-01-01T00:00:00Z"));
    controller.until_metric_is("pods_deleted_total", 1);
    api.modify(&owned("replacement", "2999-01-01T00:00:00Z"));
    api.modify(&owned("sibling", "2026-01-01T00:00:01Z"));
    controller.until_metric_is("pods_deleted_total", 2);
    assert_eq!(controller.metric("pods_held_total"), 1);
    assert_eq!(api.deleted(), [path("first"), path("sibling")]);
    // The replacement is deleted after a minute.
    let held = Instant::now();
    controller.until_metric_is("pods_deleted_total", 3);
    assert!(held.elapsed() > Duration::from_secs(50), "too early");
    assert_eq!(api.lists(), 1);
}

#[test]
fn pod_that_exceeds_the_queue_is_dropped_and_counted() {
    let api = Api::start();
    let controller = Controller::with(&api, &["--rate=1"]);
    until("the watch has begun", || !api.watches().is_empty());
    // The first repair uses up the budget. The second pod then waits for a minute, so that further
    // pods only fill the queue.
    api.modify(&stranded("first"));
    api.modify(&stranded("second"));
    controller.until_logged("The repair budget is used up");
    let send = |number: usize| api.modify(&stranded(&format!("web-{number}")));
    for number in 1..MAX_PODS {
        send(number);
    }
    let last = MAX_PODS - 1;
    controller
        .until_logged(&format!("Pod is stranded namespace=\"emojivoto\" name=\"web-{last}\""));
    assert_eq!(controller.metric("queue_overflow_total"), 0);
    send(MAX_PODS);
    controller.until_metric_is("queue_overflow_total", 1);
    assert_eq!(api.deleted(), [path("first")]);
}

/// Returns a stranded pod with these owners.
fn owned_by(name: &str, owners: Value) -> Value {
    changed(name, "/metadata/ownerReferences", owners)
}

#[test]
fn mode_delete_reports_a_pod_without_a_controller_once() {
    let api = Api::start();
    api.state().evict = Answer::Status(201);
    let controller = Controller::watching(&api);
    let unowned = owned_by("unowned", json!([]));
    let owned = owned_by("owned", json!([{"uid": "a", "controller": false}, {"uid": "b"}]));
    for pod in [&unowned, &owned, &unowned, &owned] {
        api.modify(pod);
    }
    // The queue is ordered, so when this pod is evicted, the others have been handled.
    api.modify(&stranded("web-1"));
    controller.until_metric_is("pods_deleted_total", 1);
    assert_eq!(api.evictions(), [path("web-1") + "/eviction"]);
    assert!(api.deleted().is_empty());
    assert_eq!(controller.metric("pods_skipped_total"), 2);
    controller
        .until_logged("WARN Pod skipped for now: the pod has no controller that would replace it");
    until("an Event on each pod", || api.events().len() == 3);
    for (event, name) in api.events().iter().zip(["unowned", "owned"]) {
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["action"], "Skipping");
        assert_eq!(event["regarding"]["name"], name);
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("repairController.deleteUnmanaged=true"), "{note}");
    }
    // A new StatefulSet adopts the pods of a deleted one.
    let mut adopted = unowned;
    adopted["metadata"]["ownerReferences"] = json!([{"uid": "new", "controller": true}]);
    api.modify(&adopted);
    controller.until_metric_is("pods_deleted_total", 2);
}

#[test]
fn mode_delete_deletes_a_pod_without_a_controller_if_delete_unmanaged_is_set() {
    let api = Api::start();
    let controller = Controller::with(&api, &["--delete-unmanaged"]);
    api.modify(&owned_by("unowned", json!([])));
    controller.until_metric_is("pods_deleted_total", 1);
    assert_eq!(api.deleted(), [path("unowned")]);
}

#[test]
fn mode_delete_does_not_delete_a_mirror_pod_and_reports_it_once() {
    for arguments in [&[][..], &["--delete-unmanaged"]] {
        let api = Api::start();
        let controller = Controller::with(&api, arguments);
        let node = json!([{"kind": "Node", "uid": "node-1", "controller": true}]);
        for _ in 0..2 {
            api.modify(&owned_by("static", node.clone()));
        }
        // The queue is ordered, so when this pod is deleted, the first one has been handled.
        api.modify(&stranded("web-1"));
        controller.until_metric_is("pods_deleted_total", 1);
        assert_eq!(api.deleted(), [path("web-1")]);
        until("an Event on each pod", || api.events().len() == 2);
        let note = api.events()[0]["note"].as_str().unwrap().to_owned();
        assert!(note.starts_with("Pod skipped for now: it is a static pod"), "{note}");
    }
}
