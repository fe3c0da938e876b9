//! The agents' pods, and what each agent reports through the API server's proxy for pods.

use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::Value;

use super::api::{Api, Error, get, list};
use super::objects::{admin_port, condition, event_text, items, text};
use crate::agent::status_body::StatusBody;
use crate::deadline::Deadline;

/// Name of the DaemonSet, which the chart cannot change.
pub const DAEMONSET: &str = "linkerd-cni";
/// Selects the DaemonSet and its pods, of this chart and of upstream's.
pub const SELECTOR: &str = "labelSelector=k8s-app%3Dlinkerd-cni";
/// Number of agents that are asked at the same time.
const PARALLEL: usize = 16;

#[derive(Clone, Debug, Default)]
pub struct Agent {
    pub pod: Value,
    /// The body of `/status`, or why it cannot be read. `None` for upstream's agent, which has none.
    pub status: Option<Result<StatusBody, Error>>,
}

impl Agent {
    pub fn name(&self) -> &str {
        text(&self.pod["metadata"]["name"])
    }

    pub fn node(&self) -> &str {
        text(&self.pod["spec"]["nodeName"])
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
            _ if is_ready(&self.pod) => None,
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
            ("", Some(event)) => format!(": {}", event_text(event)),
            ("", None) => String::new(),
            (message, _) => format!(": {message}"),
        };
        let name = text(&container["name"]);
        Some(format!("container {name}: {}{message}", text(&waiting["reason"])))
    }
}

/// Lists the agents' pods, then asks the agents for their state until `end`, several at a time.
pub fn agents(api: &dyn Api, namespace: &str, end: Deadline) -> Result<Vec<Agent>, Error> {
    let mut found = in_parallel(pods(api, namespace)?, |pod| {
        let status = admin_port(&pod["spec"]).map(|port| {
            let name = text(&pod["metadata"]["name"]);
            // Through the API server's proxy for pods.
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/status");
            if end.has_passed() { Err(Error::OutOfTime) } else { get(api, &path) }
        });
        Agent { pod, status }
    });
    found.sort_by_cached_key(|agent| (agent.node().to_owned(), agent.name().to_owned()));
    Ok(found)
}

/// Lists the agents' pods. Those that are not ready are the first to be asked.
fn pods(api: &dyn Api, namespace: &str) -> Result<Vec<Value>, Error> {
    let mut pods = list(api, &format!("/api/v1/namespaces/{namespace}/pods"), SELECTOR)?;
    pods.sort_by_key(is_ready);
    Ok(pods)
}

pub fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready", "True").is_some()
}

/// Calls `work` for each of `items`, several at a time. Returns the results in any order.
pub fn in_parallel<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = PARALLEL.min(items.len());
    let (queue, results) = (Mutex::new(items.into_iter()), Mutex::new(Vec::new()));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some(item) = next() {
            let result = work(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        }
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
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
        let names = pods(&cluster, "linkerd-cni").unwrap();
        let names = names.iter().map(|pod| &pod["metadata"]["name"]);
        assert_eq!(names.collect::<Vec<_>>(), ["linkerd-cni-2", "linkerd-cni-1"]);
    }

    #[test]
    fn after_the_deadline_no_agent_is_asked() {
        let api = Recorded::new(Cluster::healthy());
        let found = agents(&api, "linkerd-cni", Deadline::after(Duration::ZERO)).unwrap();
        assert_eq!(api.count("/status"), 0);
        let is_out_of_time = |agent: &Agent| matches!(agent.status, Some(Err(Error::OutOfTime)));
        assert!(found.len() == 2 && found.iter().all(is_out_of_time), "{found:?}");
    }
}
