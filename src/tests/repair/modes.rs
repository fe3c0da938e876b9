//! The repair modes, the wait for the agent and the repair budget, against the fake API
//! server.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::controller::Controller;
use crate::until::until;
use crate::{path, stranded};

/// Message of the API server when a disruption budget rejects an eviction.
const BUDGET: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

fn evictions(api: &Api) -> Vec<String> {
    let evictions = api.requests(|request| request.is_eviction());
    evictions.into_iter().map(|request| request.path).collect()
}

fn events(api: &Api) -> Vec<Value> {
    let events = api.requests(|request| request.is_event());
    events.into_iter().map(|request| request.body).collect()
}

/// A stranded pod with `value` at `pointer`.
fn changed(name: &str, pointer: &str, value: Value) -> Value {
    let mut pod = stranded(name);
    *pod.pointer_mut(pointer).unwrap() = value;
    pod
}

#[test]
fn pods_are_evicted_rather_than_deleted_where_evictions_are_allowed() {
    let api = Api::start();
    api.state().evict = Answer::Status(201);
    let controller = Controller::watching(&api);
    api.send("MODIFIED", &stranded("web-1"));
    controller.counts("pods_deleted_total", 1);
    let eviction = &api.requests(|request| request.is_eviction())[0].body;
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
        api.send("MODIFIED", &stranded("web-1"));
    }
    api.send("MODIFIED", &stranded("web-2"));
    controller.counts("pods_skipped_total", 2);
    assert!(api.deleted().is_empty());
    until("both are told about", || events(&api).len() == 2);
    assert_eq!(events(&api)[0]["type"], "Warning");
    assert_eq!(events(&api)[0]["note"], format!("Pod skipped for now: {BUDGET}"));
    assert_eq!(controller.metric("pods_deleted_total"), 0);
}

#[test]
fn a_pod_protected_by_a_disruption_budget_is_evicted_later_without_another_report() {
    let api = Api::start();
    api.state().evict = Answer::Refusal(429, BUDGET);
    api.state().pods = vec![stranded("web-1")];
    let controller = Controller::watching(&api);
    controller.counts("pods_skipped_total", 1);
    api.send("MODIFIED", &stranded("web-1"));
    api.state().evict = Answer::Status(201);
    thread::sleep(Duration::from_secs(61));
    assert_eq!(evictions(&api).len(), 1);
    api.send("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
    controller.counts("pods_deleted_total", 1);
    until("one Event for the skipped pod, one for the eviction", || events(&api).len() == 2);
}

#[test]
fn an_eviction_rejected_by_an_overloaded_api_server_is_retried_and_not_reported() {
    let api = Api::start();
    api.state().evict = Answer::Refusal(429, "Too many requests, please try again later.");
    api.state().pods = vec![stranded("web-1")];
    let controller = Controller::watching(&api);
    controller.counts("pods_delete_errors_total", 1);
    assert_eq!(events(&api).len(), 0);
    api.state().evict = Answer::Status(201);
    until("it is deleted", || {
        api.send_now("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
        controller.metric("pods_deleted_total") == 1
    });
    assert_eq!(controller.metric("pods_skipped_total"), 0);
}

#[test]
fn a_pod_is_deleted_after_a_dry_run_of_the_eviction_where_only_dry_runs_are_permitted() {
    let api = Api::start();
    // As with the chart's admission policy.
    api.state().evict = Answer::Status(403);
    api.state().evict_dry_run = Some(Answer::Refusal(429, BUDGET));
    let controller = Controller::watching(&api);
    api.send("MODIFIED", &stranded("protected"));
    controller.counts("pods_skipped_total", 1);
    assert!(api.deleted().is_empty());
    api.state().evict_dry_run = Some(Answer::Status(201));
    api.send("MODIFIED", &stranded("web-1"));
    controller.counts("pods_deleted_total", 1);
    assert_eq!(api.deleted(), [path("web-1")]);
    let dry_run = &api.requests(|request| request.is_dry_run())[1].body;
    let deletion = &api.requests(|request| request.method == "DELETE")[0].body;
    assert_eq!(&dry_run["deleteOptions"], deletion);
}

/// A stranded pod with these owners.
fn owned_by(name: &str, owners: Value) -> Value {
    changed(name, "/metadata/ownerReferences", owners)
}

#[test]
fn mode_delete_leaves_a_pod_without_a_controller_and_reports_the_pod_once() {
    let api = Api::start();
    api.state().evict = Answer::Status(201);
    let controller = Controller::watching(&api);
    let bare = owned_by("bare", json!([]));
    let owned = owned_by("owned", json!([{"uid": "a", "controller": false}, {"uid": "b"}]));
    for pod in [&bare, &owned, &bare, &owned] {
        api.send("MODIFIED", pod);
    }
    // The queue keeps its order: when the next pod is evicted, the others are finished.
    api.send("MODIFIED", &stranded("web-1"));
    controller.counts("pods_deleted_total", 1);
    assert_eq!(evictions(&api), [path("web-1") + "/eviction"]);
    assert!(api.deleted().is_empty());
    assert_eq!(controller.metric("pods_skipped_total"), 2);
    controller.logs("WARN Pod skipped for now: the pod has no controller that would replace it");
    until("an Event on each pod", || events(&api).len() == 3);
    for (event, name) in events(&api).iter().zip(["bare", "owned"]) {
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["action"], "Skipping");
        assert_eq!(event["regarding"]["name"], name);
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("repairController.deleteUnmanaged=true"), "{note}");
    }
    // A new StatefulSet adopts the pods of a deleted one.
    let mut adopted = bare;
    adopted["metadata"]["ownerReferences"] = json!([{"uid": "new", "controller": true}]);
    api.send("MODIFIED", &adopted);
    controller.counts("pods_deleted_total", 2);
}

