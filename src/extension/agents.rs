//! The agents' pods, and what each agent reports through the API server's proxy for pods.

use std::iter;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::api::{Api, Error, encoded, get, list};
use super::objects::{admin_port, condition, items, text};
use crate::agent::status_body::StatusBody;
use crate::deadline::Deadline;

/// Name of the DaemonSet, which the chart cannot change.
pub const DAEMONSET: &str = "linkerd-cni";
/// Selects the DaemonSet and its pods, of this chart and of upstream's.
pub const SELECTOR: &str = "labelSelector=k8s-app%3Dlinkerd-cni";
/// Number of agents that are asked at the same time.
pub(super) const PARALLEL: usize = 16;
/// A token that expires sooner should have been renewed.
const TOKEN_MARGIN: Duration = Duration::from_secs(600);
const OUT_OF_TIME: &str = "the time was up";

/// An agent's pod, and what it reports.
#[derive(Clone, Debug, Default)]
pub struct Agent {
    pub pod: Value,
    /// The body of `/status`, or why it cannot be read. `None` if the agent was not asked.
    pub status: Option<Result<StatusBody, Error>>,
    /// The agent was not asked for its state, as the time was up.
    pub is_unasked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenState {
    Valid(Duration),
    /// Valid, and expires within [`TOKEN_MARGIN`].
    Ending,
    Expired,
    /// The token has no expiry, or none is known.
    Unlimited,
}

impl Agent {
    pub fn name(&self) -> &str {
        text(&self.pod["metadata"]["name"])
    }

    pub fn node(&self) -> &str {
        text(&self.pod["spec"]["nodeName"])
    }

    pub fn is_ready(&self) -> bool {
        is_ready(&self.pod)
    }

    pub fn body(&self) -> Option<&StatusBody> {
        self.status.as_ref()?.as_ref().ok()
    }

    /// Returns why the agent is not ready: from the agent, else from its containers, its conditions
    /// or Events on its pod. `None` if it is ready.
    pub fn not_ready(&self, events: &[Value]) -> Option<String> {
        if let Some(body) = self.body() {
            return body.not_ready.clone();
        }
        if let Some(why) = self.waiting_container(events) {
            return Some(why);
        }
        if let Some(unscheduled) = condition(&self.pod, "PodScheduled", "False") {
            return Some(format!("not scheduled: {}", text(&unscheduled["message"])));
        }
        match &self.status {
            _ if self.is_ready() => None,
            Some(Err(why)) => Some(format!("its /status cannot be read: {why}")),
            _ => Some("its readiness probe fails".to_owned()),
        }
    }

