//! Tests the requests of the watch to the API server, and stale, long and incomplete lists.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::api::ApiFault;

use crate::api::{Answer, Api};
use crate::controller::Controller;
use crate::until::{until, until_within};
use crate::{path, pod, stranded};

fn count_requests(api: &Api) -> usize {
    api.received(|_| true).len()
}

fn expired() -> Value {
    json!({"kind": "Status", "status": "Failure", "code": 410, "message": "too old"})
}

/// Calls `call` every 20 ms for `seconds`.
fn repeat_for(seconds: u64, mut call: impl FnMut()) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        call();
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a healthy pod whose JSON has about `size` bytes. They are in the fields that are largest
/// in real pods: annotations, environment variables and managed fields.
fn large_pod(name: &str, size: usize) -> Value {
    let mut pod = pod(name, json!({"ready": true}));
    let text = "x".repeat(size / 4);
    pod["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied": &text});
    pod["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:a": &text}}]);
    let env = |index| json!({"name": format!("A_{index}"), "value": &text});
    let env: Vec<Value> = (0..2).map(env).collect();
    pod["spec"]["containers"] = json!([{"name": "app", "env": env}, {"name": "linkerd-proxy"}]);
    pod["status"]["phase"] = json!("Running");
    pod
}

#[test]
fn watch_error_is_logged_on_one_short_line_without_the_token() {
    let (api, controller) = Controller::watched();
    let mut status = expired();
    status["message"] = json!(format!("\u{1b}too old: Bearer first{}", "z".repeat(100_000)));
    api.send("ERROR", &status);
    controller.until_logged("ended the watch");
    let log = controller.log();
    let line = log.lines().find(|line| line.contains("ended the watch"));
    let line = line.unwrap();
    assert!(line.contains("too old: Bearer [token]z"), "{line}");
    assert!(line.len() < 1000, "{} bytes", line.len());
}

#[test]
fn controller_sends_one_list_and_one_watch_if_nothing_fails() {
    let (api, _controller) = Controller::watched();
    repeat_for(4, || api.bookmark());
    assert_eq!((api.lists(), api.watches().len(), count_requests(&api)), (1, 1, 2));
}

#[test]
fn lists_are_unpaged_and_from_the_cache_and_watches_end_at_random_times() {
    let api = Api::start();
    let controllers: Vec<_> = (0..6).map(|_| Controller::watching(&api)).collect();
    until("all watch", || api.watches().len() >= controllers.len());
    let pods = "/api/v1/pods?fieldSelector=spec%2EnodeName%3Dnode%2D1";
    for list in api.received(|request| request.is_list()) {
        assert_eq!(list.path, format!("{pods}&resourceVersion=0"));
    }
    let watch = format!("{pods}&watch=true&allowWatchBookmarks=true&timeoutSeconds=");
    assert!(api.watches().iter().all(|path| path.starts_with(&watch)), "{:?}", api.watches());
    let time = |path: &String| {
        let (_, rest) = path.split_once("timeoutSeconds=").unwrap();
        let (time, _) = rest.split_once('&').unwrap();
        time.parse::<u16>().unwrap()
    };
    let mut times: Vec<u16> = api.watches().iter().map(time).collect();
    assert!(times.iter().all(|time| (1800..=3600).contains(time)));
    times.sort_unstable();
    times.dedup();
    assert!(times.len() > 1, "all watches end after {times:?} s");
}

#[test]
fn each_audit_sends_one_list_request() {
    let api = Api::start();
    api.state().pods = (0..50).map(|i| large_pod(&i.to_string(), 1000)).collect();
    let host = host();
    let controller = auditing(&api, &host, 1);
    controller.until_metric_reaches("audits_total", 5);
    let lists = api.lists() as u64;
    let audits = controller.metric("audits_total");
    // One list is for the watch. Another audit may have sent its list without having finished.
    assert!(lists <= audits + 2, "{lists} lists for {audits} audits");
    assert!(lists >= 5, "{lists} lists for 5 audits");
}

#[test]
fn pods_beyond_the_limit_of_an_audit_are_counted_as_errors() {
    const LIMIT: u64 = 1024;
    const PODS: u64 = 3000;
    let api = Api::start();
    api.state().pods = (0..PODS).map(|i| large_pod(&i.to_string(), 4)).collect();
    let host = host();
    let controller = auditing(&api, &host, 1);
    controller.until_metric_reaches("audits_total", 1);
    let audits = controller.metric("audits_total");
    let errors = controller.metric("audit_errors_total");
    assert!(errors >= audits * (PODS - LIMIT), "{errors} errors in {audits} audits");
}

