//! Tests the node's copy of its pods. The plugin decides by the copy, without a request. The
//! annotations and the API server make no difference.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use linkerd2_cni::cni::args::PodRef;
use linkerd2_cni::pod_copy::{self, Lock};
use serde_json::{Value, json};

use super::injected::manual_annotations;
use super::record_socket::run_and_record;
use super::{Call, MESHED, POD_PATH, Scene, UID, UNMESHED, meshed_spec, start_api_with_pod};

/// Longest time that the plugin waits for a file that the agent has not written yet.
const COPY_WAIT: Duration = Duration::from_millis(100);

/// Publishes the pod object `ns/web` under the UID that the runtime passes.
fn publish(run_dir: &Path, uid: &str, pod: &str) {
    testkit::node_copy::publish(run_dir, ["ns", "web", uid], pod);
}

/// Takes the lock that a running agent holds.
fn take_agent_lock(run_dir: &Path) -> Lock {
    pod_copy::create(run_dir).unwrap();
    Lock::take(run_dir).unwrap()
}

/// Returns a pod object with this UID and this spec.
fn pod(uid: &str, spec: &Value) -> String {
    json!({"metadata": {"name": "web", "namespace": "ns", "uid": uid}, "spec": spec}).to_string()
}

/// Runs a call that must succeed. Returns its record, and the time it took.
fn run_timed(call: &Call) -> (Value, Duration) {
    let begin = Instant::now();
    let (outcome, record) = run_and_record(call);
    let elapsed = begin.elapsed();
    outcome.succeeded();
    (record, elapsed)
}

#[test]
fn copy_is_decisive_without_a_request_during_an_api_outage() {
    let mut with_init = meshed_spec();
    with_init["initContainers"] = json!([{"name": "linkerd-init"}]);
    let mut own_uid = meshed_spec();
    own_uid["containers"][1]["securityContext"] = json!({"runAsUser": 3000});
    let bare = json!({"containers": [{"name": "app"}]});
    let none = Some(json!({}));
    let injected = Some(manual_annotations());
    for (annotations, spec, rule) in [
        (injected.clone(), own_uid, "--uid-owner 3000"),
        // A pod without the injector's annotations: made by hand, or copied by `kubectl debug`.
        (none.clone(), meshed_spec(), "--uid-owner 2102"),
        (None, meshed_spec(), "--uid-owner 2102"),
        (injected.clone(), bare.clone(), ""),
        (injected, with_init, ""),
        (none, bare.clone(), ""),
        (None, bare, ""),
    ] {
        println!("{annotations:?} {spec}");
        let scene = Scene::meshed();
        scene.api.accept("another token");
        let call = |command| {
            let call = scene.call(command).annotated(annotations.clone());
            publish(&call.run_dir(), UID, &pod(UID, &spec));
            call
        };
        let (record, _) = run_timed(&call("ADD"));
        assert_eq!((&record["source"], &record["requests"]), (&json!("copy"), &json!(0)));
        let rules = scene.rules();
        assert_eq!(rules.is_empty(), rule.is_empty(), "{rules}");
        assert!(rules.contains(rule) && !rules.contains("guessed"), "{rules}");
        let (record, _) = run_timed(&call("CHECK"));
        assert_eq!((&record["source"], &record["degraded"]), (&json!("copy"), &Value::Null));
        if !rule.is_empty() {
            scene.sh("iptables-nft -t nat -D PROXY_INIT_OUTPUT 2");
            call("CHECK").run().failed(122, "");
        }
        assert!(scene.api.requests().is_empty(), "{:?}", scene.api.requests());
    }
}

#[test]
fn unusable_file_of_the_copy_is_ignored() {
    let scene = Scene::meshed();
    let call = |annotations| {
        let call = scene.add().annotated(annotations);
        publish(&call.run_dir(), UID, UNMESHED);
        fs::write(call.run_dir().join("pods").join(UID), "").unwrap();
        call
    };
    assert_eq!(run_timed(&call(json!({}))).0["source"], "annotations");
    assert!(scene.api.requests().is_empty());
    let (outcome, record) = run_and_record(&call(manual_annotations()));
    outcome.succeeded().logs("node's copy is unusable");
    assert_eq!(record["source"], "request");
    assert!(scene.has_rules());
}

/// Changes the pod's file to that of an agent of another version.
fn change_format(run_dir: &Path) {
    let path = run_dir.join("pods").join(UID);
    let mut copy: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    copy["format"] = json!("1-of-another-version");
    fs::write(&path, copy.to_string()).unwrap();
}

/// During an upgrade an older agent leaves out annotations that only the newer plugin knows, and a
/// rolled-back plugin finds the files of the newer agent.
#[test]
fn an_older_agents_copy_without_an_annotation_is_not_taken_for_complete() {
    let annotation = "config.linkerd.io/skip-inbound-ports";
    let spec = meshed_spec();
    for annotations in [manual_annotations(), json!({})] {
        let scene = Scene::with_api(start_api_with_pod(
            json!({"annotations": {annotation: "7777"}}),
            &spec,
            &json!({}),
        ));
        let add = scene.add().annotated(annotations.clone());
        publish(&add.run_dir(), UID, &pod(UID, &spec));
        change_format(&add.run_dir());
        let (record, _) = run_timed(&add);
        assert_eq!(record["source"], "request", "{annotations}: {record}");
        assert!(scene.rules().contains("7777"), "{annotations}: {}", scene.rules());
    }
    // The pod is known to be meshed, so it does not start without rules, whatever its annotations.
    let scene = Scene::meshed();
    scene.api.refuse(POD_PATH, 403);
    let add = scene.add().annotated(json!({}));
    publish(&add.run_dir(), UID, &pod(UID, &spec));
    change_format(&add.run_dir());
    add.run().failed(102, "");
    // An unmeshed pod does not depend on the API server.
    let add = scene.add().annotated(json!({}));
    publish(&add.run_dir(), UID, UNMESHED);
    change_format(&add.run_dir());
    let (record, _) = run_timed(&add);
    assert_eq!(record["source"], "annotations", "{record}");
}

