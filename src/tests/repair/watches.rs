//! The watch on pods: versions, new lists, and readiness.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::Answer;
use crate::controller::Controller;
use crate::until::until;
use crate::{path, stranded};

#[test]
fn an_unrepaired_pod_is_listed_again_although_every_watch_ends_early() {
    let (api, controller) = Controller::watched();
    api.state().delete = Answer::Status(500);
    api.modify(&stranded("web-1"));
    controller.counts("pods_delete_errors_total", 1);
    api.state().delete = Answer::Status(200);
    api.state().pods = vec![stranded("web-1")];
    let began = Instant::now();
    while controller.metric("pods_deleted_total") == 0 {
        assert!(began.elapsed() < Duration::from_secs(90), "not in time");
        api.bookmark();
        api.break_watches();
        thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(api.lists(), 2);
}

#[test]
fn a_watch_continues_from_the_last_version_of_the_previous_watch() {
    let (api, controller) = Controller::watched();
    let watched_from = |version: &str| {
        let version = format!("resourceVersion={version}");
        !api.received(|request| request.is_watch() && request.path.ends_with(&version)).is_empty()
    };
    assert!(watched_from("100"));
    api.bookmark();
    api.end_watches();
    until("a watch from the bookmark", || watched_from("150"));

    // A pod, not a bookmark: its deletion shows that the controller has read the event before the crash.
    let mut first = stranded("web-0");
    first["metadata"]["resourceVersion"] = json!("160");
    api.modify(&first);
    controller.counts("pods_deleted_total", 1);
    api.crash();
    controller.logs("Cannot watch the pods of this node");
    api.up();
    until("a watch after the restart", || watched_from("160"));
    api.modify(&stranded("web-1"));
    controller.counts("pods_deleted_total", 2);
    assert_eq!(api.lists(), 1);
    assert!(controller.metric("watch_errors_total") >= 1);
    assert_eq!(controller.get("/ready").1, "ready\n");
}

#[test]
fn an_expired_resource_version_causes_a_new_list() {
    let (api, controller) = Controller::watched();
    // No watch event reports this pod: only a new list finds it.
    api.state().pods = vec![stranded("web-1")];
    api.send("ERROR", &json!({"kind": "Status", "status": "Failure", "code": 410}));
    controller.counts("pods_deleted_total", 1);

    api.state().pods = vec![stranded("web-2")];
    api.state().watch = Answer::Status(410);
    api.end_watches();
    until("the second one is deleted", || api.deleted().contains(&path("web-2")));
}