#[test]
fn mode_delete_deletes_a_pod_without_a_controller_if_the_chart_asks_for_it() {
    let api = Api::start();
    let variable = "LINKERD_CNI_REPAIR_CONTROLLER_DELETE_UNMANAGED";
    let controller = Controller::configured(&api, &[], &[(variable, "true")]);
    api.send("MODIFIED", &owned_by("bare", json!([])));
    controller.counts("pods_deleted_total", 1);
    assert_eq!(api.deleted(), [path("bare")]);
    let api = Api::start();
    let controller = Controller::configured(&api, &[], &[(variable, "false")]);
    api.send("MODIFIED", &owned_by("bare", json!([])));
    controller.counts("pods_skipped_total", 1);
    assert!(api.deleted().is_empty());
}

#[test]
fn mode_delete_leaves_the_mirror_pod_of_a_static_pod_and_reports_it_once() {
    for delete_unmanaged in ["false", "true"] {
        let api = Api::start();
        let variable = "LINKERD_CNI_REPAIR_CONTROLLER_DELETE_UNMANAGED";
        let controller = Controller::configured(&api, &[], &[(variable, delete_unmanaged)]);
        let node = json!([{"kind": "Node", "uid": "node-1", "controller": true}]);
        for _ in 0..2 {
            api.send("MODIFIED", &owned_by("static", node.clone()));
        }
        // The queue keeps its order: when the next pod is deleted, the first is finished.
        api.send("MODIFIED", &stranded("web-1"));
        controller.counts("pods_deleted_total", 1);
        assert_eq!(api.deleted(), [path("web-1")]);
        until("an Event on each pod", || events(&api).len() == 2);
        let note = events(&api)[0]["note"].as_str().unwrap().to_owned();
        assert!(note.starts_with("Pod skipped: it is a static pod"), "{note}");
    }
}

#[test]
fn a_pod_that_lost_its_controller_meanwhile_is_not_deleted() {
    let api = Api::start();
    let mut orphan = owned_by("web-0", json!([]));
    orphan["metadata"]["resourceVersion"] = json!("105");
    api.knows(&orphan);
    api.state().delete = Answer::Status(409);
    let controller = Controller::watching(&api);
    api.send("MODIFIED", &stranded("web-0"));
    controller.counts("pods_skipped_total", 1);
    assert_eq!(api.deleted(), [path("web-0")], "no second try");
}

#[test]
fn rejected_requests_do_not_use_up_the_repair_budget() {
    let api = Api::start();
    // The pods are gone before the controller deletes them.
    api.state().delete = Answer::Status(404);
    let controller = Controller::with(&api, &["--rate=2"]);
    for name in 0..5 {
        api.send("MODIFIED", &stranded(&format!("gone-{name}")));
    }
    until("all were tried", || api.deleted().len() == 5);
    api.state().delete = Answer::Status(200);
    api.send("MODIFIED", &stranded("web-1"));
    api.send("MODIFIED", &stranded("web-2"));
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
            api.state().objects.insert(path("web-0"), object);
        }
        let controller = Controller::watching(&api);
        api.send("MODIFIED", &stranded("web-0"));
        until("it was looked at again", || {
            let again = |request: &crate::api::Request| {
                request.method == "GET" && request.path == path("web-0")
            };
            !api.requests(again).is_empty()
        });
        // The queue keeps its order: when the next pod is deleted, the first is finished.
        api.state().delete = Answer::Status(200);
        api.send("MODIFIED", &stranded("web-1"));
        controller.counts("pods_deleted_total", 1);
        assert_eq!(api.deleted(), [path("web-0"), path("web-1")], "{name}");
        assert_eq!(controller.metric("pods_delete_errors_total"), 0, "{name}");
    }
}