    /// Returns which container waits, and why: from its state, else from an Event on the pod.
    fn waiting_container(&self, events: &[Value]) -> Option<String> {
        let mut containers = items(&self.pod["status"]["containerStatuses"]);
        let container = containers.find(|found| found["state"]["waiting"].is_object())?;
        let waiting = &container["state"]["waiting"];
        // Other Warning Events, such as MissingClusterDNS, do not keep a container from starting.
        let event = events.iter().rev().find(|event| {
            event["involvedObject"]["uid"] == self.pod["metadata"]["uid"]
                && text(&event["reason"]).starts_with("Failed")
        });
        let message = match (text(&waiting["message"]), event) {
            ("", Some(event)) => {
                format!(": {}: {}", text(&event["reason"]), text(&event["message"]))
            }
            ("", None) => String::new(),
            (message, _) => format!(": {message}"),
        };
        let name = text(&container["name"]);
        Some(format!("container {name}: {}{message}", text(&waiting["reason"])))
    }
}

pub fn token_state(body: &StatusBody, now: SystemTime) -> TokenState {
    // A program in the agent's place may report any number.
    let end = body.token_expires.and_then(|end| UNIX_EPOCH.checked_add(Duration::from_secs(end)));
    match end.map(|end| end.duration_since(now)) {
        None => TokenState::Unlimited,
        Some(Err(_)) => TokenState::Expired,
        Some(Ok(left)) if left < TOKEN_MARGIN => TokenState::Ending,
        Some(Ok(left)) => TokenState::Valid(left),
    }
}

/// Lists the agents' pods, then asks the agents for their state until `end`, several at a time. Those that
/// are not ready are asked first. Calls `progress` before each with its number and the number of agents.
pub fn agents(
    api: &dyn Api,
    namespace: &str,
    end: Deadline,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Agent>, Error> {
    let mut pods = pods(api, namespace, "")?;
    pods.sort_by_key(is_ready);
    let all = pods.len();
    let mut found = in_parallel(pods, PARALLEL, |number, pod| {
        if end.has_passed() {
            // Upstream's agent has no state to ask for.
            let is_unasked = admin_port(&pod["spec"]).is_some();
            return Agent { pod, is_unasked, ..Agent::default() };
        }
        progress(number, all);
        ask(api, namespace, pod)
    });
    found.sort_by_cached_key(|agent| (agent.node().to_owned(), agent.name().to_owned()));
    Ok(found)
}

/// Finds the agent on a node, and asks only it for its status.
pub fn agent_on(api: &dyn Api, namespace: &str, node: &str) -> Option<Agent> {
    if node.is_empty() {
        return None;
    }
    let fields = format!("&fieldSelector=spec.nodeName%3D{}", encoded(node));
    let pods = pods(api, namespace, &fields).ok()?;
    // During a rollout, the node can have the pod that is terminated too.
    let on_node = pods.into_iter().filter(|pod| pod["spec"]["nodeName"] == node);
    let pod = on_node.max_by_key(is_ready)?;
    Some(ask(api, namespace, pod))
}

/// Says how many agents were not asked, if any.
pub fn unasked(agents: &[Agent]) -> Option<String> {
    let count = agents.iter().filter(|agent| agent.is_unasked).count();
    (count > 0).then(|| format!("{count} agents were not asked: {OUT_OF_TIME}"))
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready", "True").is_some()
}

fn pods(api: &dyn Api, namespace: &str, fields: &str) -> Result<Vec<Value>, Error> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    list(api, &path, &format!("{SELECTOR}{fields}"))
}

/// Reads the agent's `/status` through the API server's proxy for pods. Upstream's agent has none.
fn ask(api: &dyn Api, namespace: &str, pod: Value) -> Agent {
    let proxied = |port| {
        let name = text(&pod["metadata"]["name"]);
        get(api, &format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/status"))
    };
    Agent { status: admin_port(&pod["spec"]).map(proxied), pod, is_unasked: false }
}

/// Calls `work` with the number and the item for each of `items`, on at most `limit` threads. Returns
/// the results in the order of the items.
pub fn in_parallel<T: Send, R: Send>(
    items: Vec<T>,
    limit: usize,
    work: impl Fn(usize, T) -> R + Sync,
) -> Vec<R> {
    let threads = limit.min(items.len());
    let queue = Mutex::new((1..).zip(items));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let each = |(number, item)| (number, work(number, item));
    let run = || iter::from_fn(next).map(each).collect::<Vec<_>>();
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let joined = workers.into_iter().map(ScopedJoinHandle::join);
        joined.flat_map(|results| results.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::extension::fake::{AGENTS, Cluster, Recorded};

    #[test]
    fn agents_that_are_not_ready_are_asked_first() {
        let mut cluster = Cluster::healthy();
        cluster.set(AGENTS, "/items/1/status", json!({}));
        let api = Recorded::new(cluster);
        // The thread with the second agent waits for the request to the first.
        let progress = |number, _| {
            while number > 1 && api.count("/status") == 0 {
                thread::yield_now();
            }
        };
        agents(&api, "linkerd-cni", Deadline::after(Duration::from_secs(3600)), &progress).unwrap();
        assert!(api.first("/status").contains("linkerd-cni-2:"), "{}", api.first("/status"));
    }

    #[test]
    fn after_the_deadline_no_agent_is_asked() {
        let api = Recorded::new(Cluster::healthy());
        let end = Deadline::after(Duration::ZERO);
        let found = agents(&api, "linkerd-cni", end, &|_, _| {}).unwrap();
        assert_eq!(api.count("/status"), 0);
        let count = unasked(&found).unwrap();
        assert_eq!(count, format!("2 agents were not asked: {OUT_OF_TIME}"));
    }

    #[test]
    fn only_the_agent_of_the_node_is_asked() {
        let api = Recorded::new(Cluster::healthy());
        let agent = agent_on(&api, "linkerd-cni", "node-2").unwrap();
        assert_eq!(agent.name(), "linkerd-cni-2");
        assert_eq!(api.count("/status"), 1);
        assert_eq!(api.count("fieldSelector=spec.nodeName%3Dnode%2D2"), 1);
        assert!(agent_on(&api, "linkerd-cni", "").is_none());
    }
}