#[test]
fn incomplete_list_is_ignored_and_requested_again() {
    let api = Api::start();
    let healthy = (0..20).map(|i| large_pod(&i.to_string(), 1000));
    api.state().pods = [stranded("web-1")].into_iter().chain(healthy).collect();
    api.state().list = Answer::Fault(ApiFault::Cut);
    let controller = Controller::start(&api);
    controller.until_logged("Cannot watch the pods of this node");
    let (status, body) = controller.get("/ready");
    assert_eq!(status, 500);
    assert!(body.starts_with("not ready: the node's pods are not listed yet: "), "{body}");
    assert_eq!(controller.get("/live").1, "alive\n");
    until("a second list", || api.lists() >= 2);
    let others = api.received(|request| !request.is_list());
    assert!(others.is_empty(), "{others:?}");
    api.state().list = Answer::Status(200);
    controller.until_metric_is("pods_deleted_total", 1);
}

#[test]
fn endless_list_is_cancelled_at_the_size_limit() {
    let api = Api::start();
    api.state().list = Answer::Fault(ApiFault::Endless);
    let controller = Controller::start(&api);
    let limit = Duration::from_secs(300);
    until_within(limit, "the end of the list", || controller.log().contains("larger than"));
    api.state().list = Answer::Status(200);
    until("ready", || controller.get("/ready").1 == "ready\n");
}

#[test]
fn stale_list_neither_deletes_a_changed_pod_nor_misses_a_stranded_one() {
    let (api, controller) = Controller::watched();
    api.bookmark();
    // Respond as an API server with a stale cache. The validator of web-1 has succeeded since then.
    {
        let mut state = api.state();
        state.version = 90;
        state.pods = vec![stranded("web-1")];
        state.delete = Answer::Status(409);
    }
    api.send("ERROR", &expired());
    until("a watch from the version of the list", || {
        let mut watches = api.watches().into_iter();
        watches.any(|path| path.ends_with("&resourceVersion=90"))
    });
    controller.until_logged("Pod has changed");
    assert_eq!(api.deleted().len(), 1, "one attempt, which is rejected");
    // A change that is not in the stale list arrives as a watch event.
    api.state().delete = Answer::Status(200);
    api.modify(&stranded("web-2"));
    controller.until_metric_is("pods_deleted_total", 1);
    assert_eq!(api.deleted(), [path("web-1"), path("web-2")]);
    assert_eq!(controller.metric("pods_delete_errors_total"), 0);
}

#[test]
fn watch_event_without_resource_version_does_not_change_the_start_of_the_next_watch() {
    let (api, _controller) = Controller::watched();
    api.bookmark();
    api.send("BOOKMARK", &json!({"metadata": {}}));
    api.end_watches();
    until("another watch", || api.watches().len() == 2);
    assert!(api.watches()[1].ends_with("&resourceVersion=150"));
    assert_eq!(api.lists(), 1);
}

/// Returns the waits in the log, such as `retrying in 3.1s`, in seconds.
fn logged_waits(controller: &Controller) -> Vec<f64> {
    let log = controller.log();
    let mut waits = Vec::new();
    for rest in log.split("retrying in ").skip(1) {
        let wait = rest.split_whitespace().next().unwrap();
        let number = wait.trim_end_matches(char::is_alphabetic);
        waits.push(match &wait[number.len()..] {
            "s" => number.parse().unwrap(),
            // The unit is milliseconds or smaller.
            _ => 0.0,
        });
    }
    waits
}

/// In each case, every request fails immediately.
#[test]
fn controller_backs_off_after_repeated_failures_of_any_kind() {
    type Fault = fn(&Api);
    let watch_is_rejected = |api: &Api| api.state().watch = Answer::Status(410);
    let list_is_rejected = |api: &Api| {
        api.state().watch = Answer::Status(410);
        api.state().list = Answer::Status(429);
    };
    let list_is_cut = |api: &Api| {
        api.state().watch = Answer::Status(410);
        api.state().list = Answer::Fault(ApiFault::Cut);
    };
    let none = |_: &Api| {};
    let bookmark_and_410 = |api: &Api| {
        api.bookmark_now();
        api.send_now("ERROR", &expired());
        api.end_watches();
    };
    let bookmark_and_break = |api: &Api| {
        api.bookmark_now();
        api.break_watches();
    };
    let bookmark_and_end = |api: &Api| {
        api.bookmark_now();
        api.end_watches();
    };
    let crash = |api: &Api| {
        api.crash();
        api.up();
    };
    // Name, fault that lasts, and fault that is repeated.
    let cases: [(&str, Fault, Fault); 7] = [
        ("410 for the watch", watch_is_rejected, Api::end_watches),
        ("410 in the watch", none, bookmark_and_410),
        ("a broken watch", none, bookmark_and_break),
        ("a watch that ends early", none, bookmark_and_end),
        ("429 for the list", list_is_rejected, Api::end_watches),
        ("half a list", list_is_cut, Api::end_watches),
        ("a server that crashes", none, crash),
    ];
    thread::scope(|scope| {
        for (name, prepare, repeat) in cases {
            scope.spawn(move || {
                let (api, controller) = Controller::watched();
                prepare(&api);
                let before = count_requests(&api);
                until(name, || {
                    repeat(&api);
                    logged_waits(&controller).len() >= 4
                });
                let requests = count_requests(&api) - before;
                let waits = logged_waits(&controller);
                for (wait, (shortest, longest)) in
                    waits.iter().zip([(0.0, 5.0), (3.0, 5.0), (6.0, 10.0), (12.0, 20.0)])
                {
                    let rounded = shortest - 0.1..=longest + 0.1;
                    assert!(rounded.contains(wait), "{name}: {waits:?}");
                }
                // There are at most a list and a watch after each wait.
                assert!(requests <= 2 * waits.len() + 1, "{name}: {requests} for {waits:?}");
            });
        }
    });
}

