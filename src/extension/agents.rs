//! The agents' pods, and what each agent reports through the API server's proxy for pods.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::thread;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::kubectl::{Api, get};
use super::lists::list;
use super::objects::AgentPod;
use crate::agent::readiness::StatusBody;
use crate::deadline::Deadline;

/// Name of the DaemonSet, which the chart cannot change.
pub const DAEMONSET: &str = "linkerd-cni";
/// Number of agents that are asked if the user does not ask for all. An agent costs two requests,
/// and each starts kubectl.
pub const AGENT_LIMIT: usize = 500;
/// Number of requests at the same time. Each runs one kubectl.
const PARALLEL: usize = 8;
/// Why an agent above the limit is not asked.
const OVER_LIMIT: &str = "the cluster has more than 500 agents; add --all-nodes to ask all";
/// Why an agent is not asked after the deadline.
const OUT_OF_TIME: &str = "the time was up; add a longer --wait to check, or --all-nodes to nodes";

/// An agent's pod, and what it reports.
#[derive(Clone, Debug, Default)]
pub struct Agent {
    pub pod: AgentPod,
    /// The body of `/status`, or why it cannot be read. `None` if the agent was not asked.
    pub status: Option<Result<StatusBody, String>>,
    /// The text of `/metrics`, if it can be read.
    pub metrics: String,
    /// Why the agent was not asked for its state.
    pub unasked: Option<&'static str>,
}

/// Which agents are asked, and until when.
pub struct Asking<'a> {
    /// Agents of the previous attempt. Those without a problem are not asked again.
    pub known: &'a [Agent],
    /// Largest number of agents with an answer. Agents that are not ready are asked first.
    pub limit: usize,
    /// After this, no more agents are asked.
    pub end: Deadline,
    /// Called before an agent is asked, with its number and the number of agents to ask.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
}

impl Agent {
    pub fn node(&self) -> &str {
        &self.pod.spec.placement.node_name
    }

    /// Returns the body of `/status`, if it could be read.
    pub fn body(&self) -> Option<&StatusBody> {
        self.status.as_ref()?.as_ref().ok()
    }

    /// Whether the agent reported no problem, so that a retry need not ask again.
    fn is_settled(&self) -> bool {
        let is_healthy = |body: &StatusBody| {
            body.not_ready.is_none() && body.conflist.is_some() && body.problems.is_empty()
        };
        self.body().is_some_and(is_healthy)
    }
}

impl Asking<'_> {
    /// Returns the previous state of an agent that need not be asked again.
    fn known(&self, pod: &AgentPod) -> Option<Agent> {
        let uid = &pod.metadata.uid;
        let is_same = |agent: &&Agent| !uid.is_empty() && agent.pod.metadata.uid == *uid;
        let agent = self.known.iter().find(is_same)?;
        (pod.is_ready() && agent.is_settled()).then(|| Agent { pod: pod.clone(), ..agent.clone() })
    }
}

