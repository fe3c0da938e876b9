//! Tests the repair modes, the wait for the agent, and the repair budget, with a fake API server.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::api::ApiFault;
use testkit::server::Connection;

use crate::api::{Answer, Api};
use crate::controller::{ANY_PORT, Controller};
use crate::until::{until, until_within};
use crate::{path, stranded};

/// Returns a stranded pod with `value` at the JSON pointer `pointer`.
pub fn changed(name: &str, pointer: &str, value: Value) -> Value {
    let mut pod = stranded(name);
    *pod.pointer_mut(pointer).unwrap() = value;
    pod
}

#[test]
fn rejected_requests_do_not_use_up_the_repair_budget() {
    let api = Api::start();
    // Respond as if the pods were gone.
    api.state().delete = Answer::Status(404);
    // The budget allows four repairs, and two of them in one namespace.
    let controller = Controller::with(&api, &["--rate=4"]);
    for name in 0..5 {
        api.modify(&stranded(&format!("gone-{name}")));
    }
    until("five deletions", || api.deleted().len() == 5);
    api.state().delete = Answer::Status(200);
    api.modify(&stranded("web-1"));
    api.modify(&stranded("web-2"));
    controller.until_metric_is("pods_deleted_total", 2);
    assert!(!controller.log().contains("The repair budget is used up"));
}

#[test]
fn rejected_evictions_do_not_use_up_the_repair_budget() {
    let api = Api::start();
    let refusal = "Cannot evict pod as it would violate the pod's disruption budget.";
    api.state().evict = Answer::Refusal(429, refusal);
    // The budget allows eight repairs, and four of them in one namespace.
    let controller = Controller::with(&api, &["--rate=8"]);
    for name in 0..5 {
        api.modify(&stranded(&format!("refused-{name}")));
    }
    controller.until_metric_is("pods_skipped_total", 5);
    api.state().evict = Answer::Status(201);
    api.modify(&stranded("web-1"));
    api.modify(&stranded("web-2"));
    controller.until_metric_is("pods_deleted_total", 2);
    assert!(!controller.log().contains("The repair budget is used up"));
}

fn stranded_in(namespace: &str, name: &str) -> Value {
    changed(name, "/metadata/namespace", json!(namespace))
}

#[test]
fn one_namespace_cannot_use_up_the_repair_budget_of_others() {
    let api = Api::start();
    let many = (0..8).map(|number| stranded_in("many", &format!("web-{number}")));
    api.state().pods = many.chain([stranded_in("few", "web")]).collect();
    let controller = Controller::with(&api, &["--rate=4"]);
    until("three pods are deleted", || api.deleted().len() >= 3);
    let few = "/api/v1/namespaces/few/pods/web".to_owned();
    assert!(api.deleted()[..3].contains(&few), "{:?}", api.deleted());
    // The other pods of this namespace wait, although the node's budget allows one more repair.
    controller.until_logged("The repair budget is used up");
    assert_eq!(api.deleted().len(), 3, "{:?}", api.deleted());
    // A new pod of another namespace does not have to wait.
    api.modify(&stranded_in("new", "web"));
    until_within(Duration::from_secs(20), "the pod of the third namespace is deleted", || {
        api.deleted().len() == 4
    });
    assert_eq!(api.deleted()[3], "/api/v1/namespaces/new/pods/web");
}

#[test]
fn pod_that_has_changed_is_deleted_only_after_an_event_with_the_new_version() {
    let (api, controller) = Controller::watched();
    api.state().delete = Answer::Status(409);
    api.modify(&stranded("web-0"));
    controller.until_logged("Pod has changed");
    api.state().delete = Answer::Status(200);
    api.modify(&stranded("web-1"));
    controller.until_metric_is("pods_deleted_total", 1);
    assert_eq!(api.deleted(), [path("web-0"), path("web-1")]);
    assert_eq!(controller.metric("pods_delete_errors_total"), 0);

    api.modify(&changed("web-0", "/metadata/resourceVersion", json!("105")));
    controller.until_metric_is("pods_deleted_total", 2);
    let deletions = api.received(|request| request.method == "DELETE");
    let versions =
        deletions.iter().map(|request| &request.body["preconditions"]["resourceVersion"]);
    assert_eq!(versions.collect::<Vec<_>>(), ["101", "101", "105"]);
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
    controller.until_metric_is("pods_reported_total", 2);
    until("events", || api.events().len() == 2);
    assert_eq!(api.events()[0]["action"], "Reporting");
    let writes = api.received(|request| request.method != "GET" && !request.is_event());
    assert_eq!(writes.len(), 0);
}

#[test]
fn mode_report_ignores_a_pod_that_is_stranded_only_in_a_stale_list() {
    let api = Api::start();
    api.state().pods = vec![stranded("well"), stranded("web-1")];
    api.knows(&changed("well", "/status/initContainerStatuses", json!([])));
    api.knows(&stranded("web-1"));
    let controller = Controller::with(&api, &["--mode=report"]);
    controller.until_metric_is("pods_reported_total", 1);
    until("an event", || api.events().len() == 1);
    assert_eq!(api.events()[0]["regarding"]["name"], "web-1");
}

/// In a StatefulSet, a new pod has the name of the old one. If it is stranded, too, the controller
/// finds it by its own event.
#[test]
fn pod_with_the_name_of_a_stranded_one_is_not_confused_with_it() {
    let api = Api::start();
    api.state().pods = vec![stranded("web-1"), stranded("web-2")];
    api.knows(&changed("web-1", "/metadata/uid", json!("uid-of-the-replacement")));
    api.knows(&stranded("web-2"));
    let controller = Controller::with(&api, &["--mode=report"]);
    // The queue is ordered, so when the second pod is reported, the first one has been handled.
    controller.until_metric_is("events_publish_latency_seconds_count", 1);
    assert_eq!(api.events()[0]["regarding"]["name"], "web-2");
    assert_eq!(controller.metric("pods_reported_total"), 1);
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
            let (code, body) = if ready.load(Ordering::Relaxed) {
                (200, "ready\n")
            } else {
                (500, "not ready: no binary\n")
            };
            let _ = connection.send_response(code, body);
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
    controller.until_logged("Repairs are paused: the agent at ");
    controller.until_logged(" is not ready: no binary");
    let writes = || api.received(|request| request.method != "GET").len();
    assert_eq!(writes(), 0);
    ready.store(true, Ordering::Relaxed);
    controller.until_metric_is("pods_deleted_total", 1);
    assert_eq!(controller.log().matches("Repairs are paused").count(), 1);
}

#[test]
fn repairs_that_fail_during_an_api_outage_are_completed_after_it() {
    let (api, controller) = Controller::watched();
    api.state().delete = Answer::Fault(ApiFault::Hang);
    api.modify(&stranded("web-1"));
    controller.until_metric_reaches("pods_delete_timeout_total", 1);
    api.crash();
    // No watch event reports these pods, so only a new list can find them.
    api.state().pods = vec![stranded("web-1"), stranded("web-2")];
    api.state().watch = Answer::Status(410);
    api.state().delete = Answer::Status(200);
    api.up();
    // There may be more deletions, because the fake API server still lists a deleted pod.
    controller.until_metric_reaches("pods_deleted_total", 2);
    until("the second pod is deleted", || api.deleted().contains(&path("web-2")));
}

#[test]
fn settings_are_read_from_environment_variables_and_an_empty_one_means_the_default() {
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
        controller.until_metric_is(counter, 1);
    }
}