#[test]
fn watch_continues_from_the_last_version_of_the_previous_watch() {
    let (api, controller) = Controller::watched();
    let watched_from = |version: &str| {
        let version = format!("resourceVersion={version}");
        !api.received(|request| request.is_watch() && request.path.ends_with(&version)).is_empty()
    };
    assert!(watched_from("100"));
    api.bookmark();
    api.end_watches();
    until("a watch from the bookmark", || watched_from("150"));

    // Send a stranded pod instead of a bookmark. When the pod is deleted, the controller has read
    // the event.
    let mut first = stranded("web-0");
    first["metadata"]["resourceVersion"] = json!("160");
    api.modify(&first);
    controller.until_metric_is("pods_deleted_total", 1);
    api.crash();
    controller.until_logged("Cannot watch the pods of this node");
    api.up();
    until("a watch after the restart", || watched_from("160"));
    api.modify(&stranded("web-1"));
    controller.until_metric_is("pods_deleted_total", 2);
    assert_eq!(api.lists(), 1);
    assert!(controller.metric("watch_errors_total") >= 1);
    assert_eq!(controller.get("/ready").1, "ready\n");
}

#[test]
fn expired_resource_version_causes_a_new_list() {
    let (api, controller) = Controller::watched();
    // No watch event reports this pod, so only a new list can find it.
    api.state().pods = vec![stranded("web-1")];
    api.send("ERROR", &json!({"kind": "Status", "status": "Failure", "code": 410}));
    controller.until_metric_is("pods_deleted_total", 1);

    api.state().pods = vec![stranded("web-2")];
    api.state().watch = Answer::Status(410);
    api.end_watches();
    until("the second pod is deleted", || api.deleted().contains(&path("web-2")));
}

#[test]
fn memory_grows_little_with_the_size_of_the_list() {
    let host = host();
    let peak = |pods: Vec<Value>| {
        let api = Api::start();
        api.state().pods = pods;
        let controller = auditing(&api, &host, 1);
        until("an audit", || controller.metric("audits_total") > 0);
        api.modify(&stranded("web-1"));
        controller.until_metric_is("pods_deleted_total", 1);
        controller.status("VmHWM:")
    };
    let few = peak(vec![large_pod("a", 1000)]);
    for (name, count, size, most) in [
        ("200 of 10 kB", 200, 10_000, 1000),
        ("5000 of 4 kB", 5000, 4_000, 3000),
        ("20 of 1 MB", 20, 1_000_000, 3000),
        ("one of 1.5 MB", 1, 1_500_000, 4000),
    ] {
        let pods = (0..count).map(|i| large_pod(&i.to_string(), size)).collect();
        let more = peak(pods).saturating_sub(few);
        assert!(more <= most, "{name}: {more} kB more than {few} kB");
    }
}

/// Starts a controller that audits the pods of the node every `seconds`.
fn auditing(api: &Api, host: &TempDir, seconds: u32) -> Controller {
    let prefix = format!("--mount-prefix={}", host.path().display());
    Controller::with(api, &[&format!("--audit-seconds={seconds}"), &prefix])
}

/// Creates the directories of a node on which the plugin is chained.
fn host() -> TempDir {
    let root = TempDir::new().unwrap();
    let nets = root.path().join("etc/cni/net.d");
    fs::create_dir_all(&nets).unwrap();
    let linkerd = json!({"incoming-proxy-port": 4143, "outgoing-proxy-port": 4140});
    let entry = json!({"type": "linkerd-cni", "name": "linkerd-cni", "linkerd": linkerd});
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [entry]});
    fs::write(nets.join("10-net.conflist"), list.to_string()).unwrap();
    root
}
