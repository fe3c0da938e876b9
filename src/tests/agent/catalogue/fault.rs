//! A node with an agent and a meshed pod on it, and what they print about a fault.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::api::Api;
use crate::call::{Call, Outcome, UID};
use crate::fault_page::{FaultPage, Source, mask_numbers};
use crate::namespaces::Namespaces;
use crate::node::Node;
use crate::scene::Scene;
use crate::until::until;

const POD: &str = "/api/v1/namespaces/ns/pods/web";
const NAMESPACE: &str = "/api/v1/namespaces/ns";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/ns/events";

/// A ready agent whose API server has the meshed pod `ns/web`, and the pod's network namespace.
pub struct Fault {
    pub scene: Scene,
    pub namespaces: Namespaces,
    page: FaultPage,
    /// Stands for the API server in what is captured.
    other_api: Option<Api>,
}

impl Fault {
    pub fn new(name: &'static str) -> Fault {
        Fault::with(name, &[])
    }

    /// The same with further variables of the agent.
    pub fn with(name: &'static str, vars: &[(&str, &str)]) -> Fault {
        let pod = ("LINKERD_CNI_POD_NAME", "linkerd-cni-abc");
        let scene = Scene::start(&[&[pod], vars].concat());
        until("the socket", || scene.node.net(".linkerd-cni.sock").exists());
        let fault = Fault { scene, namespaces: Namespaces::new(), page: FaultPage::new(name), other_api: None };
        fault.answer_pod(200, &meshed_pod());
        fault.answer(NAMESPACE, 200, &json!({"kind": "Namespace", "metadata": {"name": "ns"}}));
        fault
    }

    pub fn answer_pod(&self, code: u16, body: &Value) {
        self.answer(POD, code, body);
    }

    fn answer(&self, path: &str, code: u16, body: &Value) {
        self.scene.api.state().others.insert(path.to_owned(), (code, body.clone()));
    }

    /// An ADD of the pod, with the kubeconfig that the agent wrote. `linkerd inject --manual` sets these annotations.
    pub fn add(&self) -> Call {
        self.call("ADD").annotated(json!({"linkerd.io/proxy-version": "edge-26.8.3"}))
    }

    pub fn call(&self, command: &str) -> Call {
        let kubeconfig = self.scene.node.net("kubeconfig.json");
        Call::with_kubeconfig(command, &self.namespaces.path(), &kubeconfig)
            .linkerd("iptables-mode", json!("auto"))
            .linkerd("api-retry-seconds", json!(2))
    }

    /// Captures the error of the call, and what the agent says of it.
    pub fn pod_fails(&mut self, outcome: &Outcome) {
        let (code, msg) = outcome.error();
        let details = outcome.json()["details"].as_str().unwrap_or_default().to_owned();
        assert!(!details.is_empty(), "an error without a remedy: {msg}");
        self.capture(Source::Kubelet, &format!("{msg}; {details}"));
        self.log_line(&format!(" (code {code})"));
        self.metrics("linkerd_cni_plugin_failures_total{");
    }

    /// Captures the Event on the pod, as `kubectl describe pod` shows its columns.
    pub fn pod_event(&mut self, reason: &str) {
        let mut shown = String::new();
        until("the Event", || {
            let state = self.scene.api.state();
            let mut bodies = state.requests.iter().filter(|(_, path, _)| path == EVENTS).map(|(.., body)| body);
            let found = bodies.find(|body| body["reason"] == reason);
            shown = found.map(describe_event).unwrap_or_default();
            found.is_some()
        });
        self.capture(Source::PodEvent, &shown);
    }

    /// Captures the line of the agent's log that has `text`.
    pub fn log_line(&mut self, text: &str) {
        let line = log_line(&self.scene.agent, text);
        self.capture(Source::AgentLog, &line);
    }

    pub fn metrics(&mut self, prefix: &str) {
        let lines = metrics(&self.scene.agent, prefix);
        self.capture(Source::Metrics, &lines);
    }

    /// Captures `/ready` once it has `text`.
    pub fn ready(&mut self, text: &str) {
        let body = ready(&self.scene.agent, text);
        self.capture(Source::Ready, &body);
    }

    pub fn stands_for_the_api(&mut self, other: Api) {
        self.other_api = Some(other);
    }

    /// Starts another agent, with a node like that of a first installation.
    pub fn start_again_without_kubeconfig(&mut self) {
        let Scene { api, node, agent } = &mut self.scene;
        agent.kill();
        std::fs::remove_file(node.net("kubeconfig.json")).unwrap();
        *agent = node.start_owned(&api.vars());
    }

    pub fn capture(&mut self, source: Source, text: &str) {
        let api = self.other_api.as_ref().unwrap_or(&self.scene.api);
        let text = on_node(&self.scene.node, Some(api), text);
        self.page.shows(source, &text);
    }

    pub fn check(self) {
        self.page.check();
    }
}

pub fn meshed_pod() -> Value {
    json!({
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "ns", "uid": UID},
        "spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]},
    })
}

/// An Event in the columns of `kubectl describe`, without times.
fn describe_event(event: &Value) -> String {
    let field = |name: &str| event[name].as_str().unwrap_or_default();
    format!("{}  {}  {}", field("type"), field("reason"), field("note"))
}

/// The line of the agent's log that has `text`, without its time.
pub fn log_line(agent: &Agent, text: &str) -> String {
    let mut found = String::new();
    until(text, || {
        let log = agent.log();
        let line = log.lines().find(|line| line.contains(text));
        found = line.unwrap_or_default().to_owned();
        line.is_some()
    });
    found.split_once(' ').map(|(_, line)| line.trim_start().to_owned()).unwrap()
}

/// The metrics that begin with `prefix` and are not 0.
pub fn metrics(agent: &Agent, prefix: &str) -> String {
    let mut lines = String::new();
    until(prefix, || {
        let text = agent.get("/metrics").1;
        let found = text.lines().filter(|line| line.starts_with(prefix) && !line.ends_with(" 0"));
        lines = found.map(|line| format!("{line}\n")).collect();
        !lines.is_empty()
    });
    lines
}

/// The body of `/ready` once it has `text` and another status than 200.
pub fn ready(agent: &Agent, text: &str) -> String {
    let mut body = String::new();
    until(text, || {
        let (status, why) = agent.ready();
        body = why;
        status == 500 && body.contains(text)
    });
    body
}

/// The text as on a node with the chart's default directories, without what differs between runs.
pub fn on_node(node: &Node, api: Option<&Api>, text: &str) -> String {
    let root = node.root().display();
    let mut text = text.to_owned();
    for (own, shown) in [
        (format!("{root}/etc"), "/etc/cni/net.d"),
        (format!("{root}/bin"), "/opt/cni/bin"),
        ("kubeconfig.json".into(), "ZZZ-linkerd-cni-kubeconfig"),
    ] {
        text = text.replace(&own, shown);
    }
    if let Some(api) = api {
        let address: SocketAddr = api.address;
        text = text.replace(&address.to_string(), "10.96.0.1:443");
    }
    for (before, after) in [(", ", " requests"), ("requests, ", " ms"), ("API requests sent: ", ")")] {
        text = mask_numbers(&text, before, after);
    }
    text
}
