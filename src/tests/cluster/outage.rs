//! Pods that start while the API server and the agent are dead.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testkit::child::takes_sigterm;

use crate::agent::{agent, is_agent, is_ready};
use crate::api;
use crate::burst::validating_pod;
use crate::containers::{address_of, answer_of, kill_sandbox};
use crate::node::{Node, StaticPod};
use crate::pod_copy::hand_made;
use crate::pods;
use crate::scene::Scene;
use crate::sigterm::{SHORT_GRACE, until_ended};
use crate::until::{until, until_found, until_some};
use crate::watcher::Watcher;

/// Number of injected pods that start in the outage.
const PODS: usize = 5;

/// The annotations that the injector sets.
pub fn injector_annotations() -> Value {
    json!({
        "linkerd.io/inject": "enabled",
        "linkerd.io/created-by": "linkerd/proxy-injector test",
        "linkerd.io/proxy-version": "test",
    })
}

pub fn injected(name: &str) -> Value {
    let mut pod = pods::meshed(name);
    pod["metadata"]["annotations"] = injector_annotations();
    pod
}

#[test]
fn pods_start_without_the_api_server_after_the_agent_is_killed() {
    let scene = Scene::installed(&SHORT_GRACE);
    let node = &scene.node;
    let pods = &scene.pods;
    pods.start(&[injected("injected"), pods::meshed("manual"), hand_made("by-hand")]);
    pods.start(&[pods::unmeshed("client")]);
    let addresses =
        ["injected", "manual", "by-hand", "client"].map(|name| (name, address_of(name).unwrap()));
    let first_agent = agent().pid;
    let watcher = Watcher::start();
    let (injected, meshed) = node.without_api_server(|| {
        let static_pods = start_static_pods(node);
        kill(first_agent, Signal::SIGKILL).unwrap();
        for (name, old_address) in &addresses {
            kill_sandbox(name);
            let new_address = until_found("the pod has a new address", || {
                address_of(name).filter(|address| address != old_address)
            });
            let responder = if *name == "client" { "app-of-client" } else { "proxy-inbound" };
            assert_responds(&new_address, responder);
        }
        let next_agent = until_found("kubelet restarts the agent", || {
            let mut agents = testkit::pids().filter(|pid| is_agent(*pid)).map(Pid::from_raw);
            let agent = agents.find(|pid| *pid != first_agent)?;
            if takes_sigterm(agent) { Some(agent) } else { None }
        });
        kill(next_agent, Signal::SIGTERM).unwrap();
        until_ended(next_agent, "stopped in an API outage");
        static_pods
    });
    until("the meshed pod runs", || meshed.runs());
    pods.until_proxied("client", &format!("{}:8080", meshed.address()));
    until("an agent is ready", is_ready);
    watcher.finish().assert_always_installed("API outage, SIGKILL, SIGTERM");
    drop((injected, meshed));
    scene.remove();
}

/// Starts static pods without the API server. Asserts that unmeshed and injected pods start,
/// because their annotations suffice to decide on them, and that a meshed pod without the
/// injector's mark waits. Returns the injected pods and the pod that waits.
fn start_static_pods(node: &Node) -> (Vec<StaticPod>, StaticPod) {
    let start = |pod: Value| node.static_pod(&pods::in_default(pod));
    let mut database = pods::unmeshed("static-mysql");
    database["metadata"]["annotations"] = json!({
        "config.linkerd.io/opaque-ports": "3306", "linkerd.io/inject": "disabled",
    });
    let unmeshed = [pods::unmeshed("static-unmeshed"), database].map(start);
    let injected: Vec<StaticPod> =
        (0..PODS).map(|number| start(injected(&format!("static-{number}x")))).collect();
    let meshed = start(pods::meshed("static-meshed"));
    until("the unmeshed pods run", || unmeshed.iter().all(StaticPod::runs));
    let log = node.kubelet_log();
    let mut lines = log.lines().filter(|line| line.contains("static-unmeshed"));
    assert!(!lines.any(|line| line.contains("CreatePodSandbox")), "its first ADD succeeds: {log}");
    until("the injected pods run", || injected.iter().all(StaticPod::runs));
    for pod in &injected {
        assert_responds(&pod.address(), "proxy-inbound");
    }
    let reason = "cannot read pod default/static-meshed";
    until("the reason why the other pod waits", || node.kubelet_log().contains(reason));
    assert!(!meshed.runs(), "a meshed pod without the mark must not start without redirect rules");
    (injected, meshed)
}

/// Connects from the node to port 8080 of a pod, and waits until a process responds. Fails unless
/// it is this process.
fn assert_responds(address: &str, responder: &str) {
    let actual = until_some(Duration::from_secs(120), "the pod responds", || answer_of(address));
    assert_eq!(actual, responder, "{address}");
}

/// Creates a pod with each of these annotations.
pub fn create_all(namespace: &str, annotations: impl Iterator<Item = Value>) {
    for (number, annotations) in annotations.enumerate() {
        api::create(&validating_pod(namespace, number, &annotations));
    }
}

/// Returns the number of the pods in the namespace that ran redirected. Fails if a pod ran without
/// redirection.
pub fn count_redirected(namespace: &str) -> usize {
    let pods = pods::list(namespace);
    let in_phase = |phase| pods.iter().filter(|pod| pod["status"]["phase"] == phase).count();
    assert_eq!(in_phase("Failed"), 0, "a pod ran without redirect rules: {pods:?}");
    in_phase("Succeeded")
}
