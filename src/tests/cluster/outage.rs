//! Pods that the proxy injector marked: their API requests, and their start while the credential or
//! the API server is dead.

use std::io::Read as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::agent::{KUBECONFIG, agent, find_agent, token, until_rejected};
use crate::burst::validating_pod;
use crate::helm::Helm;
use crate::node::Node;
use crate::pods::{self, Pods, apply, command, kubectl};
use crate::until::until;

const PODS: usize = 10;
const ACCOUNT: [&str; 5] = ["serviceaccount", "linkerd-cni-plugin", "-n", "linkerd-cni", "-o"];

/// The annotations that the injector sets.
fn marked() -> Value {
    json!({
        "linkerd.io/inject": "enabled",
        "linkerd.io/created-by": "linkerd/proxy-injector test",
        "linkerd.io/proxy-version": "test",
    })
}

/// The pod as the injector makes it.
fn injected(name: &str) -> Value {
    let mut pod = pods::meshed(name);
    pod["metadata"]["annotations"] = marked();
    pod
}

#[test]
fn an_injected_pod_takes_one_api_request_and_with_the_detection_injector_none() {
    let node = Node::exclusive();
    let helm = Helm::with_local_repository();
    let pods = Pods::default();
    helm.run("install", &[]);
    pods.start(&[pods::unmeshed("client"), injected("injected"), pods::meshed("manual")]);
    helm.run("upgrade", &["--set", "podDetection=injector"]);
    assert_eq!(node.linkerd_entry()["linkerd"]["pod-detection"], "injector");
    pods.start(&[injected("trusted"), pods::unmeshed("unmeshed")]);
    for name in ["injected", "manual", "trusted"] {
        let answer = pods.connect("client", "app", &format!("{}:8080", pods.ip(name)));
        assert!(answer.starts_with("proxy-inbound"), "{name}: {answer}");
    }
    let counts = ["injected", "manual", "trusted", "unmeshed"].map(|name| node.api_requests(name));
    println!("API requests: injected, manual, injected with `injector`, unmeshed: {counts:?}");
    assert_eq!(counts, [1, 2, 0, 0]);
    drop(pods);
    helm.uninstall();
}

#[test]
fn databases_that_the_injector_annotates_start_without_a_request_and_without_an_api_server() {
    let node = Node::exclusive();
    let helm = Helm::with_local_repository();
    let pods = Pods::default();
    helm.run("install", &[]);
    let disabled = ("linkerd.io/inject", "disabled");
    let opaque = |ports| ("config.linkerd.io/opaque-ports", ports);
    let database = |name: &str, annotations: &[(&str, &str)]| {
        let mut pod = pods::unmeshed(name);
        pod["metadata"]["annotations"] = annotations.iter().copied().collect();
        pod
    };
    let of_namespace = opaque("25,587,3306,4444,5432,6379,9300,11211");
    pods.start(&[
        database("mysql", &[opaque("3306")]),
        database("postgres", &[opaque("5432"), disabled]),
        database("redis", &[of_namespace]),
        database("memcached", &[of_namespace, disabled]),
        pods::meshed("meshed"),
    ]);
    let counts = ["mysql", "postgres", "redis", "memcached", "meshed"];
    let counts = counts.map(|name| node.api_requests(name));
    println!("API requests: four databases and a meshed pod: {counts:?}");
    assert_eq!(counts, [0, 0, 0, 0, 2]);

    let mut pod = database("static-mysql", &[opaque("3306"), disabled]);
    pod["metadata"]["namespace"] = "default".into();
    let pod = node.without_api_server(|| {
        let pod = node.static_pod(&pod);
        until("the database runs", || pod.runs());
        pod
    });
    drop((pod, pods));
    helm.uninstall();
}