#[test]
fn a_stranded_pod_that_changed_meanwhile_is_tried_once_more_with_its_new_version() {
    let api = Api::start();
    let newer = changed("web-0", "/metadata/resourceVersion", json!("105"));
    api.state().objects.insert(path("web-0"), newer);
    api.state().delete = Answer::Status(409);
    let controller = Controller::watching(&api);
    api.send("MODIFIED", &stranded("web-0"));
    until("two tries", || api.deleted().len() == 2);
    let version = |index: usize| {
        let deletions = api.requests(|request| request.method == "DELETE");
        deletions[index].body["preconditions"]["resourceVersion"].clone()
    };
    assert_eq!((version(0), version(1)), (json!("101"), json!("105")));
    api.state().delete = Answer::Status(200);
    api.send("MODIFIED", &stranded("web-1"));
    controller.counts("pods_deleted_total", 1);
    assert_eq!(api.deleted().len(), 3);
}

#[test]
fn a_pod_is_labelled_once_with_its_uid_and_version_as_preconditions() {
    let api = Api::start();
    let controller = Controller::with(&api, &["--mode=label"]);
    api.knows(&stranded("web-1"));
    api.knows(&stranded("web-2"));
    api.send("MODIFIED", &stranded("web-1"));
    controller.counts("pods_labelled_total", 1);
    let mut labelled = stranded("web-1");
    labelled["metadata"]["labels"]["linkerd.io/cni-stranded"] = json!("true");
    api.send("MODIFIED", &labelled);
    api.send("MODIFIED", &stranded("web-2"));
    controller.counts("pods_labelled_total", 2);
    let patches = api.requests(|request| request.method == "PATCH");
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
    assert!(api.deleted().is_empty() && evictions(&api).is_empty());
    until("events", || events(&api).len() == 2);
    assert_eq!(events(&api)[0]["action"], "Labelling");
    assert_eq!(events(&api)[0]["type"], "Warning");
}

#[test]
fn mode_report_changes_nothing_and_reports_each_pod_once() {
    let api = Api::start();
    let controller = Controller::with(&api, &["--mode=report"]);
    api.knows(&stranded("web-1"));
    api.knows(&stranded("web-2"));
    for _ in 0..3 {
        api.send("MODIFIED", &stranded("web-1"));
    }
    api.send("MODIFIED", &stranded("web-2"));
    controller.counts("pods_reported_total", 2);
    until("events", || events(&api).len() == 2);
    assert_eq!(events(&api)[0]["action"], "Reporting");
    let writes = api.requests(|request| request.method != "GET" && !request.is_event());
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
        until("an event", || events(&api).len() == 1);
        assert_eq!(events(&api)[0]["regarding"]["name"], "web-1");
    }
}

#[test]
fn repairs_stop_when_the_repair_budget_is_used_up() {
    let api = Api::start();
    let pods = (0..200).map(|name| stranded(&format!("web-{name}")));
    api.state().pods = pods.collect();
    let controller = Controller::with(&api, &["--rate=7"]);
    controller.counts("pods_deleted_total", 7);
    controller.logs("The repair budget is used up");
    assert_eq!(controller.metric("budget_waits_total"), 1);
    assert_eq!(api.deleted().len(), 7);
}

/// Starts a fake agent whose `/ready` succeeds while `ready` is set. Returns its address.
fn agent(ready: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let ready = Arc::clone(ready);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let answer = match ready.load(Ordering::Relaxed) {
                true => "HTTP/1.1 200 OK\r\n\r\nready\n",
                false => "HTTP/1.1 500 Internal Server Error\r\n\r\nnot ready: no binary\n",
            };
            let _ = stream.write_all(answer.as_bytes());
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
    api.send("MODIFIED", &stranded("web-1"));
    controller.logs("Repairs are paused: the agent at ");
    controller.logs(" is not ready: no binary");
    let writes = || api.requests(|request| request.method != "GET").len();
    assert_eq!(writes(), 0);
    ready.store(true, Ordering::Relaxed);
    controller.counts("pods_deleted_total", 1);
    assert_eq!(controller.metric("agent_waits_total"), 1);
}

#[test]
fn repairs_that_fail_while_the_api_server_is_down_succeed_after_its_return() {
    let api = Api::start();
    let controller = Controller::watching(&api);
    api.state().delete = Answer::Silence;
    api.send("MODIFIED", &stranded("web-1"));
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
fn settings_are_read_from_the_environment_variables_of_the_chart() {
    let api = Api::start();
    let environment = [
        ("LINKERD_CNI_REPAIR_CONTROLLER_MODE", "report"),
        ("LINKERD_CNI_REPAIR_CONTROLLER_AUDIT_SECONDS", "0"),
        ("LINKERD_CNI_REPAIR_CONTROLLER_RATE", "5"),
        ("LINKERD_CNI_REPAIR_CONTROLLER_AGENT_ADDR", ""),
    ];
    let controller = Controller::configured(&api, &[], &environment);
    api.knows(&stranded("web-1"));
    api.send("MODIFIED", &stranded("web-1"));
    controller.counts("pods_reported_total", 1);
}
