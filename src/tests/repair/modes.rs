//! The repair modes, the wait for the agent and the repair budget, against the fake API
//! server.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use testkit::api::ApiFault;
use testkit::server::Connection;

use crate::api::{Answer, Api};
use crate::controller::{ANY_PORT, Controller};
use crate::until::until;
use crate::{path, stranded};

/// A stranded pod with `value` at `pointer`.
pub fn changed(name: &str, pointer: &str, value: Value) -> Value {
    let mut pod = stranded(name);
    *pod.pointer_mut(pointer).unwrap() = value;
    pod
}

#[test]
fn rejected_requests_do_not_use_up_the_repair_budget() {
    let api = Api::start();
    // The pods are gone before the controller deletes them.
    api.state().delete = Answer::Status(404);
    // Two in one namespace.
    let controller = Controller::with(&api, &["--rate=4"]);
    for name in 0..5 {
        api.modify(&stranded(&format!("gone-{name}")));
    }
    until("all were tried", || api.deleted().len() == 5);
    api.state().delete = Answer::Status(200);
    api.modify(&stranded("web-1"));
    api.modify(&stranded("web-2"));
    controller.counts("pods_deleted_total", 2);
    assert_eq!(controller.metric("budget_waits_total"), 0);
}

#[test]
fn another_pod_of_the_same_name_is_never_deleted() {
    for (name, object) in [
        ("a new pod", Some(changed("web-0", "/metadata/uid", json!("another")))),
        ("no longer stranded", Some(changed("web-0", "/status/initContainerStatuses", json!([])))),
        ("gone", None),
    ] {
        let api = Api::start();
        api.state().delete = Answer::Status(409);
        if let Some(object) = object {
            api.knows(&object);
        }
        let controller = Controller::watching(&api);
        api.modify(&stranded("web-0"));
        until("it was looked at again", || {
            let again = |request: &crate::api::Request| {
                request.method == "GET" && request.path == path("web-0")
            };
            !api.received(again).is_empty()
        });
        // The queue keeps its order: when the next pod is deleted, the first is finished.
        api.state().delete = Answer::Status(200);
        api.modify(&stranded("web-1"));
        controller.counts("pods_deleted_total", 1);
        assert_eq!(api.deleted(), [path("web-0"), path("web-1")], "{name}");
        assert_eq!(controller.metric("pods_delete_errors_total"), 0, "{name}");
    }
}

#[test]
fn a_stranded_pod_that_changed_meanwhile_is_tried_once_more_with_its_new_version() {
    let api = Api::start();
    let newer = changed("web-0", "/metadata/resourceVersion", json!("105"));
    api.knows(&newer);
    api.state().delete = Answer::Status(409);
    let controller = Controller::watching(&api);
    api.modify(&stranded("web-0"));
    until("two tries", || api.deleted().len() == 2);
    let version = |index: usize| {
        let deletions = api.received(|request| request.method == "DELETE");
        deletions[index].body["preconditions"]["resourceVersion"].clone()
    };
    assert_eq!((version(0), version(1)), (json!("101"), json!("105")));
    api.state().delete = Answer::Status(200);
    // The event may cause the list that finds web-0 again, which replaces the queue.
    api.state().pods = vec![stranded("web-1")];
    api.modify(&stranded("web-1"));
    controller.counts("pods_deleted_total", 1);
    assert_eq!(api.deleted().len(), 3);
}

#[test]
fn a_pod_is_labelled_once_with_its_uid_and_version_as_preconditions() {
    let api = Api::start();
    let controller = Controller::with(&api, &["--mode=label"]);
    api.knows(&stranded("web-1"));
    api.knows(&stranded("web-2"));
    api.modify(&stranded("web-1"));
    controller.counts("pods_labelled_total", 1);
    let mut labelled = stranded("web-1");
    labelled["metadata"]["labels"]["linkerd.io/cni-stranded"] = json!("true");
    api.modify(&labelled);
    api.modify(&stranded("web-2"));
    controller.counts("pods_labelled_total", 2);
    let patches = api.received(|request| request.method == "PATCH");
    assert_eq!(patches.len(), 2);
    assert_eq!(patches[0].path, path("web-1"));
    assert_eq!(
        patches[0].body,
        json!({"metadata": {
            "uid": "uid-of-web-1",
            "resourceVersion": "101",
            "labels": {"linkerd.io/cni-stranded": "true"},
        }})
    );
    assert!(api.deleted().is_empty() && api.evictions().is_empty());
    until("events", || api.events().len() == 2);
    assert_eq!(api.events()[0]["action"], "Labelling");
    assert_eq!(api.events()[0]["type"], "Warning");
}

