//! Pods that start while the credential, the API server or the agent is dead.

use std::io::Read as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::agent::{KUBECONFIG, Paused, agent, is_ready, revoke_token, token, until_rejected};
use crate::burst::validating_pod;
use crate::containers::{address_of, kill_sandbox};
use crate::pod_copy::hand_made;
use crate::pods::{self, apply, command, kubectl};
use crate::scene::{OnDrop, Scene};
use crate::until::until;

const PODS: usize = 10;

/// The annotations that the injector sets.
fn marked() -> Value {
    json!({
        "linkerd.io/inject": "enabled",
        "linkerd.io/created-by": "linkerd/proxy-injector test",
        "linkerd.io/proxy-version": "test",
    })
}

/// The pod as the injector makes it.
pub fn injected(name: &str) -> Value {
    let mut pod = pods::meshed(name);
    pod["metadata"]["annotations"] = marked();
    pod
}

#[test]
fn with_a_revoked_token_injected_pods_start_redirected_and_other_meshed_pods_wait() {
    let scene = Scene::installed(&[]);
    let namespace = namespace("outage");

    // The agent would renew the token, so it is stopped meanwhile.
    let old = std::fs::read_to_string(KUBECONFIG).unwrap();
    let paused = Paused::process(agent().pid);
    revoke_token();
    until_rejected(&old);
    let begin = Instant::now();
    create_all("outage", (0..PODS).map(|_| marked()));
    until("all injected pods are redirected", || redirected("outage") == PODS);
    println!("{PODS} injected pods ran redirected in {:.1?}", begin.elapsed());

    let unmarked = json!({"linkerd.io/proxy-version": "test"});
    apply(&validating_pod("outage", PODS, &unmarked));
    let name = format!("pod-{PODS}");
    let mut event = String::new();
    until("the reason why the other pod waits", || {
        let said = kubectl(&format!("describe pod -n outage {name}"));
        let line = said.lines().find(|line| line.contains("FailedCreatePodSandBox"));
        event = line.unwrap_or_default().trim().to_owned();
        event.contains("cannot read pod outage/pod-10")
    });
    println!("{event}");
    assert!(event.contains("HTTP 401") && event.contains("renews the token"), "{event}");

    drop(paused);
    until("the agent renews the token and the other pod starts", || {
        token() != crate::agent::token_in(&old) && redirected("outage") == PODS + 1
    });
    until("the Events", || {
        let events = kubectl("get events -n outage");
        events.lines().filter(|line| line.contains("LinkerdCNIDegraded")).count() >= 5
    });
    until("the agent is ready", is_ready);
    drop(namespace);
    scene.uninstall();
}

#[test]
fn without_an_api_server_unmeshed_and_injected_pods_start_and_other_meshed_pods_wait() {
    let scene = Scene::installed(&[]);
    let Scene { node, pods, .. } = &scene;
    pods.start(&[pods::unmeshed("client")]);
    let mut database = pods::unmeshed("static-mysql");
    database["metadata"]["annotations"] = json!({
        "config.linkerd.io/opaque-ports": "3306",
        "linkerd.io/inject": "disabled",
    });
    let start = |pod: Value| node.static_pod(&pods::in_default(pod));
    let (injected, meshed) = node.without_api_server(|| {
        let begin = Instant::now();
        let unmeshed = start(pods::unmeshed("static-unmeshed"));
        let database = start(database);
        let names = (0..PODS).map(|number| format!("static-{number}x"));
        let injected: Vec<_> = names.map(|name| start(self::injected(&name))).collect();
        let meshed = start(pods::meshed("static-meshed"));
        until("the unmeshed pods run", || unmeshed.runs() && database.runs());
        println!("the unmeshed pods ran {:.1?} after their files", begin.elapsed());
        let log = node.kubelet_log();
        let mut lines = log.lines().filter(|line| line.contains("static-unmeshed"));
        assert!(
            !lines.any(|line| line.contains("CreatePodSandbox")),
            "its first ADD succeeds: {log}"
        );
        until("the injected pods run", || injected.iter().all(|pod| pod.runs()));
        println!("{PODS} injected pods ran {:.1?} after their files", begin.elapsed());
        for pod in &injected {
            let address = pod.address();
            let mut answer = String::new();
            until("the proxy answers", || {
                answer = connect(&address).unwrap_or_default();
                !answer.is_empty()
            });
            assert!(answer.starts_with("proxy-inbound"), "{address}: {answer}");
        }
        let reason = "cannot read pod default/static-meshed";
        until("the reason why the other pod waits", || node.kubelet_log().contains(reason));
        assert!(!meshed.runs(), "a meshed pod without the mark must not start bare");
        (injected, meshed)
    });
    until("the meshed pod runs", || meshed.runs());
    pods.until_proxied("client", &format!("{}:8080", meshed.address()));
    drop((injected, meshed));
    scene.uninstall();
}

#[test]
fn known_pods_restart_redirected_while_agent_and_api_server_are_dead() {
    let scene = Scene::installed(&[]);
    let Scene { node, pods, .. } = &scene;
    let names = ["injected", "manual", "by-hand"];
    pods.start(&[injected("injected"), pods::meshed("manual"), hand_made("by-hand")]);
    pods.start(&[pods::unmeshed("unmeshed")]);
    let all = names.iter().chain(&["unmeshed"]);
    let addresses: Vec<_> = all.map(|name| (*name, address_of(name).unwrap())).collect();
    let agent = agent();
    node.without_api_server(|| {
        kill(agent.pid, Signal::SIGKILL).unwrap();
        let begin = Instant::now();
        for (name, old) in &addresses {
            kill_sandbox(name);
            let mut new = String::new();
            until("the pod has a new address", || {
                new = address_of(name).unwrap_or_default();
                !new.is_empty() && new != *old
            });
            let mut answer = String::new();
            until("the pod answers", || {
                answer = connect(&new).unwrap_or_default();
                !answer.is_empty()
            });
            let responder = if names.contains(name) { "proxy-inbound" } else { "app-of-unmeshed" };
            assert!(answer.starts_with(responder), "{name}: {answer}");
            println!("{name} runs again after {:.1?}: {}", begin.elapsed(), answer.trim());
        }
    });
    until("the agent is ready", is_ready);
    scene.uninstall();
}

/// Connects from the node to port 8080, which only the proxy may answer for a redirected pod.
/// `None` if nobody listens yet.
fn connect(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect((address, 8080)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Creates a namespace for pods that end. Dropping the value deletes it.
pub fn namespace(name: &str) -> OnDrop<impl FnMut()> {
    kubectl(&format!("create namespace {name}"));
    pods::until_account(name);
    OnDrop(move || {
        let _ = command(&format!("delete namespace {name} --timeout=60s")).output();
    })
}

/// Creates the pods, one for each of the annotations.
pub fn create_all(namespace: &str, annotations: impl Iterator<Item = Value>) {
    let pods = annotations.enumerate().map(|(number, of)| validating_pod(namespace, number, &of));
    apply(&json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()}));
}

/// Number of the pods in the namespace that ran redirected. No pod may have run without redirection.
pub fn redirected(namespace: &str) -> usize {
    let path = "jsonpath={.items[*].status.phase}";
    let phases = kubectl(&format!("get pods -n {namespace} -o {path}"));
    assert!(!phases.contains("Failed"), "bare: {phases}");
    phases.matches("Succeeded").count()
}
