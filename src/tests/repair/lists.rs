//! Requests that the watch sends to the API server, and how it handles old, long and
//! incomplete lists.

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

fn count(api: &Api) -> usize {
    api.received(|_| true).len()
}

fn expired() -> Value {
    json!({"kind": "Status", "status": "Failure", "code": 410, "message": "too old"})
}

/// Calls `meanwhile` every 20 ms for `seconds`.
fn for_seconds(seconds: u64, mut meanwhile: impl FnMut()) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        meanwhile();
        thread::sleep(Duration::from_millis(20));
    }
}

/// A healthy pod whose JSON has about `size` bytes, in the fields that are largest in real
/// pods: annotations, environment variables and managed fields.
fn fat(name: &str, size: usize) -> Value {
    let mut fat = pod(name, json!({"ready": true}));
    let text = "x".repeat(size / 4);
    fat["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied": &text});
    fat["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:a": &text}}]);
    let env = |index| json!({"name": format!("A_{index}"), "value": &text});
    let env: Vec<Value> = (0..2).map(env).collect();
    fat["spec"]["containers"] = json!([{"name": "app", "env": env}, {"name": "linkerd-proxy"}]);
    fat["status"]["phase"] = json!("Running");
    fat
}

#[test]
fn a_watch_error_is_logged_on_one_short_line_without_the_token() {
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
fn without_failures_there_is_one_list_and_one_watch() {
    let (api, _controller) = Controller::watched();
    for_seconds(4, || api.bookmark());
    assert_eq!((api.lists(), api.watches().len(), count(&api)), (1, 1, 2));
}

#[test]
fn lists_come_whole_from_the_cache_and_watches_end_at_random_times() {
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
    api.state().pods = (0..50).map(|i| fat(&i.to_string(), 1000)).collect();
    let host = host();
    let controller = auditing(&api, &host, 1);
    controller.until_metric_reaches("audits_total", 5);
    let lists = api.lists() as u64;
    let audits = controller.metric("audits_total");
    // One list is that of the watch, and one audit may not have ended.
    assert!(lists <= audits + 2, "{lists} lists for {audits} audits");
    assert!(lists >= 5, "{lists} lists for 5 audits");
}

#[test]
fn pods_beyond_the_limit_of_an_audit_are_counted_as_errors() {
    const LIMIT: u64 = 1024;
    const PODS: u64 = 3000;
    let api = Api::start();
    api.state().pods = (0..PODS).map(|i| fat(&i.to_string(), 4)).collect();
    let host = host();
    let controller = auditing(&api, &host, 1);
    controller.until_metric_reaches("audits_total", 1);
    let audits = controller.metric("audits_total");
    let errors = controller.metric("audit_errors_total");
    assert!(errors >= audits * (PODS - LIMIT), "{errors} errors in {audits} audits");
}

#[test]
fn an_incomplete_list_has_no_effect_and_is_repeated() {
    let api = Api::start();
    let healthy = (0..20).map(|i| fat(&i.to_string(), 1000));
    api.state().pods = [stranded("web-1")].into_iter().chain(healthy).collect();
    api.state().list = Answer::Fault(ApiFault::Cut);
    let controller = Controller::start(&api);
    controller.until_logged("Cannot watch the pods of this node");
    let (status, body) = controller.get("/ready");
    assert_eq!(status, 500);
    assert!(body.starts_with("not ready: the node's pods are not listed yet: "), "{body}");
    assert_eq!(controller.get("/live").1, "alive\n");
    until("a second try", || api.lists() >= 2);
    let asked = api.received(|request| !request.is_list());
    assert!(asked.is_empty(), "{asked:?}");
    api.state().list = Answer::Status(200);
    controller.until_metric_is("pods_deleted_total", 1);
}

#[test]
fn an_endless_list_is_cancelled_at_the_size_limit() {
    let api = Api::start();
    api.state().list = Answer::Fault(ApiFault::Endless);
    let controller = Controller::start(&api);
    let limit = Duration::from_secs(300);
    until_within(limit, "the end of the list", || controller.log().contains("larger than"));
    api.state().list = Answer::Status(200);
    until("ready", || controller.get("/ready").1 == "ready\n");
}

#[test]
fn a_list_older_than_the_last_watch_event_loses_no_change_or_pod() {
    let (api, controller) = Controller::watched();
    api.bookmark();
    // An API server with a stale cache responds: the validator has succeeded since then.
    {
        let mut state = api.state();
        state.version = 90;
        state.pods = vec![stranded("web-1")];
        state.delete = Answer::Status(409);
    }
    api.send("ERROR", &expired());
    until("a watch from the list's version", || {
        let mut watches = api.watches().into_iter();
        watches.any(|path| path.ends_with("&resourceVersion=90"))
    });
    controller.until_logged("Pod has changed");
    assert_eq!(api.deleted().len(), 1, "one attempt, which is rejected");
    // A change that the stale list lacks arrives as a watch event.
    api.state().delete = Answer::Status(200);
    api.modify(&stranded("web-2"));
    controller.until_metric_is("pods_deleted_total", 1);
    assert_eq!(api.deleted(), [path("web-1"), path("web-2")]);
    assert_eq!(controller.metric("pods_delete_errors_total"), 0);
}

#[test]
fn an_event_without_resource_version_does_not_move_the_next_watch() {
    let (api, _controller) = Controller::watched();
    api.bookmark();
    api.send("BOOKMARK", &json!({"metadata": {}}));
    api.end_watches();
    until("another watch", || api.watches().len() == 2);
    assert!(api.watches()[1].ends_with("&resourceVersion=150"));
    assert_eq!(api.lists(), 1);
}

/// Seconds of each wait that the log names, such as `retrying in 3.1s`.
fn logged_waits(controller: &Controller) -> Vec<f64> {
    let log = controller.log();
    let mut waits = Vec::new();
    for rest in log.split("retrying in ").skip(1) {
        let wait = rest.split_whitespace().next().unwrap();
        let number = wait.trim_end_matches(char::is_alphabetic);
        waits.push(match &wait[number.len()..] {
            "s" => number.parse().unwrap(),
            // Milliseconds, or less.
            _ => 0.0,
        });
    }
    waits
}

/// In each case every request fails at once.
#[test]
fn requests_back_off_after_repeated_failures_of_every_kind() {
    type Trouble = fn(&Api);
    let watch_is_refused = |api: &Api| api.state().watch = Answer::Status(410);
    let list_is_refused = |api: &Api| {
        api.state().watch = Answer::Status(410);
        api.state().list = Answer::Status(429);
    };
    let list_is_cut = |api: &Api| {
        api.state().watch = Answer::Status(410);
        api.state().list = Answer::Fault(ApiFault::Cut);
    };
    let nothing_more = |_: &Api| {};
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
    let cases: [(&str, Trouble, Trouble); 7] = [
        ("410 for the watch", watch_is_refused, Api::end_watches),
        ("410 in the watch", nothing_more, bookmark_and_410),
        ("a broken watch", nothing_more, bookmark_and_break),
        ("a watch that ends early", nothing_more, bookmark_and_end),
        ("429 for the list", list_is_refused, Api::end_watches),
        ("half a list", list_is_cut, Api::end_watches),
        ("a server that crashes", nothing_more, crash),
    ];
    thread::scope(|scope| {
        for (name, prepare, again) in cases {
            scope.spawn(move || {
                let (api, controller) = Controller::watched();
                prepare(&api);
                let before = count(&api);
                until(name, || {
                    again(&api);
                    logged_waits(&controller).len() >= 4
                });
                let requests = count(&api) - before;
                let waits = logged_waits(&controller);
                for (wait, (shortest, longest)) in
                    waits.iter().zip([(0.0, 5.0), (3.0, 5.0), (6.0, 10.0), (12.0, 20.0)])
                {
                    let rounded = shortest - 0.1..=longest + 0.1;
                    assert!(rounded.contains(wait), "{name}: {waits:?}");
                }
                // After a wait there are at most a list and a watch.
                assert!(requests <= 2 * waits.len() + 1, "{name}: {requests} for {waits:?}");
            });
        }
    });
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

    // The event has a pod instead of a bookmark: the pod's deletion shows that the controller has
    // read the event before the crash.
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
fn an_expired_resource_version_causes_a_new_list() {
    let (api, controller) = Controller::watched();
    // No watch event reports this pod: only a new list finds it.
    api.state().pods = vec![stranded("web-1")];
    api.send("ERROR", &json!({"kind": "Status", "status": "Failure", "code": 410}));
    controller.until_metric_is("pods_deleted_total", 1);

    api.state().pods = vec![stranded("web-2")];
    api.state().watch = Answer::Status(410);
    api.end_watches();
    until("the second one is deleted", || api.deleted().contains(&path("web-2")));
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
    let few = peak(vec![fat("a", 1000)]);
    for (name, count, size, most) in [
        ("200 of 10 kB", 200, 10_000, 1000),
        ("5000 of 4 kB", 5000, 4_000, 3000),
        ("20 of 1 MB", 20, 1_000_000, 3000),
        ("one of 1.5 MB", 1, 1_500_000, 4000),
    ] {
        let pods = (0..count).map(|i| fat(&i.to_string(), size)).collect();
        let more = peak(pods).saturating_sub(few);
        assert!(more <= most, "{name}: {more} kB more than {few} kB");
    }
}

/// Starts a controller that audits the pods of the host every `seconds`.
fn auditing(api: &Api, host: &TempDir, seconds: u32) -> Controller {
    let prefix = format!("--mount-prefix={}", host.path().display());
    Controller::with(api, &[&format!("--audit-seconds={seconds}"), &prefix])
}

/// Directories of a host on which the plugin is chained.
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
