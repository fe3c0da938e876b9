//! Runs the built repair controller against a fake API server, and in real network
//! namespaces, which needs root.
#![allow(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

mod api;
mod controller;
mod in_place;
mod lists;
mod modes;
#[path = "../support/namespaces.rs"]
mod namespaces;
mod outputs;
#[path = "../support/promtool.rs"]
mod promtool;
#[allow(dead_code, reason = "the agent's tests use TLS")]
#[path = "../support/server.rs"]
mod server;
#[path = "../support/until.rs"]
mod until;
#[allow(dead_code, reason = "the plugin's tests use all of it")]
#[path = "../support/unwritable.rs"]
mod unwritable;

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use api::{Answer, Api};
use controller::{BINARY, Controller};
use until::until;

fn pod(name: &str, validator: Value) -> Value {
    let mut validator = validator;
    validator["name"] = json!("linkerd-network-validator");
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "emojivoto",
            "name": name,
            "uid": format!("uid-of-{name}"),
            "resourceVersion": "101",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"linkerd.io/proxy-version": "edge-1"},
            "labels": {"linkerd.io/control-plane-ns": "linkerd"},
            "ownerReferences": [{"uid": format!("owner-of-{name}"), "controller": true}],
        },
        "spec": {"initContainers": [{"name": "linkerd-network-validator"}]},
        "status": {"phase": "Pending", "initContainerStatuses": [validator]},
    })
}

fn ended(code: i32) -> Value {
    json!({"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": code}}})
}

fn stranded(name: &str) -> Value {
    pod(name, ended(95))
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/emojivoto/pods/{name}")
}

#[test]
fn pods_stranded_before_the_controller_started_are_deleted_with_an_event() {
    let api = Api::start();
    let healthy = pod("healthy", json!({"ready": true}));
    api.state().pods = vec![healthy, stranded("web-1"), stranded("web-2")];
    let controller = Controller::start(&api);
    controller.counts("pods_deleted_total", 2);
    controller.counts("events_publish_latency_seconds_count", 2);
    assert_eq!(api.deleted(), [path("web-1"), path("web-2")]);

    let delete = &api.requests(|request| request.method == "DELETE")[0];
    let preconditions = json!({"uid": "uid-of-web-1", "resourceVersion": "101"});
    let options = json!({"gracePeriodSeconds": 0, "preconditions": preconditions});
    assert_eq!(delete.body, options);
    assert_eq!(delete.token(), "first");

    let event = &api.requests(|request| request.is_event())[0];
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
    promtool::assert_clean(&controller.get("/metrics").1);
    until("ready", || controller.get("/ready").1 == "ready\n");
    let list = &api.requests(|request| request.is_list())[0].path;
    assert!(list.contains("spec%2EnodeName%3Dnode%2D1"), "{list}");
}