/// Lists the agents' pods, then asks agents for their state, several at a time.
pub fn agents(api: &dyn Api, namespace: &str, asking: &Asking<'_>) -> Result<Vec<Agent>, String> {
    let mut done = Vec::new();
    let mut waiting = VecDeque::new();
    for pod in pods(api, namespace, "")? {
        match asking.known(&pod) {
            Some(agent) => done.push(agent),
            None => waiting.push_back(pod),
        }
    }
    waiting.make_contiguous().sort_by_key(AgentPod::is_ready);
    let asked = asking.limit.saturating_sub(done.len()).min(waiting.len());
    let rest = waiting.split_off(asked);
    done.extend(rest.into_iter().map(|pod| unasked(pod, OVER_LIMIT)));
    let waiting = Mutex::new(waiting);
    let found = Mutex::new(done);
    thread::scope(|scope| {
        for _ in 0..PARALLEL.min(asked) {
            scope.spawn(|| {
                loop {
                    let (next, left) = {
                        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                        (waiting.pop_front(), waiting.len())
                    };
                    let Some(pod) = next else {
                        break;
                    };
                    let agent = match asking.end.has_passed() {
                        true => unasked(pod, OUT_OF_TIME),
                        false => {
                            (asking.progress)(asked - left, asked);
                            ask(api, namespace, pod)
                        }
                    };
                    found.lock().unwrap_or_else(PoisonError::into_inner).push(agent);
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let key = |agent: &Agent| (agent.node().to_owned(), agent.pod.metadata.name.clone());
    found.sort_by_cached_key(key);
    Ok(found)
}

/// Finds the agent on a node, and asks only it for its status.
pub fn agent_on(api: &dyn Api, namespace: &str, node: &str) -> Option<Agent> {
    if node.is_empty() {
        return None;
    }
    let node_name = utf8_percent_encode(node, NON_ALPHANUMERIC);
    let pods = pods(api, namespace, &format!("&fieldSelector=spec.nodeName%3D{node_name}")).ok()?;
    // During a rollout, the node can have the pod that is terminated too.
    let on_node = pods.into_iter().filter(|pod| pod.spec.placement.node_name == node);
    let pod = on_node.max_by_key(AgentPod::is_ready)?;
    let status = status(api, namespace, &pod);
    Some(Agent { pod, status, ..Agent::default() })
}

/// Returns how many agents were not asked, and why, one line for each reason.
pub fn unasked_counts(agents: &[Agent]) -> Vec<String> {
    let mut counts = BTreeMap::new();
    for why in agents.iter().filter_map(|agent| agent.unasked) {
        *counts.entry(why).or_insert(0) += 1;
    }
    let line = |(why, count): (&str, usize)| format!("{count} agents were not asked: {why}");
    counts.into_iter().map(line).collect()
}

fn pods(api: &dyn Api, namespace: &str, fields: &str) -> Result<Vec<AgentPod>, String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    list(api, &path, &format!("labelSelector=k8s-app%3D{DAEMONSET}{fields}"))
}

fn unasked(pod: AgentPod, why: &'static str) -> Agent {
    // Upstream's agent has no state to ask for.
    let unasked = pod.spec.admin_port().map(|_| why);
    Agent { pod, unasked, ..Agent::default() }
}

/// Asks the agent for its state and its metrics.
fn ask(api: &dyn Api, namespace: &str, pod: AgentPod) -> Agent {
    let status = status(api, namespace, &pod);
    let metrics = match (&status, proxy(namespace, &pod)) {
        (Some(Ok(_)), Some(proxy)) => api.get(&format!("{proxy}/metrics")).unwrap_or_default(),
        _ => String::new(),
    };
    Agent { pod, status, metrics, unasked: None }
}

/// Reads the agent's `/status`. `None` for upstream's agent, which has none.
fn status(api: &dyn Api, namespace: &str, pod: &AgentPod) -> Option<Result<StatusBody, String>> {
    let path = format!("{}/status", proxy(namespace, pod)?);
    Some(get(api, &path).map_err(|error| error.to_string()))
}

/// Returns the path of the agent's port in the API server's proxy for pods.
fn proxy(namespace: &str, pod: &AgentPod) -> Option<String> {
    let port = pod.spec.admin_port()?;
    Some(format!("/api/v1/namespaces/{namespace}/pods/{}:{port}/proxy", pod.metadata.name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::extension::fake::{AGENTS, Cluster, Recorded, STATUS_1, asking};

    fn sweep(api: &Recorded, asking: &Asking<'_>) -> Vec<Agent> {
        agents(api, "linkerd-cni", asking).unwrap()
    }

    #[test]
    fn a_retry_asks_only_agents_that_had_a_problem() {
        let mut cluster = Cluster::healthy();
        cluster.set(STATUS_1, "/notReady", json!("kubeconfig: waiting for a token"));
        let api = Recorded::new(cluster);
        let known = sweep(&api, &asking());
        assert_eq!(api.count("/status"), 2);
        let again = sweep(&api, &Asking { known: &known, ..asking() });
        assert_eq!(api.count("/status"), 3);
        assert!(api.last("/status").contains("linkerd-cni-1:"), "{}", api.last("/status"));
        assert!(again.iter().all(|agent| agent.body().is_some()), "{again:?}");
    }

    #[test]
    fn above_the_limit_agents_that_are_not_ready_are_asked_first_and_the_others_are_counted() {
        let mut cluster = Cluster::healthy();
        cluster.set(AGENTS, "/items/1/status", json!({}));
        let api = Recorded::new(cluster);
        let found = sweep(&api, &Asking { limit: 1, ..asking() });
        assert_eq!(api.count("/status"), 1);
        assert!(found[1].body().is_some(), "{found:?}");
        let counts = unasked_counts(&found);
        assert_eq!(counts, [format!("1 agents were not asked: {OVER_LIMIT}")]);
        assert!(OVER_LIMIT.contains(&format!("more than {AGENT_LIMIT} ")));
    }

    #[test]
    fn after_the_deadline_no_agent_is_asked() {
        let api = Recorded::new(Cluster::healthy());
        let end = Deadline::after(Duration::ZERO);
        let found = sweep(&api, &Asking { end, ..asking() });
        assert_eq!(api.count("/status"), 0);
        assert_eq!(unasked_counts(&found), [format!("2 agents were not asked: {OUT_OF_TIME}")]);
    }

    #[test]
    fn only_the_agent_of_the_node_is_asked() {
        let api = Recorded::new(Cluster::healthy());
        let agent = agent_on(&api, "linkerd-cni", "node-2").unwrap();
        assert_eq!(agent.pod.metadata.name, "linkerd-cni-2");
        assert_eq!((api.count("/status"), api.count("/metrics")), (1, 0));
        assert_eq!(api.count("fieldSelector=spec.nodeName%3Dnode%2D2"), 1);
        assert!(agent_on(&api, "linkerd-cni", "").is_none());
    }
}
