//! A node with an agent and a meshed pod, and functions that capture reports of a fault.

use std::net::SocketAddr;

use base64::Engine as _;
use serde_json::{Value, json};

use super::check;
use crate::agent::Agent;
use crate::agent_with_api::Scene;
use crate::call::{Call, Outcome, UID};
use crate::fault_page::{FaultPage, Source, mask_numbers};
use crate::namespaces::Namespaces;
use crate::node::Node;
use crate::until::until;

const API_SERVER: &str = "10.96.0.1:443";
const POD: &str = "/api/v1/namespaces/ns/pods/web";
const NAMESPACE: &str = "/api/v1/namespaces/ns";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/ns/events";

/// A ready agent whose API server has the meshed pod `ns/web`, and the pod's network namespace.
pub struct Fault {
    pub scene: Scene,
    pub namespaces: Namespaces,
    page: FaultPage,
    /// Body of `/ready`, if the agent is not ready.
    not_ready: Option<String>,
    /// Texts that differ between runs, and the texts that replace them in the page.
    shown: Vec<(String, &'static str)>,
}

impl Fault {
    pub fn new(name: &'static str) -> Fault {
        let scene = Scene::with_socket();
        let mut fault = Fault {
            scene,
            namespaces: Namespaces::new(),
            page: FaultPage::new(name),
            not_ready: None,
            shown: Vec::new(),
        };
        let address = fault.scene.api.address.to_string();
        fault.show(&address, API_SERVER);
        fault.answer_pod(200, &meshed_pod());
        let namespace = json!({"kind": "Namespace", "metadata": {"name": "ns"}});
        fault.scene.api.answer(NAMESPACE, 200, &namespace.to_string());
        fault
    }

    pub fn answer_pod(&self, code: u16, body: &Value) {
        self.scene.api.answer(POD, code, &body.to_string());
    }

    /// Makes the API server respond to requests for the pod with a Status.
    pub fn refuse_pod(&self, code: u16, reason: &str, message: &str) {
        let status =
            json!({"kind": "Status", "metadata": {}, "reason": reason, "message": message});
        self.answer_pod(code, &status);
    }

    pub fn change_pod(&self, change: impl FnOnce(&mut Value)) {
        let mut pod = meshed_pod();
        change(&mut pod);
        self.answer_pod(200, &pod);
    }

    /// Returns an ADD for the pod, with the kubeconfig that the agent wrote.
    pub fn add(&self) -> Call {
        self.meshed_call("ADD")
    }

    /// Returns a call with the annotations that `linkerd inject --manual` sets.
    pub fn meshed_call(&self, command: &str) -> Call {
        self.call(command).annotated(json!({"linkerd.io/proxy-version": "edge-26.8.3"}))
    }

    pub fn call(&self, command: &str) -> Call {
        let kubeconfig = self.scene.node.net("kubeconfig.json");
        Call::with_kubeconfig(command, &self.namespaces.path(), &kubeconfig)
            .linkerd("iptables-mode", json!("auto"))
            // Use a long budget. A third of it is for the TLS handshake, which may be slow on a
            // busy machine.
            .linkerd("api-retry-seconds", json!(12))
    }

    /// Captures the error of the call, and the line and the metrics of the agent about it.
    pub fn pod_fails(&mut self, outcome: &Outcome) {
        let (code, msg) = outcome.error();
        let details = outcome.json()["details"].as_str().unwrap_or_default().to_owned();
        assert!(!details.is_empty(), "an error without a remedy: {msg}");
        self.capture(Source::Kubelet, &format!("{msg}; {details}"));
        self.log_line(&format!(" (code {code})"));
        self.metrics("linkerd_cni_plugin_failures_total{");
    }

    /// Captures the Event on the pod, in the columns of `kubectl describe pod`.
    pub fn pod_event(&mut self, reason: &str) {
        let mut shown = String::new();
        until("the Event", || {
            let events = self.scene.api.received(|request| request.path == EVENTS);
            let found = events.iter().find(|event| event.body["reason"] == reason);
            shown = found.map(|event| describe_event(&event.body)).unwrap_or_default();
            found.is_some()
        });
        self.capture(Source::PodEvent, &shown);
    }

    /// Captures the line of the agent's log that contains `text`.
    pub fn log_line(&mut self, text: &str) {
        let line = log_line(&self.scene.agent, text);
        self.capture(Source::AgentLog, &line);
    }

    /// Captures the metrics that start with `prefix`.
    pub fn metrics(&mut self, prefix: &str) {
        let lines = metrics(&self.scene.agent, prefix);
        self.capture(Source::Metrics, &lines);
    }

    /// Waits until the body of `/ready` contains `text`, and captures it.
    pub fn ready(&mut self, text: &str) {
        let body = ready(&self.scene.agent, text);
        self.capture(Source::Ready, &body);
        self.not_ready = Some(body);
    }