#[test]
fn with_a_revoked_token_injected_pods_start_redirected_and_other_meshed_pods_wait() {
    let _node = Node::exclusive();
    let helm = Helm::with_local_repository();
    helm.run("install", &[]);
    kubectl(&["create", "namespace", "outage"]);
    pods::until_account("outage");
    let namespace = Namespace;

    // The agent would renew the token, so it is stopped meanwhile.
    let old = std::fs::read_to_string(KUBECONFIG).unwrap();
    let stopped = Stopped::agent();
    revoke();
    until_rejected(&old);
    let begin = Instant::now();
    let list = (0..PODS).map(|number| validating_pod("outage", number, &marked()));
    apply(&json!({"apiVersion": "v1", "kind": "List", "items": list.collect::<Vec<_>>()}));
    until("all injected pods are redirected", || {
        let phases = phases();
        assert!(!phases.iter().any(|phase| phase == "Failed"), "bare: {phases:?}");
        phases.iter().filter(|phase| *phase == "Succeeded").count() == PODS
    });
    println!("{PODS} injected pods ran redirected in {:.1?}", begin.elapsed());

    let unmarked = json!({"linkerd.io/proxy-version": "test"});
    apply(&validating_pod("outage", PODS, &unmarked));
    let name = format!("pod-{PODS}");
    let mut event = String::new();
    until("the reason why the other pod waits", || {
        let said = kubectl(&["describe", "pod", "-n", "outage", &name]);
        let line = said.lines().find(|line| line.contains("FailedCreatePodSandBox"));
        event = line.unwrap_or_default().trim().to_owned();
        event.contains("cannot read pod outage/pod-10")
    });
    println!("{event}");
    assert!(event.contains("HTTP 401") && event.contains("rejected the token"), "{event}");

    drop(stopped);
    until("the agent renews the token and the other pod starts", || {
        token() != crate::agent::token_in(&old)
            && phases().iter().filter(|phase| *phase == "Succeeded").count() == PODS + 1
    });
    until("the Events", || {
        let events = kubectl(&["get", "events", "-n", "outage"]);
        events.lines().filter(|line| line.contains("LinkerdCNIDegraded")).count() >= 5
    });
    until("the agent is ready", || find_agent().is_some_and(|agent| agent.ready));
    drop(namespace);
    helm.uninstall();
}

#[test]
fn without_an_api_server_injected_pods_start_redirected() {
    let node = Node::exclusive();
    let helm = Helm::with_local_repository();
    helm.run("install", &[]);
    let in_default = |mut pod: Value| {
        pod["metadata"]["namespace"] = "default".into();
        pod
    };
    let pods = node.without_api_server(|| {
        let begin = Instant::now();
        let names = (0..PODS).map(|number| format!("static-{number}x"));
        let pods: Vec<_> =
            names.map(|name| node.static_pod(&in_default(injected(&name)))).collect();
        let other = node.static_pod(&in_default(pods::meshed("static-other")));
        until("the injected pods run", || pods.iter().all(|pod| pod.runs()));
        println!("{PODS} injected pods ran {:.1?} after their files", begin.elapsed());
        for pod in &pods {
            let address = pod.address();
            let mut answer = String::new();
            until("the proxy answers", || {
                answer = connect(&address).unwrap_or_default();
                !answer.is_empty()
            });
            assert!(answer.starts_with("proxy-inbound"), "{address}: {answer}");
        }
        let reason = "cannot read pod default/static-other";
        until("the reason why the other pod waits", || node.kubelet_log().contains(reason));
        assert!(!other.runs(), "a meshed pod without the mark must not start");
        pods
    });
    drop(pods);
    helm.uninstall();
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

/// Deletes the plugin's account and makes it again, so that the API server rejects its tokens.
fn revoke() {
    let account = kubectl(&[&["get"], &ACCOUNT[..], &["json"]].concat());
    let mut account: Value = serde_json::from_str(&account).unwrap();
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        account["metadata"].as_object_mut().unwrap().remove(field);
    }
    kubectl(&[&["delete"], &ACCOUNT[..4]].concat());
    apply(&account);
}

/// Phases of the pods in the test's namespace.
fn phases() -> Vec<String> {
    let path = "jsonpath={.items[*].status.phase}";
    let phases = kubectl(&["get", "pods", "-n", "outage", "-o", path]);
    phases.split_whitespace().map(str::to_owned).collect()
}

/// The namespace `outage`; deleted with its pods when dropped.
struct Namespace;

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = command(&["delete", "namespace", "outage", "--timeout=60s"]).output();
    }
}

/// The agent's process does not run until the value is dropped.
struct Stopped(nix::unistd::Pid);

impl Stopped {
    fn agent() -> Stopped {
        let pid = agent().pid;
        kill(pid, Signal::SIGSTOP).unwrap();
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}