#[test]
fn mode_report_changes_nothing_and_reports_each_pod_once() {
    let api = Api::start();
    let controller = Controller::with(&api, &["--mode=report"]);
    api.knows(&stranded("web-1"));
    api.knows(&stranded("web-2"));
    for _ in 0..3 {
        api.modify(&stranded("web-1"));
    }
    api.modify(&stranded("web-2"));
    controller.counts("pods_reported_total", 2);
    until("events", || api.events().len() == 2);
    assert_eq!(api.events()[0]["action"], "Reporting");
    let writes = api.received(|request| request.method != "GET" && !request.is_event());
    assert_eq!(writes.len(), 0);
}

#[test]
fn a_pod_that_is_stranded_only_in_a_stale_list_is_neither_reported_nor_labelled() {
    let mut labelled = stranded("labelled");
    labelled["metadata"]["labels"]["linkerd.io/cni-stranded"] = json!("true");
    let well = changed("well", "/status/initContainerStatuses", json!([]));
    for (mode, now, metric) in [
        ("label", labelled, "pods_labelled_total"),
        ("label", well.clone(), "pods_labelled_total"),
        ("report", well, "pods_reported_total"),
    ] {
        let api = Api::start();
        let name = now["metadata"]["name"].as_str().unwrap();
        api.state().pods = vec![stranded(name), stranded("web-1")];
        api.knows(&now);
        api.knows(&stranded("web-1"));
        let controller = Controller::with(&api, &["--mode", mode]);
        controller.counts(metric, 1);
        until("an event", || api.events().len() == 1);
        assert_eq!(api.events()[0]["regarding"]["name"], "web-1");
    }
}

/// Starts a fake agent whose `/ready` succeeds while `ready` is set. Returns its address.
pub fn agent(ready: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let ready = Arc::clone(ready);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut connection = Connection::new(stream, None).unwrap();
            let _ = connection.read_request();
            let _ = match ready.load(Ordering::Relaxed) {
                true => connection.send_response(200, "ready\n"),
                false => connection.send_response(500, "not ready: no binary\n"),
            };
        }
    });
    address
}

#[test]
fn no_pod_is_repaired_before_the_agent_is_ready() {
    let api = Api::start();
    let ready = Arc::default();
    let address = agent(&ready);
    let controller = Controller::with(&api, &["--agent-addr", &address]);
    api.modify(&stranded("web-1"));
    controller.logs("Repairs are paused: the agent at ");
    controller.logs(" is not ready: no binary");
    let writes = || api.received(|request| request.method != "GET").len();
    assert_eq!(writes(), 0);
    ready.store(true, Ordering::Relaxed);
    controller.counts("pods_deleted_total", 1);
    assert_eq!(controller.metric("agent_waits_total"), 1);
}

#[test]
fn repairs_that_fail_while_the_api_server_is_down_succeed_after_its_return() {
    let (api, controller) = Controller::watched();
    api.state().delete = Answer::Fault(ApiFault::Hang);
    api.modify(&stranded("web-1"));
    controller.counts("pods_delete_timeout_total", 1);
    api.crash();
    // No watch event reports these pods: only a new list finds them.
    api.state().pods = vec![stranded("web-1"), stranded("web-2")];
    api.state().watch = Answer::Status(410);
    api.state().delete = Answer::Status(200);
    api.up();
    controller.counts("pods_deleted_total", 2);
}

#[test]
fn settings_are_read_from_the_charts_environment_variables_and_an_empty_one_is_the_default() {
    for (values, counter) in
        [(["report", "0", "5", "false"], "pods_reported_total"), ([""; 4], "pods_deleted_total")]
    {
        let api = Api::start();
        let names = ["MODE", "AUDIT_SECONDS", "RATE", "DELETE_UNMANAGED"]
            .map(|name| format!("LINKERD_CNI_REPAIR_CONTROLLER_{name}"));
        let mut environment: Vec<_> = names.iter().map(String::as_str).zip(values).collect();
        environment.push(("LINKERD_CNI_REPAIR_CONTROLLER_AGENT_ADDR", ""));
        let controller = Controller::at(ANY_PORT, &api, |command| {
            command.envs(environment);
        });
        api.knows(&stranded("web-1"));
        api.modify(&stranded("web-1"));
        controller.counts(counter, 1);
    }
}
