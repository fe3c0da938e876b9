//! A container runtime that cannot run the plugin, as its Events on pods show it.
//!
//! The agent waits 5 to 15 s before it asks for the Events of a pod, so the tests run side by side.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use testkit::cni::upstream_entry;

use crate::agent::Agent;
use crate::agent_with_api::{Scene, in_parallel, in_parallel_of};
use crate::api::{Api, PodEvents};
use crate::child::has_strace;
use crate::node::{CALICO, LIST, Node};
use crate::until::until;

const EVENTS: &str = "/events?fieldSelector=involvedObject";
const NODE_EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const NOT_FOUND: &str = "failed to find plugin \"linkerd-cni\" in path [/usr/lib/cni]";

/// An Event of the kubelet about a pod without sandbox.
fn event(reason: &str, error: &str) -> Value {
    json!({
        "metadata": {"name": "web.1", "namespace": "shop"},
        "reason": reason,
        "message": format!(
            "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network \
             for sandbox \"c58b\": plugin type=\"linkerd-cni\" name=\"net\" failed (add): {error}"
        ),
        "source": {"component": "kubelet", "host": "node-1"},
        "type": "Warning",
    })
}

fn cannot_run() -> PodEvents {
    PodEvents::Items(vec![event("FailedCreatePodSandBox", NOT_FOUND)])
}

/// A pod with this status.
fn pod(status: &Value) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "web", "uid": "u-1", "resourceVersion": "7"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "app"}]},
        "status": status,
    })
}

fn without_sandbox() -> Value {
    pod(&json!({
        "phase": "Pending",
        "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}],
    }))
}

/// A pod that the kubelet accepted in a minute, with a sandbox.
fn started() -> Value {
    let accepted = SystemTime::now() + Duration::from_secs(60);
    pod(&json!({
        "phase": "Running",
        "startTime": humantime::format_rfc3339_seconds(accepted).to_string(),
        "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [{"type": "PodReadyToStartContainers", "status": "True"}],
    }))
}

/// The plugin entry of an agent with other settings.
fn other_entry() -> String {
    let mut entry = upstream_entry();
    entry["linkerd"]["incoming-proxy-port"] = json!(5143);
    entry.to_string()
}

/// A node with these pods, whose agent watches them.
fn node_with(api: &Api, pods: Vec<Value>) -> Node {
    api.state().pods = pods;
    let mut node = Node::with_api(api);
    node.vars.push(("LINKERD_CNI_RUN_DIR", node.root().join("run").display().to_string()));
    node.vars.push(("LINKERD_CNI_NODE_NAME", "node-1".into()));
    node.vars.push(("CNI_NETWORK_CONFIG", upstream_entry().to_string()));
    node
}

/// A ready agent of a node with a pod without sandbox.
fn stuck(events: PodEvents) -> Scene {
    let api = Api::start();
    api.state().pod_events = events;
    let node = node_with(&api, vec![without_sandbox()]);
    Scene::start_on(api, node, &[])
}

/// A scene whose plugin entry is withdrawn.
pub fn withdrawn() -> Scene {
    let scene = stuck(cannot_run());
    scene.until_withdrawn();
    scene
}

impl Scene {
    fn record(&self) -> PathBuf {
        self.node.root().join("run/withdrawn")
    }

    /// What `/status` says of the chain.
    fn chain(&self) -> Value {
        chain(&self.agent)
    }

    fn until_withdrawn(&self) {
        until_withdrawn(&self.node, &self.agent);
    }

    fn asked_for_events(&self) -> usize {
        self.api.asked("GET", EVENTS)
    }

    fn until_asked_for_events(&self) {
        until("the agent asks for the Events", || self.asked_for_events() > 0);
    }

    /// Asserts that the plugin is still chained, and the agent ready.
    fn assert_chained(&self, name: &str) {
        assert!(self.node.is_installed(), "{name}: {}", self.agent.log());
        assert_eq!(self.agent.ready().0, 200, "{name}: {}", self.agent.log());
        assert!(!self.record().exists(), "{name}");
    }
}

fn chain(agent: &Agent) -> Value {
    let body: Value = serde_json::from_str(&agent.get("/status").1).unwrap_or_default();
    body["runtime"]["chain"].clone()
}

/// Whether an agent that may be killed meanwhile says that it is not ready.
fn is_not_ready(agent: &Agent) -> bool {
    match agent.try_get("/ready") {
        Some((status, _)) => status == 500,
        None => false,
    }
}

