//! The node's copy of its pods: it decides without a request, whatever annotations and API server say.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use linkerd2_cni::pod_copy::{self, Lock};
use serde_json::{Value, json};

use super::record_socket::recorded;
use super::{Call, MESHED, POD_PATH, Scene, UID, UNMESHED, api_of, meshed_spec};

/// Longest wait for a late file.
const COPY_WAIT: Duration = Duration::from_millis(100);

/// Publishes the pod object `ns/web` for the UID that the runtime passes.
fn publish(run_dir: &Path, uid: &str, pod: &str) {
    testkit::node_copy::publish(run_dir, ["ns", "web", uid], pod);
}

/// Takes the lock of a live agent.
fn keep(run_dir: &Path) -> Lock {
    pod_copy::create(run_dir).unwrap();
    Lock::take(run_dir).unwrap()
}

/// A pod object with this spec.
fn pod(uid: &str, spec: &Value) -> String {
    json!({"metadata": {"name": "web", "namespace": "ns", "uid": uid}, "spec": spec}).to_string()
}

fn proxy_annotations() -> Value {
    json!({"linkerd.io/proxy-version": "edge-26.8.3"})
}

/// Runs the call, which succeeds. Returns its record, and how long it took.
fn timed(call: &Call) -> (Value, Duration) {
    let begin = Instant::now();
    let (outcome, record) = recorded(call);
    let elapsed = begin.elapsed();
    outcome.succeeded();
    (record, elapsed)
}

#[test]
fn the_copy_decides_by_the_containers_without_a_request_in_an_outage() {
    let mut with_init = meshed_spec();
    with_init["initContainers"] = json!([{"name": "linkerd-init"}]);
    let mut own_uid = meshed_spec();
    own_uid["containers"][1]["securityContext"] = json!({"runAsUser": 3000});
    let bare = json!({"containers": [{"name": "app"}]});
    let (none, injected) = (Some(json!({})), Some(proxy_annotations()));
    for (annotations, spec, rule) in [
        (injected.clone(), meshed_spec(), "--uid-owner 2102"),
        (injected.clone(), own_uid, "--uid-owner 3000"),
        // Made by hand, or a copy by `kubectl debug`.
        (none.clone(), meshed_spec(), "--uid-owner 2102"),
        (None, meshed_spec(), "--uid-owner 2102"),
        (injected.clone(), bare.clone(), ""),
        (injected, with_init, ""),
        (none, bare.clone(), ""),
        (None, bare, ""),
    ] {
        let scene = Scene::meshed();
        scene.api.accept("another token");
        let call = |command| {
            let call = scene.call(command);
            publish(&call.run_dir(), UID, &pod(UID, &spec));
            match &annotations {
                Some(annotations) => call.annotated(annotations.clone()),
                None => call,
            }
        };
        let (record, _) = timed(&call("ADD"));
        assert_eq!((&record["source"], &record["requests"]), (&json!("copy"), &json!(0)));
        let rules = scene.rules();
        assert_eq!(rules.is_empty(), rule.is_empty(), "{annotations:?} {spec}: {rules}");
        assert!(rules.contains(rule) && !rules.contains("guessed"), "{spec}: {rules}");
        let (record, _) = timed(&call("CHECK"));
        assert_eq!((&record["source"], &record["degraded"]), (&json!("copy"), &Value::Null));
        if !rule.is_empty() {
            scene.run("iptables-nft", &["-t", "nat", "-D", "PROXY_INIT_OUTPUT", "2"]);
            assert_eq!(call("CHECK").run().error().0, 122);
        }
        assert!(scene.api.requests().is_empty(), "{:?}", scene.api.requests());
    }
}

