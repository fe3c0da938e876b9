//! The agents of several nodes: which of them are ready, now and during an event.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use testkit::cluster::agent;
use testkit::cluster::pods::is_ready;
use testkit::repeated::Repeated;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPod {
    pub name: String,
    pub node: String,
    /// ID of the agent's container, without the runtime's name. Empty until it starts.
    pub container: String,
    pub ready: bool,
}

/// Returns how often the agent has written the network config, according to its log. For clusters
/// with one agent.
pub fn logged_writes() -> usize {
    agent::log().matches("Created CNI config").count()
}

/// Returns the agents by the names of their nodes, without those that are being deleted.
pub fn by_node() -> BTreeMap<String, AgentPod> {
    agent_pods().into_iter().map(|pod| (pod.node.clone(), pod)).collect()
}

fn agent_pods() -> Vec<AgentPod> {
    agent::agent_pods().iter().filter_map(AgentPod::from_pod).collect()
}

impl AgentPod {
    /// Reads a pod. `None`: the pod is on no node yet, or is being deleted.
    fn from_pod(pod: &Value) -> Option<AgentPod> {
        if pod["metadata"]["deletionTimestamp"].is_string() {
            return None;
        }
        let node = pod["spec"]["nodeName"].as_str()?;
        Some(AgentPod {
            name: pod["metadata"]["name"].as_str()?.to_owned(),
            node: node.to_owned(),
            container: agent_container(pod).unwrap_or_default().to_owned(),
            ready: is_ready(pod),
        })
    }
}

/// Returns the ID of the agent's container, without the runtime's name. `None` until it starts.
fn agent_container(pod: &Value) -> Option<&str> {
    let mut statuses = pod["status"]["containerStatuses"].as_array()?.iter();
    let status = statuses.find(|status| status["name"] == "install-cni")?;
    let (_runtime, id) = status["containerID"].as_str()?.split_once("://")?;
    Some(id)
}

/// What was seen of the agents during an event.
#[derive(Default)]
pub struct SeenAgents {
    nodes: Vec<String>,
    /// Largest number of nodes that had no ready agent at the same time.
    pub most_without_agent: usize,
    /// All nodes that had no ready agent at some time.
    pub without_agent: Vec<String>,
    /// Largest number of agents that were not ready at the same time.
    pub most_starting: usize,
    /// Container and node of each agent that was ready, in the order in which they were seen.
    ready: Vec<(String, String)>,
}

impl SeenAgents {
    /// Records the agents every 200 ms until the returned value is finished.
    pub fn watch(nodes: &[&str]) -> Repeated<SeenAgents> {
        let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
        let mut agents = SeenAgents { nodes, ..SeenAgents::default() };
        agents.record();
        Repeated::start(Duration::from_millis(200), agents, SeenAgents::record)
    }

    /// Records which agents are ready now, and which nodes have none.
    pub fn record(&mut self) {
        let pods = agent_pods();
        let (ready, starting): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| pod.ready);
        self.most_starting = self.most_starting.max(starting.len());
        let mut without_agent = self.nodes.clone();
        without_agent.retain(|node| ready.iter().all(|pod| pod.node != *node));
        self.most_without_agent = self.most_without_agent.max(without_agent.len());
        self.without_agent.extend(without_agent);
        self.without_agent.sort();
        self.without_agent.dedup();
        for pod in ready {
            let agent = (pod.container, pod.node);
            if !self.ready.contains(&agent) {
                self.ready.push(agent);
            }
        }
    }

    /// Returns the nodes in the order in which their next agents got ready. The first agents of the
    /// nodes are left out, because they were ready before the event.
    pub fn order(&self) -> Vec<&str> {
        self.ready.iter().skip(self.nodes.len()).map(|(_, node)| &**node).collect()
    }
}
