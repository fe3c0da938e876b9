//! Tests how the agent reports plugin calls: in its log, in its metrics, and in Events on pods.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent_with_api::Scene;
use crate::call::Call;
use crate::node::{CALICO, LIST, Node};
use crate::promtool;
use crate::until::until;

const SOCKET: &str = ".linkerd-cni.sock";
const KEY: &str = "config.linkerd.io/skip-outbound-ports";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/emojivoto/events";

/// Sends the agent the record of a redirected pod whose UID ends with `number`, with `changes` to
/// its keys.
fn send(node: &Node, number: u32, changes: &Value) -> bool {
    let mut record = json!({
        "level": "info", "command": "ADD", "namespace": "emojivoto", "pod": "web-1",
        "pod_uid": format!("c0ffee00-0000-4000-8000-{number:012}"), "container_id": "c",
        "decision": "redirected", "backend": "native", "requests": 3, "retries": 2, "ms": 3,
    });
    record.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let writer = UnixDatagram::unbound().unwrap();
    writer.set_nonblocking(true).unwrap();
    writer.send_to(record.to_string().as_bytes(), node.net(SOCKET)).is_ok()
}

/// Returns the changes for the record of an ADD that failed with `code`.
fn failed(code: u32) -> Value {
    json!({"decision": "failed", "error": {"code": code, "msg": "secret"}})
}

/// Sends the record of an ADD that failed with `code`. The record has no UID, so that the agent
/// posts no Event.
fn report(node: &Node, code: u32) {
    let mut changes = failed(code);
    changes["pod_uid"] = json!("");
    until("the agent's socket", || send(node, 1, &changes));
}

/// Sends the record of an ADD whose request the API server rejected.
pub fn report_rejection(node: &Node) {
    report(node, 102);
}

/// Sends the record of an ADD that could not reach the API server.
pub fn report_unreachable(node: &Node) {
    report(node, 101);
}

impl Scene {
    fn send(&self, number: u32, changes: &Value) {
        until("the record is sent", || send(&self.node, number, changes));
    }

    /// Waits until the agent has posted the Events for all records so far. Sends another record
    /// and waits for its Event. The records must be fewer than a burst.
    fn settle(&self) {
        self.send(99, &json!({"degraded": {"code": 101, "msg": ""}}));
        let is_last = |event: &Value| event["regarding"]["uid"].as_str().unwrap().ends_with("99");
        until("the last Event", || self.posted().iter().any(is_last));
    }

    /// Returns the bodies of the Events on pods, including the one that [`Scene::settle`] caused.
    fn posted(&self) -> Vec<Value> {
        let posted = self.api.received(|request| request.path == EVENTS);
        posted.into_iter().map(|request| request.body).collect()
    }

    /// Returns the number of records with ignored ports from this source.
    fn count_ignored(&self, source: &str) -> f64 {
        let metric = format!("linkerd_cni_plugin_ignored_ports_total{{source=\"{source}\"}}");
        self.agent.metric(&metric)
    }
}

/// Returns whether the record socket exists, with the right mode.
fn has_socket(node: &Node) -> bool {
    let file = fs::symlink_metadata(node.net(SOCKET));
    file.is_ok_and(|file| file.file_type().is_socket() && file.mode() & 0o777 == 0o600)
}

/// Calls the plugin without an API server. ADD fails for a pod with an annotation of Linkerd, and
/// succeeds for a pod without one.
fn add(node: &Node, pod: &str, meshed: bool) {
    let annotations = if meshed { json!({"linkerd.io/proxy-version": "x"}) } else { json!({}) };
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}");
    let netns = Path::new("/no/such/namespace");
    let call = Call::with_kubeconfig("ADD", netns, &node.net("kubeconfig.json"));
    let call = call.env("CNI_ARGS", args).env("LINKERD_CNI_RUN_DIR", node.root().join("run"));
    let outcome = call.annotated(annotations).linkerd("api-retry-seconds", 1).run();
    assert_eq!(outcome.code == Some(0), !meshed, "{}", outcome.stderr);
}