    /// Makes the page show `shown` in place of `text`.
    pub fn show(&mut self, text: &str, shown: &'static str) {
        self.shown.push((text.to_owned(), shown));
    }

    /// Writes a kubeconfig in which the API server is `other`, with this CA. Returns the section
    /// `kubernetes` of the plugin entry.
    pub fn plugin_uses(&mut self, other: SocketAddr, ca: Option<&str>) -> Value {
        let mut kubeconfig = self.scene.node.kubeconfig();
        let cluster = &mut kubeconfig["clusters"][0]["cluster"];
        cluster["server"] = json!(format!("https://{other}"));
        if let Some(ca) = ca {
            let ca = base64::engine::general_purpose::STANDARD.encode(ca);
            cluster["certificate-authority-data"] = json!(ca);
        }
        self.show(&other.to_string(), API_SERVER);
        let path = self.scene.node.net("other.json");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        json!({"kubeconfig": path})
    }

    /// Writes a kubeconfig with an address on which nothing listens, see [`Fault::plugin_uses`].
    pub fn plugin_uses_no_server(&mut self) -> Value {
        self.plugin_uses("127.0.0.1:1".parse().unwrap(), None)
    }

    fn capture(&mut self, source: Source, text: &str) {
        let mut text = on_node(&self.scene.node, text);
        for (own, shown) in &self.shown {
            text = text.replace(own, shown);
        }
        self.page.shows(source, &text);
    }

    /// Captures `linkerd cni check`, and compares all captured texts with the page.
    pub fn assert_documented(mut self) {
        let problems = check::problems(&self.scene.agent, self.not_ready.as_deref()).concat();
        if !problems.is_empty() {
            self.capture(Source::Check, &problems);
        }
        self.page.assert_documented();
    }
}

fn meshed_pod() -> Value {
    json!({
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "ns", "uid": UID},
        "spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]},
    })
}

/// Formats an Event in the columns of `kubectl describe`, without times.
fn describe_event(event: &Value) -> String {
    let field = |name: &str| event[name].as_str().unwrap_or_default();
    format!("{}  {}  {}", field("type"), field("reason"), field("note"))
}

/// Waits for a line of the agent's log that contains `text`. Returns the line without its time.
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

/// Waits for metrics that start with `prefix` and are not 0. Returns their lines.
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

/// Waits until the agent is not ready and the body of `/ready` contains `text`. Returns the body.
pub fn ready(agent: &Agent, text: &str) -> String {
    let mut body = String::new();
    until(text, || {
        let (status, why) = agent.ready();
        body = why;
        status == 500 && body.contains(text)
    });
    body
}

/// Captures the reports of an agent that is not ready, for the section `name`. The reason contains
/// `text`.
pub fn not_ready((name, text): (&'static str, &str), node: &Node, agent: &Agent) -> FaultPage {
    let mut page = FaultPage::new(name);
    let body = ready(agent, text);
    page.shows(Source::Ready, &in_container(node, &body));
    page.shows(Source::AgentLog, &in_container(node, &log_line(agent, text)));
    capture_check(&mut page, node, agent, Some(&body));
    page
}

pub fn capture_check(page: &mut FaultPage, node: &Node, agent: &Agent, not_ready: Option<&str>) {
    let mut problems = check::problems(agent, not_ready);
    // These agents have no API server that could issue a token for the plugin.
    problems.retain(|problem| !problem.contains("the plugin's token is valid"));
    page.shows(Source::Check, &in_container(node, &problems.concat()));
}

/// Replaces paths of the test by those in the agent's container, where the node's directories are
/// below `/host`.
pub fn in_container(node: &Node, text: &str) -> String {
    let root = format!("{}/", node.root().display());
    // The run dir has the same path in the container.
    let text = text.replace(&format!("{root}run/"), "/run/linkerd-cni/");
    on_node(node, &text.replace(&root, &format!("/host{root}")))
}

/// Replaces paths of the test by the chart's default directories, and masks numbers that differ
/// between runs.
fn on_node(node: &Node, text: &str) -> String {
    let root = node.root().display();
    let mut text = text.to_owned();
    for (own, shown) in [
        (format!("{root}/etc"), "/etc/cni/net.d"),
        (format!("{root}/bin"), "/opt/cni/bin"),
        (format!("{root}/usr"), "/usr"),
        ("kubeconfig.json".into(), "ZZZ-linkerd-cni-kubeconfig"),
    ] {
        text = text.replace(&own, shown);
    }
    for (before, after) in [
        (", ", " requests"),
        ("requests, ", " ms"),
        ("API requests sent: ", ")"),
        ("verification time ", " (UNIX)"),
        ("(", " seconds ago)"),
    ] {
        text = mask_numbers(&text, before, after);
    }
    text
}