fn until_withdrawn(node: &Node, agent: &Agent) {
    until("the plugin entry is withdrawn", || {
        node.text(LIST) == CALICO && agent.ready().1.contains("the runtime says")
    });
    assert!(node.bin("linkerd-cni").exists() && node.net("kubeconfig.json").exists());
    assert_eq!(chain(agent), "withdrawn");
}

#[test]
fn the_plugin_entry_is_withdrawn_until_the_chain_changes() {
    let mut scene = stuck(cannot_run());
    assert_eq!(scene.chain(), "provisional");
    scene.until_withdrawn();
    let (_, ready) = scene.agent.ready();
    for text in ["pod shop/web", NOT_FOUND, "in /bin", "destCNIBinDir", "run/withdrawn"] {
        assert!(ready.contains(text), "{text}: {ready}");
    }
    let mode = fs::metadata(scene.record()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    until("the Event on the node", || {
        let posted = scene.api.received(|request| request.path == NODE_EVENTS);
        posted.iter().any(|event| event.body["reason"] == "LinkerdCNIWithdrawn")
    });
    // The pod starts, which says nothing about a chain that is not in place.
    scene.api.modify(&started());
    thread::sleep(Duration::from_secs(1));
    scene.until_withdrawn();

    // The next agent has the same chain, and does not put it in place.
    scene.agent.kill();
    let mut agent = scene.node.start();
    until_withdrawn(&scene.node, &agent);
    assert_eq!(agent.metric("linkerd_cni_agent_conflist_writes_total"), 0.0);
    agent.kill();

    let entry = other_entry();
    let mut agent = scene.node.start_with(&[("CNI_NETWORK_CONFIG", &entry)]);
    agent.until_ready();
    assert!(scene.node.text(LIST).contains("5143") && !scene.record().exists());
    assert!(agent.log().contains("has changed since"), "{}", agent.log());
}

#[test]
fn the_plugin_is_chained_again_when_the_record_is_removed() {
    let mut scene = withdrawn();
    scene.api.state().pod_events = PodEvents::Items(Vec::new());
    fs::remove_file(scene.record()).unwrap();
    scene.agent.until_ready();
    scene.assert_chained("the record is removed");
    assert_eq!(scene.chain(), "provisional");
}

#[test]
fn uninstall_removes_the_record_of_a_withdrawal() {
    let mut scene = withdrawn();
    scene.agent.kill();
    scene.node.uninstall();
    assert!(scene.node.is_uninstalled() && !scene.record().exists());
}

/// What happens on a node with a stuck pod, and the state of the chain at the end.
type Row = (&'static str, PodEvents, fn(&Scene), &'static str);

#[test]
fn nothing_is_withdrawn_without_the_runtimes_words() {
    let own_error = "the plugin's kubeconfig is missing or invalid: no such file or directory";
    let rows: [Row; 5] = [
        (
            "a volume",
            PodEvents::Items(vec![event("FailedMount", NOT_FOUND)]),
            Scene::until_asked_for_events,
            "provisional",
        ),
        (
            "an error of the plugin, and its record",
            PodEvents::Items(vec![event("FailedCreatePodSandBox", own_error)]),
            |scene| {
                scene.until_asked_for_events();
                scene.send_record();
                until("proof", || scene.chain() == "proven");
            },
            "proven",
        ),
        ("no permission", PodEvents::Status(403), Scene::until_asked_for_events, "unprovable"),
        ("an error", PodEvents::Status(500), Scene::until_asked_for_events, "provisional"),
        (
            "a response that never arrives",
            PodEvents::Hang,
            |scene| {
                scene.until_asked_for_events();
                // Passes go on.
                scene.node.rewrite_calico();
            },
            "provisional",
        ),
    ];
    in_parallel(rows, |(name, events, happens, expected)| {
        let mut scene = stuck(events);
        happens(&scene);
        until(name, || scene.chain() == expected);
        thread::sleep(Duration::from_secs(2));
        scene.agent.until_ready();
        scene.assert_chained(name);
        let asked = scene.asked_for_events();
        assert!((1..=2).contains(&asked), "{name}: {asked}");
        let log = scene.agent.log();
        let said = log.matches("the agent may not list Events").count();
        assert_eq!(said, usize::from(expected == "unprovable"), "{name}: {log}");
    });
}

impl Scene {
    /// Sends the record of an ADD that failed.
    fn send_record(&self) {
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let record = json!({
            "level": "info", "command": "ADD", "namespace": "shop", "pod": "web", "pod_uid": "u-1",
            "container_id": "c", "decision": "failed", "requests": 0, "retries": 0, "ms": 3,
            "error": {"code": 100, "msg": "kubeconfig"},
        });
        let path = self.node.root().join("run/records.sock");
        socket.send_to(record.to_string().as_bytes(), path).unwrap();
    }
}

#[test]
fn a_pod_that_starts_proves_the_chain_without_a_request() {
    let api = Api::start();
    api.state().pod_events = cannot_run();
    let node = node_with(&api, vec![started()]);
    let scene = Scene::start_on(api, node, &[]);
    until("proof", || scene.chain() == "proven");
    let log = scene.agent.log();
    assert_eq!(log.matches("has started a pod through the chain").count(), 1, "{log}");
    // Pods that are stuck later have another cause.
    scene.api.modify(&without_sandbox());
    thread::sleep(Duration::from_secs(17));
    assert_eq!(scene.asked_for_events(), 0);
    scene.assert_chained("proven");
}

#[test]
fn an_agent_that_does_not_watch_pods_says_once_that_it_cannot_tell() {
    let api = Api::start();
    let node = node_with(&api, vec![without_sandbox()]);
    let mut scene = Scene::start_on(api, node, &[("LINKERD_CNI_WATCH_PODS", "false")]);
    until("the state", || scene.chain() == "unprovable");
    scene.node.rewrite_calico();
    until("the state", || scene.chain() == "unprovable");
    let log = scene.agent.log();
    assert_eq!(log.matches("does not watch the pods of its node").count(), 1, "{log}");
    scene.agent.until_ready();
    scene.assert_chained("unprovable");
}

#[test]
fn an_older_agent_does_not_chain_what_a_newer_one_has_withdrawn() {
    let api = Api::start();
    let node = node_with(&api, Vec::new());
    let old = Scene::start_on(api, node, &[]);
    old.api.state().pods = vec![without_sandbox()];
    old.api.state().pod_events = cannot_run();
    let entry = other_entry();
    let mut new = old.node.start_with(&[("CNI_NETWORK_CONFIG", &entry)]);
    until_withdrawn(&old.node, &new);
    let written = old.agent.metric("linkerd_cni_agent_conflist_writes_total");
    thread::sleep(Duration::from_secs(3));
    assert_eq!(old.node.text(LIST), CALICO, "{}", old.agent.log());
    assert_eq!(old.agent.metric("linkerd_cni_agent_conflist_writes_total"), written);
    // The older agent has another chain, which it puts in place when the newer agent ends.
    new.kill();
    until("the older agent's entry", || old.node.chained(LIST));
    until("the record is removed", || !old.record().exists());
}

/// System calls of a withdrawal, and the number of kills at them of which each has to leave a node
/// that the next agent completes.
const CALLS: [(&str, usize); 4] = [("fsync", 2), ("rename", 1), ("renameat2", 1), ("unlink", 0)];

#[test]
fn a_kill_at_any_step_of_a_withdrawal_is_completed_by_the_next_agent() {
    if !has_strace() {
        return;
    }
    let mut cases = Vec::new();
    for (call, _) in CALLS {
        for turn in 1..=8 {
            cases.push((call, turn));
        }
    }
    let kills = std::sync::Mutex::new(std::collections::BTreeMap::new());
    in_parallel_of(8, cases, |(call, turn)| {
        let api = Api::start();
        api.state().pod_events = cannot_run();
        let node = node_with(&api, Vec::new());
        node.write("20-net.conflist", CALICO);
        node.install();
        api.state().pods = vec![without_sandbox()];
        let fault = format!("{call}:signal=KILL:when={turn}");
        let mut agent = node.start_with_fault(&fault, &[]);
        until("the agent is killed, or the plugin entry withdrawn", || {
            agent.has_ended() || node.text(LIST) == CALICO && is_not_ready(&agent)
        });
        if agent.has_ended() {
            *kills.lock().unwrap().entry(call).or_insert(0) += 1;
        }
        agent.kill();
        node.assert_not_stranded();
        // The record is written first.
        let record = node.root().join("run/withdrawn");
        assert!(node.text(LIST) != CALICO || record.exists(), "kill {turn} at {call}");
        let agent = node.start();
        until_withdrawn(&node, &agent);
    });
    let kills = kills.into_inner().unwrap();
    for (call, least) in CALLS {
        let found = kills.get(call).copied().unwrap_or(0);
        println!("{found} kills at {call}");
        assert!(found >= least, "{found} kills at {call}");
    }
}