#[test]
fn only_stranded_pods_are_deleted_on_watch_events() {
    let api = Api::start();
    let _controller = Controller::watching(&api);
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
fn pods_of_other_nodes_are_never_deleted_even_if_the_api_server_sends_them() {
    let api = Api::start();
    let on = |node: &str, name: &str| {
        let mut pod = stranded(name);
        pod["spec"]["nodeName"] = json!(node);
        pod
    };
    api.state().pods = vec![on("node-2", "web-1"), on("node-1", "web-2")];
    let controller = Controller::watching(&api);
    api.send("MODIFIED", &on("node-2", "web-3"));
    api.send("MODIFIED", &on("node-1", "web-4"));
    controller.counts("pods_deleted_total", 2);
    assert_eq!(api.deleted(), [path("web-2"), path("web-4")]);
}

#[test]
fn an_unrepaired_pod_is_listed_again_although_every_watch_ends_early() {
    let api = Api::start();
    let controller = Controller::watching(&api);
    api.state().delete = Answer::Status(500);
    api.send("MODIFIED", &stranded("web-1"));
    controller.counts("pods_delete_errors_total", 1);
    api.state().delete = Answer::Status(200);
    api.state().pods = vec![stranded("web-1")];
    let began = Instant::now();
    while controller.metric("pods_deleted_total") == 0 {
        assert!(began.elapsed() < Duration::from_secs(90), "not in time");
        api.send("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
        api.break_watches();
        thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(api.requests(|request| request.is_list()).len(), 2);
}

#[test]
fn failed_deletions_are_counted_and_publish_no_event() {
    let api = Api::start();
    let controller = Controller::watching(&api);
    for (name, answer, metric) in [
        ("forbidden", Answer::Status(403), "pods_delete_errors_total"),
        ("late", Answer::Silence, "pods_delete_timeout_total"),
    ] {
        api.state().delete = answer;
        api.send("MODIFIED", &stranded(name));
        controller.counts(metric, 1);
    }
    controller.logs("WARN Error deleting pod");
    // The failures cause a list at the next event. Unlike the API server, the fake one loses a pod
    // that it sends between the end of the old watch and that list.
    let watches = || api.requests(|request| request.is_watch()).len();
    let before = watches();
    until("the pods are listed and watched again", || {
        api.send_now("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
        watches() > before
    });
    for (name, code) in [("gone", 404), ("another-by-now", 409)] {
        api.state().delete = Answer::Status(code);
        api.send("MODIFIED", &stranded(name));
        until(name, || api.deleted().contains(&path(name)));
    }
    api.state().delete = Answer::Status(200);
    api.send("MODIFIED", &stranded("fine"));
    controller.counts("events_publish_latency_seconds_count", 1);
    assert_eq!(controller.metric("pods_delete_errors_total"), 1);
    assert_eq!(controller.metric("pods_delete_timeout_total"), 1);
    assert_eq!(controller.metric("pods_deleted_total"), 1);
    assert_eq!(api.requests(|request| request.is_event()).len(), 1);
}

#[test]
fn events_that_cannot_be_published_are_counted() {
    let api = Api::start();
    let controller = Controller::watching(&api);
    api.state().event = Answer::Status(403);
    api.send("MODIFIED", &stranded("a"));
    controller.counts("events_publish_errors_total", 1);
    api.state().event = Answer::Silence;
    api.send("MODIFIED", &stranded("b"));
    controller.counts("events_publish_timeouts_total", 1);
    assert_eq!(controller.metric("pods_deleted_total"), 2);
}

#[test]
fn a_replacement_that_is_stranded_again_is_held_for_a_minute() {
    let api = Api::start();
    let controller = Controller::watching(&api);
    let owned = |name, created| {
        let mut pod = stranded(name);
        pod["metadata"]["ownerReferences"] = json!([{"uid": "replica-set", "controller": true}]);
        pod["metadata"]["creationTimestamp"] = json!(created);
        pod
    };
    api.send("MODIFIED", &owned("first", "2026-01-01T00:00:00Z"));
    controller.counts("pods_deleted_total", 1);
    api.send("MODIFIED", &owned("replacement", "2999-01-01T00:00:00Z"));
    api.send("MODIFIED", &owned("sibling", "2026-01-01T00:00:01Z"));
    controller.counts("pods_deleted_total", 2);
    assert_eq!(controller.metric("pods_held_total"), 1);
    assert_eq!(api.deleted(), [path("first"), path("sibling")]);
    // The held pod is listed again, but only after the hold: an earlier list is useless.
    let lists = || api.requests(|request| request.is_list()).len();
    let (before, held) = (lists(), Instant::now());
    while lists() == before {
        assert!(held.elapsed() < Duration::from_secs(90), "not in time");
        api.send("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
        thread::sleep(Duration::from_secs(1));
    }
    assert!(held.elapsed() > Duration::from_secs(50), "too early");
}

#[test]
fn the_admin_server_on_all_addresses_serves_both_families() {
    let api = Api::start();
    let controller = Controller::at("[::]:0", &api, |_| {});
    for host in ["127.0.0.1", "[::1]"] {
        let address = format!("{host}:{}", controller.port());
        assert_eq!(Controller::get_from(&address, "/live").1, "alive\n", "{host}");
    }
}

#[test]
fn pods_that_exceed_the_queue_are_dropped_and_counted() {
    let api = Api::start();
    let controller = Controller::watching(&api);
    api.state().delete = Answer::Silence;
    for name in 0..40 {
        api.send("MODIFIED", &stranded(&format!("web-{name}")));
    }
    until("the queue overflows", || controller.metric("queue_overflow_total") > 0);
}

#[test]
fn all_pods_of_a_list_longer_than_the_queue_are_repaired() {
    let api = Api::start();
    let pods = (0..200).map(|name| stranded(&format!("web-{name}")));
    api.state().pods = pods.collect();
    let controller = Controller::with(&api, &["--rate=1000"]);
    controller.counts("pods_deleted_total", 200);
    assert_eq!(controller.metric("queue_overflow_total"), 0);
}

#[test]
fn a_watch_continues_from_the_last_version_of_the_previous_watch() {
    let api = Api::start();
    let controller = Controller::watching(&api);
    let watched_from = |version: &str| {
        let version = format!("resourceVersion={version}");
        !api.requests(|request| request.is_watch() && request.path.ends_with(&version)).is_empty()
    };
    assert!(watched_from("100"));
    api.send("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
    api.end_watches();
    until("a watch from the bookmark", || watched_from("150"));

    api.send("BOOKMARK", &json!({"metadata": {"resourceVersion": "160"}}));
    api.crash();
    controller.logs("Cannot watch the pods of this node");
    api.up();
    until("a watch after the restart", || watched_from("160"));
    api.send("MODIFIED", &stranded("web-1"));
    controller.counts("pods_deleted_total", 1);
    assert_eq!(api.requests(|request| request.is_list()).len(), 1);
    assert!(controller.metric("watch_errors_total") >= 1);
    assert_eq!(controller.get("/ready").1, "ready\n");
}

#[test]
fn an_expired_resource_version_causes_a_new_list() {
    let api = Api::start();
    let controller = Controller::watching(&api);
    // No watch event reports this pod: only a new list finds it.
    api.state().pods = vec![stranded("web-1")];
    api.send("ERROR", &json!({"kind": "Status", "status": "Failure", "code": 410}));
    controller.counts("pods_deleted_total", 1);

    api.state().pods = vec![stranded("web-2")];
    api.state().watch = Answer::Status(410);
    api.end_watches();
    until("the second one is deleted", || api.deleted().contains(&path("web-2")));
}

#[test]
fn a_rotated_token_is_used_for_the_next_request() {
    let api = Api::start();
    let controller = Controller::watching(&api);
    api.state().token = Some("second".into());
    api.end_watches();
    controller.logs("HTTP 401");
    controller.rotate("second\n");
    until("a watch with the new token", || {
        let has_new_token = |request: &api::Request| request.token() == "second";
        !api.requests(has_new_token).is_empty()
    });
    api.send("MODIFIED", &stranded("web-1"));
    controller.counts("pods_deleted_total", 1);
    assert!(!controller.log().contains("second"), "no token in the log");
}

#[test]
fn the_controller_is_ready_only_after_the_first_list() {
    let api = Api::start();
    api.state().list = Answer::Status(403);
    let controller = Controller::start(&api);
    controller.logs("says 403");
    let (status, body) = controller.get("/ready");
    assert_eq!(status, "HTTP/1.1 500 Internal Server Error");
    assert!(body.starts_with("not ready: the node's pods are not listed yet: "));
    assert!(body.contains("HTTP 403: says 403"), "{body}");
    assert_eq!(controller.get("/live").1, "alive\n");
    api.state().list = Answer::Status(200);
    until("ready", || controller.get("/ready").1 == "ready\n");
}

type Case = (&'static str, fn(&Api), Signal);

#[test]
fn signals_stop_the_controller_at_once_in_every_state() {
    let watched = |_: &Api| {};
    let hung = |api: &Api| api.state().list = Answer::Silence;
    let waiting = |api: &Api| api.crash();
    let deleting = |api: &Api| {
        api.state().pods = (0..9).map(|i| stranded(&i.to_string())).collect();
        api.state().delete = Answer::Silence;
    };
    let cases: [Case; 4] = [
        ("in a watch", watched, Signal::SIGTERM),
        ("in a list without a response", hung, Signal::SIGTERM),
        ("in a back-off", waiting, Signal::SIGINT),
        ("in a deletion", deleting, Signal::SIGTERM),
    ];
    for (name, prepare, signal) in cases {
        let api = Api::start();
        prepare(&api);
        let mut controller = Controller::start(&api);
        until(name, || match name {
            "in a watch" => !api.requests(|request| request.is_watch()).is_empty(),
            "in a back-off" => controller.log().contains("retrying in"),
            "in a deletion" => !api.deleted().is_empty(),
            _ => !api.requests(|request| request.is_list()).is_empty(),
        });
        let (status, took) = controller.end(signal);
        assert!(status.success(), "{name}: {status}");
        println!("ended {name} after {took:?}");
        assert!(took < Duration::from_secs(20), "{name}: {took:?}");
    }
}

#[test]
fn options_of_upstreams_command_line_have_their_effect() {
    let api = Api::start();
    let _controller = Controller::with(
        &api,
        &[
            "--context=linkerd-cni-context",
            "--cluster=c",
            "--user=second",
            "--as=linkerd-cni",
            "--as-group=a",
            "--as-group=b",
            "--kube-api-response-headers-timeout=9s",
        ],
    );
    until("a list", || !api.requests(|request| request.is_list()).is_empty());
    let list = &api.requests(|request| request.is_list())[0];
    assert_eq!(list.token(), "of-second");
    let expected = [
        ("impersonate-user", "linkerd-cni"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut impersonation = list.headers.clone();
    impersonation.retain(|(name, _)| name.starts_with("impersonate-"));
    assert_eq!(impersonation, expected);
}

#[test]
fn errors_name_invalid_and_missing_settings() {
    let node = "--node-name=a";
    let pod = "--controller-pod-name=b";
    for (arguments, code, message) in [
        (&[pod][..], 2, "--node-name"),
        (&[node], 2, "--controller-pod-name"),
        (&[node, pod, "--log-level=loud"], 2, "\"loud\" is not a log level"),
        (&[node, pod, "--log-format=xml"], 2, "\"xml\" is not a log format"),
        (&[node, pod, "--admin-addr=x"], 2, "--admin-addr"),
        (&[node, pod, "--mode=kill"], 2, "\"kill\" is not a repair mode"),
        (&[node, pod, "--rate=0"], 2, "--rate"),
        (&[node, pod], 1, "KUBERNETES_SERVICE_HOST"),
        (&[node, pod, "--kubeconfig=/x", "--admin-addr=192.0.2.1:1"], 1, "cannot listen on"),
    ] {
        let output = Command::new(BINARY).env_clear().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
    }
}