#[test]
fn plugin_calls_are_in_the_agents_log_and_metrics() {
    let node = Node::with_calico();
    let agent = node.start_ready();
    until("the socket", || has_socket(&node));
    add(&node, "web-1", false);
    add(&node, "web-2", true);
    let passed = "INFO linkerd-cni: ADD ns/web-1 container abc: \
                  skipped: not meshed (no annotation of a proxy), 0 requests, ";
    until("the first record", || agent.log().contains(passed));
    let failed = "ERROR linkerd-cni: ADD ns/web-2 container abc: failed, ";
    until("the second record", || agent.log().contains(failed));
    let log = agent.log();
    let line = log.lines().find(|line| line.contains(failed)).unwrap();
    let why = "the CA of the API server contains no PEM certificate (code 100)";
    assert!(line.ends_with(why), "{line}");
    for result in ["skipped", "failed"] {
        let sample =
            format!("linkerd_cni_plugin_requests_total{{command=\"ADD\",result=\"{result}\"}}");
        assert_eq!(agent.metric(&sample), 1.0);
    }
    assert!(!log.contains("token-1"));
}

#[test]
fn promtool_accepts_the_agents_metrics() {
    let Scene { node, agent, .. } = Scene::with_socket();
    assert!(send(&node, 1, &failed(101)));
    let failures = r#"linkerd_cni_plugin_failures_total{command="ADD",code="101"}"#;
    until("the failure", || agent.metric(failures) == 1.0);
    assert_eq!(agent.metric("linkerd_cni_plugin_api_requests_total"), 3.0);
    assert_eq!(agent.metric("linkerd_cni_plugin_api_retries_total"), 2.0);
    let version = env!("CARGO_PKG_VERSION");
    let info = format!(r#"linkerd_cni_agent_build_info{{version="{version}"}}"#);
    assert_eq!(agent.metric(&info), 1.0);
    assert!(agent.metric(r#"linkerd_cni_agent_api_requests_total{status="2xx"}"#) >= 1.0);
    assert_eq!(agent.metric("linkerd_cni_agent_plugin_entry_restores_total"), 0.0);
    let gap = "linkerd_cni_agent_conflist_without_entry_seconds_total";
    let before = agent.metric(gap);
    node.rewrite_calico();
    let restores = || agent.metric("linkerd_cni_agent_plugin_entry_restores_total");
    until("the time without the entry", || restores() == 1.0 && agent.metric(gap) > before);
    assert_eq!(agent.metric("linkerd_cni_agent_contention_active"), 0.0);
    promtool::assert_clean(&agent.get("/metrics").1);
}

#[test]
fn deleted_record_socket_is_created_again() {
    let node = Node::with_calico();
    // Create the socket that a killed agent leaves.
    drop(UnixDatagram::bind(node.net(SOCKET)).unwrap());
    let agent = node.start_ready();
    let assert_received = |pod: &str| {
        until("the socket", || has_socket(&node));
        let named = format!("ns/{pod} ");
        until(pod, || {
            add(&node, pod, false);
            agent.log().contains(&named)
        });
    };
    assert_received("web-1");
    fs::remove_file(node.net(SOCKET)).unwrap();
    assert_received("web-2");
    node.remove_tree("etc");
    fs::create_dir(node.root().join("etc")).unwrap();
    node.write(LIST, CALICO);
    assert_received("web-3");
    let log = agent.log();
    let count = |text| log.matches(text).count();
    let failures = count("cannot receive plugin records");
    assert_eq!(failures, count("plugin records are received again"), "{log}");
}

#[test]
fn record_socket_is_only_in_the_run_dir_if_there_is_one() {
    let node = Node::uninstalling_with_calico();
    let run_dir = node.root().join("run");
    fs::create_dir(&run_dir).unwrap();
    // Create the socket that a killed agent without a run dir leaves.
    drop(UnixDatagram::bind(node.net(SOCKET)).unwrap());
    let mut agent = node.start_ready_with(&[("LINKERD_CNI_RUN_DIR", run_dir.to_str().unwrap())]);
    until("the socket", || run_dir.join("records.sock").exists());
    until("the record", || {
        add(&node, "web", false);
        agent.log().contains("ns/web ")
    });
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert!(!node.net(SOCKET).exists());
    assert_eq!(fs::read_dir(&run_dir).unwrap().count(), 0);
}

#[test]
fn uninstall_removes_the_record_socket_of_a_stopped_or_killed_agent() {
    let node = Node::uninstalling_with_calico();
    let before = node.tree();
    for is_killed in [false, true] {
        let mut agent = node.start_ready();
        until("the socket", || has_socket(&node));
        if is_killed {
            agent.kill();
            assert!(has_socket(&node));
            agent = node.start_ready();
        }
        node.assert_restored(&mut agent, &before);
    }
}

#[test]
fn failed_uninstall_still_removes_the_record_socket_of_a_dead_agent() {
    let node = Node::with_calico();
    node.install();
    // The uninstall fails, because this invalid config names the plugin.
    node.write("05-broken.conflist", r#"{"plugins": [{"type": "linkerd-cni""#);
    assert!(node.net(SOCKET).exists());
    node.uninstall_ends_with(1);
    assert!(!node.net(SOCKET).exists() && node.bin("linkerd-cni").exists());
    // The socket of a running agent is kept, even if the uninstall succeeds.
    let _alive = UnixDatagram::bind(node.net(SOCKET)).unwrap();
    node.uninstall_ends_with(1);
    assert!(node.net(SOCKET).exists());
    fs::remove_file(node.net("05-broken.conflist")).unwrap();
    node.uninstall();
    assert!(node.net(SOCKET).exists() && !node.bin("linkerd-cni").exists());
}

#[test]
fn flood_of_records_is_logged_at_a_limited_rate() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    until("the socket", || has_socket(&node));
    let send = |changes: &Value| send(&node, 1, changes);
    let writer = UnixDatagram::unbound().unwrap();
    for bad in ["", "x", "{}"] {
        writer.send_to(bad.as_bytes(), node.net(SOCKET)).unwrap();
    }
    for (key, value) in
        [("pod", "a\nb"), ("pod", &*"a".repeat(20_000)), ("namespace", ".."), ("pod", "good")]
    {
        until("the record is sent", || send(&json!({key: value})));
    }
    until("the valid record is read", || agent.log().contains("emojivoto/good "));
    assert_eq!(agent.log().matches("linkerd-cni: ").count(), 1, "{}", agent.log());

    let (flood, begin) = (json!({"pod": "flood"}), Instant::now());
    let lines = || agent.log().matches("emojivoto/flood ").count();
    until("a burst is logged", || {
        for _ in 0..64 {
            send(&flood);
        }
        lines() >= 256
    });
    for _ in 0..400 {
        send(&flood);
        thread::sleep(Duration::from_millis(2));
    }
    let allowed = 257 + begin.elapsed().as_millis() / 100;
    assert!(lines() as u128 <= allowed, "{} of {allowed}", lines());
    agent.until_ready();
}

/// Returns the changes for a record with ignored ports.
fn invalid_ports(source: &str) -> Value {
    json!({"ignored": [{"source": source, "elements": ["http", "30-20"]}]})
}

#[test]
fn ignored_ports_are_reported_in_one_event_only_if_an_annotation_lists_them() {
    let scene = Scene::with_socket();
    for source in [KEY, "outbound-ports-to-ignore"] {
        for _ in 0..3 {
            scene.send(1, &invalid_ports(source));
        }
        let line = format!("; ignored in {source}: \"http\", \"30-20\"");
        until(&line, || scene.agent.log().contains(&line));
        until("all are counted", || scene.count_ignored(source) == 3.0);
    }
    scene.settle();
    let events = scene.posted();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0]["reason"], "LinkerdCNIPortsIgnored");
    assert_eq!(events[0]["reportingInstance"], "linkerd-cni-x");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "emojivoto", "name": "web-1",
        "uid": "c0ffee00-0000-4000-8000-000000000001"});
    assert_eq!(events[0]["regarding"], pod);
    assert!(events[0]["note"].as_str().unwrap().contains(KEY), "{}", events[0]);
}

#[test]
fn agent_that_may_not_create_events_logs_this_once_and_stops_posting() {
    let scene = Scene::with_socket();
    scene.api.state().events = 403;
    scene.send(1, &invalid_ports(KEY));
    let reason = "cannot post Events, because the agent's ServiceAccount may not create Events";
    until("the reason", || scene.agent.log().contains(reason));
    for number in 2..30 {
        scene.send(number, &invalid_ports(KEY));
    }
    until("all are counted", || scene.count_ignored(KEY) == 29.0);
    assert_eq!(scene.posted().len(), 1);
    assert_eq!(scene.agent.log().matches(reason).count(), 1);
}
