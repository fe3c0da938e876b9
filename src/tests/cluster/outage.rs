//! Pods that start while the API server and the agent are dead.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::agent::{agent, is_agent, is_ready};
use crate::burst::validating_pod;
use crate::containers::{address_of, answer_of, kill_sandbox};
use crate::node::{Node, StaticPod};
use crate::pod_copy::hand_made;
use crate::pods::{self, apply_all, field};
use crate::scene::Scene;
use crate::sigterm::{SHORT_GRACE, until_ended};
use crate::until::{until, until_some};
use crate::watcher::Watcher;

const PODS: usize = 5;

pub fn marked() -> Value {
    json!({
        "linkerd.io/inject": "enabled",
        "linkerd.io/created-by": "linkerd/proxy-injector test",
        "linkerd.io/proxy-version": "test",
    })
}

pub fn injected(name: &str) -> Value {
    let mut pod = pods::meshed(name);
    pod["metadata"]["annotations"] = marked();
    pod
}

#[test]
fn pods_start_in_an_api_outage_also_after_the_agent_is_killed() {
    let scene = Scene::installed(&SHORT_GRACE);
    let Scene { node, pods, .. } = &scene;
    let names = ["injected", "manual", "by-hand", "client"];
    pods.start(&[injected(names[0]), pods::meshed(names[1]), hand_made(names[2])]);
    pods.start(&[pods::unmeshed(names[3])]);
    let addresses = names.map(|name| (name, address_of(name).unwrap()));
    let first = agent().pid;
    let watcher = Watcher::start();
    let (injected, meshed) = node.without_api_server(|| {
        let started = new_pods_start_if_they_are_known_to_need_no_request(node);
        kill(first, Signal::SIGKILL).unwrap();
        for (name, old) in &addresses {
            kill_sandbox(name);
            let mut new = String::new();
            until("the pod has a new address", || {
                new = address_of(name).unwrap_or_default();
                !new.is_empty() && new != *old
            });
            let responder = if *name == "client" { "app-of-client" } else { "proxy-inbound" };
            assert_responds(&new, responder);
        }
        let mut next = first;
        until("kubelet restarts the agent", || {
            let mut pids = testkit::pids().filter(|pid| is_agent(*pid)).map(Pid::from_raw);
            next = pids.find(|pid| *pid != first).unwrap_or(first);
            next != first && testkit::child::takes_sigterm(next)
        });
        kill(next, Signal::SIGTERM).unwrap();
        until_ended(next, "stopped in an API outage");
        started
    });
    until("the meshed pod runs", || meshed.runs());
    pods.until_proxied("client", &format!("{}:8080", meshed.address()));
    until("an agent is ready", is_ready);
    watcher.finish().assert_always_installed("API outage, SIGKILL, SIGTERM");
    drop((injected, meshed));
    scene.remove();
}

/// Returns the static pods that the injector marked, and a meshed pod without the mark, which
/// waits.
fn new_pods_start_if_they_are_known_to_need_no_request(node: &Node) -> (Vec<StaticPod>, StaticPod) {
    let start = |pod: Value| node.static_pod(&pods::in_default(pod));
    let mut database = pods::unmeshed("static-mysql");
    database["metadata"]["annotations"] = json!({
        "config.linkerd.io/opaque-ports": "3306", "linkerd.io/inject": "disabled",
    });
    let unmeshed = [pods::unmeshed("static-unmeshed"), database].map(start);
    let names = (0..PODS).map(|number| format!("static-{number}x"));
    let injected: Vec<_> = names.map(|name| start(injected(&name))).collect();
    let meshed = start(pods::meshed("static-meshed"));
    until("the unmeshed pods run", || unmeshed.iter().all(StaticPod::runs));
    let log = node.kubelet_log();
    let mut lines = log.lines().filter(|line| line.contains("static-unmeshed"));
    assert!(!lines.any(|line| line.contains("CreatePodSandbox")), "its first ADD succeeds: {log}");
    until("the injected pods run", || injected.iter().all(StaticPod::runs));
    injected.iter().for_each(|pod| assert_responds(&pod.address(), "proxy-inbound"));
    let reason = "cannot read pod default/static-meshed";
    until("the reason why the other pod waits", || node.kubelet_log().contains(reason));
    assert!(!meshed.runs(), "a meshed pod without the mark must not start without redirect rules");
    (injected, meshed)
}

/// Connects from the node to port 8080, which only the proxy may answer for a redirected pod, once
/// somebody listens.
fn assert_responds(address: &str, responder: &str) {
    let answer = until_some(Duration::from_secs(120), "the pod responds", || answer_of(address));
    assert_eq!(answer, responder, "{address}");
}

pub fn create_all(namespace: &str, annotations: impl Iterator<Item = Value>) {
    apply_all(annotations.enumerate().map(|(number, of)| validating_pod(namespace, number, &of)));
}

/// Number of the pods in the namespace that ran redirected. No pod may have run without
/// redirection.
pub fn redirected(namespace: &str) -> usize {
    let phases = field(&format!("pods -n {namespace}"), ".items[*].status.phase");
    assert!(!phases.contains("Failed"), "a pod ran without redirect rules: {phases}");
    phases.matches("Succeeded").count()
}