#[test]
fn unannotated_pod_that_the_copy_lacks_is_requested_from_the_api_server() {
    for (status, body, decision, source) in [
        (200, MESHED, "redirected", "request"),
        (200, UNMESHED, "skipped: no linkerd-proxy container", "request"),
        (404, "{}", "skipped: not meshed (no annotation of a proxy)", "annotations"),
        (403, "{}", "skipped: not meshed (no annotation of a proxy)", "annotations"),
        (500, "{}", "skipped: not meshed (no annotation of a proxy)", "annotations"),
    ] {
        let scene = Scene::meshed();
        scene.api.answer(POD_PATH, status, body);
        let call =
            |command| scene.call(command).annotated(json!({})).linkerd("api-retry-seconds", 60);
        let add = call("ADD");
        let lock = take_agent_lock(&add.run_dir());
        let (record, elapsed) = run_timed(&add);
        println!("{status}: {elapsed:.1?}");
        assert_eq!(record["decision"], decision, "{record}");
        assert_eq!(record["source"], source, "{record}");
        assert!(record["degraded"].is_null() && record["error"].is_null(), "{record}");
        assert!(elapsed >= COPY_WAIT && elapsed < Duration::from_secs(30), "{elapsed:?}");
        let sent = scene.api.requests().len();
        assert!(sent > 0);
        // Neither ADD without a running agent nor CHECK requests this pod.
        drop(lock);
        let (record, _) = run_timed(&add);
        assert_eq!((&record["source"], &record["requests"]), (&json!("annotations"), &json!(0)));
        let check = call("CHECK");
        let _lock = take_agent_lock(&check.run_dir());
        assert_eq!(
            run_timed(&check).0["decision"],
            "skipped: not meshed (no annotation of a proxy)"
        );
        assert_eq!(scene.api.requests().len(), sent);
    }
}

#[test]
fn add_of_an_unmeshed_pod_does_not_wait_for_a_dead_agent() {
    let scene = Scene::meshed();
    let call = |command| scene.call(command).annotated(json!({}));
    let add = call("ADD");
    let version = call("VERSION");
    drop(take_agent_lock(&add.run_dir()));
    let time = |call: &Call| {
        let begin = Instant::now();
        call.run().succeeded();
        begin.elapsed()
    };
    let mut add_time = Duration::MAX;
    let mut version_time = Duration::MAX;
    for _ in 0..20 {
        add_time = add_time.min(time(&add));
        version_time = version_time.min(time(&version));
    }
    println!("unmeshed ADD: {add_time:.1?}, VERSION: {version_time:.1?}");
    assert!(add_time < version_time + COPY_WAIT / 10);
    assert!(scene.api.requests().is_empty());
}

#[test]
fn pod_too_large_for_the_copy_is_requested_and_counts_as_meshed() {
    let scene = Scene::meshed();
    let pod = PodRef { namespace: "ns".into(), name: "web".into(), uid: UID.into() };
    let call = || {
        let add = scene.add().annotated(json!({}));
        pod_copy::create(&add.run_dir()).unwrap();
        pod_copy::publish_too_large(&add.run_dir(), pod.clone()).unwrap();
        add
    };
    let add = call();
    let _lock = take_agent_lock(&add.run_dir());
    let (record, _) = run_timed(&add);
    assert_eq!((&record["source"], &record["decision"]), (&json!("request"), &json!("redirected")));
    // The copy says that the pod is meshed, so it must not start without rules.
    scene.api.refuse(POD_PATH, 403);
    call().run().failed(102, "");
}

#[test]
fn static_pod_is_found_by_the_uid_that_the_runtime_passes() {
    const HASH: &str = "0123456789abcdef0123456789abcdef";
    let scene = Scene::with_api(start_api_with_pod(json!({}), &meshed_spec(), &json!({})));
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_UID={HASH}");
    let add = scene.add().env("CNI_ARGS", &args);
    publish(&add.run_dir(), HASH, &pod(UID, &meshed_spec()));
    let (record, _) = run_timed(&add);
    assert_eq!((&record["source"], &record["pod_uid"]), (&json!("copy"), &json!(UID)), "{record}");
    assert_eq!(record["decision"], "redirected");
}

#[test]
fn add_does_not_wait_for_a_pod_whose_uid_the_runtime_omits() {
    let scene = Scene::meshed();
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web";
    let add = scene.add().env("CNI_ARGS", args);
    let _lock = take_agent_lock(&add.run_dir());
    publish(&add.run_dir(), UID, UNMESHED);
    // Repeat the call, because on a busy machine the request alone may take longer than the wait.
    let quick = (0..30).map(|_| run_timed(&add)).find(|(_, elapsed)| *elapsed < COPY_WAIT);
    let (record, _) = quick.expect("each ADD waits");
    assert_eq!(record["source"], "request", "{record}");
}