#[test]
fn an_unusable_copy_is_as_good_as_none() {
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let replace = |path: &Path, from: &str, to: &str| {
        assert!(text(path).contains(from), "{}", text(path));
        fs::write(path, text(path).replacen(from, to, 1)).unwrap();
    };
    type Spoil<'a> = (&'a str, &'a dyn Fn(&Path));
    let cases: [Spoil<'_>; 9] = [
        ("of another namespace", &|path| replace(path, r#""ns""#, r#""other""#)),
        ("of another pod", &|path| replace(path, r#""web""#, r#""web-1""#)),
        ("of another UID", &|path| replace(path, "0001", "0002")),
        ("half-written", &|path| fs::write(path, &text(path)[..40]).unwrap()),
        ("empty", &|path| fs::write(path, "").unwrap()),
        ("too large", &|path| fs::write(path, text(path) + &" ".repeat(6 << 20)).unwrap()),
        ("owned by another user", &|path| chown(path, Some(1000), None).unwrap()),
        ("writable by others", &|path| {
            fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
        }),
        ("a directory", &|path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
    ];
    for (name, spoil) in cases {
        let scene = Scene::meshed();
        let call = |annotations| {
            let call = scene.add().annotated(annotations);
            publish(&call.run_dir(), UID, UNMESHED);
            spoil(&call.run_dir().join("pods").join(UID));
            call
        };
        let (record, _) = timed(&call(json!({})));
        assert_eq!(record["source"], "annotations", "{name}: {record}");
        assert!(scene.api.requests().is_empty(), "{name}");
        let meshed = call(proxy_annotations());
        let (outcome, record) = recorded(&meshed);
        let outcome = outcome.succeeded();
        assert_eq!(record["source"], "request", "{name}");
        assert!(outcome.stderr.contains("node's copy is unusable"), "{name}: {}", outcome.stderr);
        assert!(scene.rules().contains("PROXY_INIT_OUTPUT"), "{name}");
    }
}

#[test]
fn add_waits_for_a_file_that_a_live_agent_publishes_late() {
    let scene = Scene::meshed();
    let call = scene.add().annotated(json!({}));
    let _lock = keep(&call.run_dir());
    let run_dir: PathBuf = call.run_dir();
    let agent = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        publish(&run_dir, UID, MESHED);
    });
    let (record, elapsed) = timed(&call);
    agent.join().unwrap();
    assert_eq!((&record["source"], &record["requests"]), (&json!("copy"), &json!(0)), "{record}");
    assert_eq!(record["decision"], "redirected");
    println!("ADD with a file that comes after 30 ms: {elapsed:.1?}");
}

#[test]
fn one_request_decides_on_an_unannotated_pod_that_a_live_agent_lacks_and_a_failed_one_skips_it() {
    for (status, body, decision, source) in [
        (200, MESHED, "redirected", "request"),
        (200, UNMESHED, "skipped: no linkerd-proxy container", "request"),
        (404, "{}", "skipped: not meshed (no annotation of a proxy)", "annotations"),
        (403, "{}", "skipped: not meshed (no annotation of a proxy)", "annotations"),
        (500, "{}", "skipped: not meshed (no annotation of a proxy)", "annotations"),
    ] {
        let scene = Scene::meshed();
        scene.api.answer(POD_PATH, status, body);
        let call = |command| {
            let call = scene.call(command).annotated(json!({}));
            call.linkerd("api-retry-seconds", 60)
        };
        let add = call("ADD");
        let lock = keep(&add.run_dir());
        let (record, elapsed) = timed(&add);
        println!("{status}: {elapsed:.1?}");
        assert_eq!(record["decision"], decision, "{record}");
        assert_eq!(record["source"], source, "{record}");
        assert!(record["degraded"].is_null() && record["error"].is_null(), "{record}");
        assert!(elapsed >= COPY_WAIT && elapsed < Duration::from_secs(30), "{elapsed:?}");
        let sent = scene.api.requests().len();
        assert!(sent > 0);
        // The agent died, and CHECK has no need to wait.
        drop(lock);
        let (record, _) = timed(&add);
        assert_eq!((&record["source"], &record["requests"]), (&json!("annotations"), &json!(0)));
        let check = call("CHECK");
        let _lock = keep(&check.run_dir());
        assert_eq!(timed(&check).0["decision"], "skipped: not meshed (no annotation of a proxy)");
        assert_eq!(scene.api.requests().len(), sent);
    }
}

#[test]
fn without_a_live_agent_an_unmeshed_pod_costs_next_to_nothing() {
    let scene = Scene::meshed();
    let call = |command| scene.call(command).annotated(json!({}));
    let (add, version) = (call("ADD"), call("VERSION"));
    drop(keep(&add.run_dir()));
    let time = |call: &Call| {
        let begin = Instant::now();
        call.run().succeeded();
        begin.elapsed()
    };
    let both: Vec<[Duration; 2]> = (0..20).map(|_| [time(&add), time(&version)]).collect();
    let [add, version] = [0, 1].map(|n| both.iter().map(|times| times[n]).min().unwrap());
    println!("unmeshed ADD: {add:.1?}, VERSION: {version:.1?}");
    assert!(add < version + COPY_WAIT / 10);
    assert!(scene.api.requests().is_empty());
}

#[test]
fn a_static_pod_is_found_by_the_uid_that_the_runtime_passes() {
    const HASH: &str = "0123456789abcdef0123456789abcdef";
    let scene = Scene::of(api_of(json!({}), &meshed_spec(), &json!({})));
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_UID={HASH}");
    let add = scene.add().env("CNI_ARGS", &args);
    publish(&add.run_dir(), HASH, &pod(UID, &meshed_spec()));
    let (record, _) = timed(&add);
    assert_eq!((&record["source"], &record["pod_uid"]), (&json!("copy"), &json!(UID)), "{record}");
    assert_eq!(record["decision"], "redirected");
}

#[test]
fn add_does_not_wait_for_a_pod_whose_uid_the_runtime_omits() {
    let scene = Scene::meshed();
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web";
    let add = scene.add().env("CNI_ARGS", args);
    let _lock = keep(&add.run_dir());
    publish(&add.run_dir(), UID, UNMESHED);
    // Repeated, as a request may take as long on a busy machine.
    let quick = (0..30).map(|_| timed(&add)).find(|(_, elapsed)| *elapsed < COPY_WAIT);
    let (record, _) = quick.expect("each ADD waits");
    assert_eq!(record["source"], "request", "{record}");
}
