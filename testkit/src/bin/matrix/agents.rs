//! The agents of several nodes: which are ready, now and while something happens.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use testkit::cluster::helm::NAMESPACE;
use testkit::cluster::kubectl::{command, get_items};
use testkit::repeated::Repeated;

const PODS: &str = "pods -n linkerd-cni -l k8s-app=linkerd-cni";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPod {
    pub name: String,
    pub node: String,
    /// ID of the agent's container, without the runtime's name. Empty until it starts.
    pub container: String,
    pub ready: bool,
}

/// Number of times that the only agent has written the network config, by its log.
pub fn logged_writes() -> usize {
    let logs = format!("logs daemonset/linkerd-cni -n {NAMESPACE}");
    let log = command(&logs).output().unwrap();
    String::from_utf8_lossy(&log.stdout).matches("Created CNI config").count()
}

pub fn by_node() -> BTreeMap<String, AgentPod> {
    staying().into_iter().map(|pod| (pod.node.clone(), pod)).collect()
}

fn staying() -> Vec<AgentPod> {
    get_items(PODS).iter().filter_map(AgentPod::from_pod).collect()
}

impl AgentPod {
    /// Reads a pod. `None`: it is on no node yet, or is being deleted.
    fn from_pod(pod: &Value) -> Option<AgentPod> {
        if pod["metadata"]["deletionTimestamp"].is_string() {
            return None;
        }
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
        })
    }
}

#[derive(Default)]
pub struct SeenAgents {
    nodes: Vec<String>,
    /// Nodes without a ready agent: the most at a time, and all of them.
    pub most_without: usize,
    pub without: Vec<String>,
    pub most_starting: usize,
    /// The ready agents, each with its node, in the order in which they were seen.
    ready: Vec<(String, String)>,
}

impl SeenAgents {
    pub fn watch(nodes: &[&str]) -> Repeated<SeenAgents> {
        let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
        let mut seen = SeenAgents { nodes, ..SeenAgents::default() };
        seen.look();
        Repeated::start(Duration::from_millis(200), seen, SeenAgents::look)
    }

    pub fn look(&mut self) {
        let pods = staying();
        let (ready, starting): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| pod.ready);
        self.most_starting = self.most_starting.max(starting.len());
        let without = self.nodes.iter().filter(|node| ready.iter().all(|pod| pod.node != **node));
        let without: Vec<_> = without.cloned().collect();
        self.most_without = self.most_without.max(without.len());
        self.without.extend(without);
        self.without.sort();
        self.without.dedup();
        for pod in ready {
            let agent = (pod.container, pod.node);
            if !self.ready.contains(&agent) {
                self.ready.push(agent);
            }
        }
    }

    pub fn order(&self) -> Vec<&str> {
        self.ready.iter().skip(self.nodes.len()).map(|(_, node)| &**node).collect()
    }
}
