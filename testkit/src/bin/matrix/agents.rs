//! The agents of several nodes: which are ready, now and at every change that the API server reports.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Deserializer, Value};
use testkit::child::KilledOnDrop;
use testkit::cluster::kubectl::{command, list};

use crate::helm::NAMESPACE;
use crate::until::until_within;

/// Selects the agents' pods for `kubectl get`.
const PODS: &str = "pods -n linkerd-cni -l k8s-app=linkerd-cni";

/// An agent's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPod {
    pub name: String,
    pub node: String,
    /// ID of the agent's container, without the runtime's name. Empty until it starts.
    pub container: String,
    pub ready: bool,
    leaving: bool,
}

/// Number of times that the only agent has written the network config, by its log.
pub fn logged_writes() -> usize {
    let logs = format!("logs daemonset/linkerd-cni -n {NAMESPACE}");
    let log = command(&logs).output().unwrap();
    String::from_utf8_lossy(&log.stdout).matches("Created CNI config").count()
}

/// The agent's pod on each node, except pods that are being deleted.
pub fn by_node() -> BTreeMap<String, AgentPod> {
    let pods = list(PODS);
    staying(pods.iter().filter_map(AgentPod::of))
}

fn staying(pods: impl Iterator<Item = AgentPod>) -> BTreeMap<String, AgentPod> {
    pods.filter(|pod| !pod.leaving).map(|pod| (pod.node.clone(), pod)).collect()
}

impl AgentPod {
    /// Reads a pod. `None`: it is on no node yet.
    fn of(pod: &Value) -> Option<AgentPod> {
        let node = pod["spec"]["nodeName"].as_str()?;
        let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        let mut agents = statuses.filter(|status| status["name"] == "install-cni");
        let id = agents.next().and_then(|status| status["containerID"].as_str());
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
        Some(AgentPod {
            name: pod["metadata"]["name"].as_str()?.to_owned(),
            node: node.to_owned(),
            container: id.and_then(|id| id.split_once("://")).map_or("", |id| id.1).to_owned(),
            ready: ready.next().is_some_and(|condition| condition["status"] == "True"),
            leaving: pod["metadata"]["deletionTimestamp"].is_string(),
        })
    }
}

/// Watches the agents' pods until it is dropped.
pub struct AgentWatch {
    _kubectl: KilledOnDrop,
    seen: Arc<Mutex<SeenAgents>>,
}

/// What an [`AgentWatch`] saw.
#[derive(Clone, Default)]
pub struct SeenAgents {
    pods: BTreeMap<String, AgentPod>,
    /// Whether each node had a ready agent once: the first events are the pods that exist already.
    complete: bool,
    /// Nodes without a ready agent: the most at a time, and all of them.
    pub most_without: usize,
    pub without: Vec<String>,
    /// Most pods at a time that were not ready and not being deleted.
    pub most_starting: usize,
    /// Nodes in the order in which an agent became ready there, from the time at which each node had one.
    pub order: Vec<String>,
}

impl AgentWatch {
    /// Starts, and waits until each of `nodes` has a ready agent.
    pub fn start(nodes: &[&str]) -> AgentWatch {
        let watch = format!("get {PODS} --watch --output-watch-events -o json");
        let mut kubectl = KilledOnDrop(command(&watch).stdout(Stdio::piped()).spawn().unwrap());
        let events = BufReader::new(kubectl.0.stdout.take().unwrap());
        let seen = Arc::new(Mutex::new(SeenAgents::default()));
        let nodes: Vec<String> = nodes.iter().map(|&node| node.to_owned()).collect();
        let of_thread = Arc::clone(&seen);
        thread::spawn(move || follow(events, &nodes, &of_thread));
        let watch = AgentWatch { _kubectl: kubectl, seen };
        until_within(Duration::from_secs(60), "a ready agent on each node", || {
            watch.seen().complete
        });
        watch
    }

    /// What was seen so far.
    pub fn seen(&self) -> SeenAgents {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the watch has reported what is true now, and returns everything that it saw.
    pub fn finish(self) -> SeenAgents {
        until_within(Duration::from_secs(60), "the watch reports the agents of now", || {
            staying(self.seen().pods.into_values()) == by_node()
        });
        self.seen()
    }
}

impl SeenAgents {
    /// Applies a watch event.
    fn apply(&mut self, event: &Value, nodes: &[String]) {
        let Some(pod) = AgentPod::of(&event["object"]) else { return };
        let before = match event["type"].as_str() {
            Some("DELETED") => self.pods.remove(&pod.name),
            _ => self.pods.insert(pod.name.clone(), pod.clone()),
        };
        let has_agent = |node: &&String| {
            self.pods.values().any(|pod| pod.node == **node && pod.ready && !pod.leaving)
        };
        let without: Vec<&String> = nodes.iter().filter(|node| !has_agent(node)).collect();
        if !self.complete {
            self.complete = without.is_empty();
            return;
        }
        if pod.ready && !before.is_some_and(|before| before.ready) {
            self.order.push(pod.node);
        }
        self.most_without = self.most_without.max(without.len());
        for node in without {
            if !self.without.contains(node) {
                self.without.push(node.clone());
            }
        }
        let starting = self.pods.values().filter(|pod| !pod.ready && !pod.leaving);
        self.most_starting = self.most_starting.max(starting.count());
    }
}

fn follow(events: impl Read, nodes: &[String], seen: &Mutex<SeenAgents>) {
    for event in Deserializer::from_reader(events).into_iter::<Value>() {
        let Ok(event) = event else { return };
        seen.lock().unwrap_or_else(PoisonError::into_inner).apply(&event, nodes);
    }
}
