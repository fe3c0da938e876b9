//! The agents' pods, and what each agent reports through the API server's proxy for pods.

use serde_json::Value;

use super::objects::{AGENT_CONTAINER, admin_port, event_text, find_condition, items, text};
use super::parallel::in_parallel;
use super::requests::{Api, Error, decode, get_list};
use crate::agent::status_body::StatusBody;
use crate::deadline::Deadline;

/// Name of the DaemonSet, which the chart cannot change.
pub const DAEMONSET: &str = "linkerd-cni";
/// Selects the DaemonSet and its pods, of this chart and of upstream's.
pub const SELECTOR: &str = "labelSelector=k8s-app%3Dlinkerd-cni";

#[derive(Clone, Debug, Default)]
pub struct Agent {
    pub pod: Value,
    /// The body of `/status`, or why it cannot be read. `None` for upstream's agent, which has no
    /// `/status`.
    pub status: Option<Result<StatusBody, Error>>,
    /// Keys of `/status` that the agent, which has another version than this command, does not
    /// report.
    pub missing_keys: Vec<String>,
}

impl Agent {
    pub fn name(&self) -> &str {
        text(&self.pod["metadata"]["name"])
    }

    pub fn node(&self) -> &str {
        text(&self.pod["spec"]["nodeName"])
    }

    pub fn body(&self) -> Option<&StatusBody> {
        match &self.status {
            Some(Ok(body)) => Some(body),
            Some(Err(_)) | None => None,
        }
    }

    /// Returns why `/status` of the agent cannot be read.
    pub fn status_error(&self) -> Option<&Error> {
        match &self.status {
            Some(Err(error)) => Some(error),
            Some(Ok(_)) | None => None,
        }
    }

    /// Whether the pod has the newest template of the DaemonSet, as the DaemonSet's controller
    /// decides (`IsPodUpdated` in
    /// <https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/controller/daemon/util/daemonset_util.go>).
    pub fn is_current(&self, daemonset: &Value) -> bool {
        let annotations = &daemonset["metadata"]["annotations"];
        let newest = text(&annotations["deprecated.daemonset.template.generation"]);
        !newest.is_empty() && self.pod["metadata"]["labels"]["pod-template-generation"] == newest
    }

    /// Returns why the pod is not ready. `None` if the pod is ready. The agent's own reason comes
    /// first, then what the pod's containers, conditions and Events say. These are needed because
    /// the agent knows nothing of the repair controller, whose container is in the same pod.
    pub fn unready_reason(&self, events: &[Value]) -> Option<String> {
        if let Some(body) = self.body()
            && let Some(reason) = &body.not_ready
        {
            return Some(reason.clone());
        }
        if let Some(reason) = self.waiting_reason(events) {
            return Some(reason);
        }
        let status = &self.pod["status"];
        if let Some(condition) = find_condition(status, "PodScheduled", "False") {
            return Some(format!("not scheduled: {}", text(&condition["message"])));
        }
        if is_ready(&self.pod) {
            return None;
        }
        if let Some(reason) = self.unready_container_reason() {
            return Some(reason);
        }
        match self.status_error() {
            Some(error) => Some(format!("its /status cannot be read: {error}")),
            None => Some("its readiness probe fails".to_owned()),
        }
    }

    /// Returns the statuses of all containers, in the order in which they start.
    fn container_statuses(&self) -> impl Iterator<Item = &Value> {
        let status = &self.pod["status"];
        items(&status["initContainerStatuses"]).chain(items(&status["containerStatuses"]))
    }

    /// Names the first waiting container, and says why it waits: from its state, or else from an
    /// Event on the pod.
    fn waiting_reason(&self, events: &[Value]) -> Option<String> {
        let mut containers = self.container_statuses();
        let container = containers.find(|container| container["state"]["waiting"].is_object())?;
        let name = text(&container["name"]);
        let waiting = &container["state"]["waiting"];
        let reason = text(&waiting["reason"]);
        let message = text(&waiting["message"]);
        if !message.is_empty() {
            return Some(format!("container {name}: {reason}: {message}"));
        }
        match self.find_failure_event(events) {
            Some(event) => Some(format!("container {name}: {reason}: {}", event_text(event))),
            None => Some(format!("container {name}: {reason}")),
        }
    }

    /// Describes the first container that is not ready. Leaves out the agent's container, because
    /// its `/status` says more.
    fn unready_container_reason(&self) -> Option<String> {
        let mut containers = items(&self.pod["status"]["containerStatuses"]);
        let container = containers.find(|container| {
            container["ready"] == false && container["name"] != AGENT_CONTAINER
        })?;
        let name = text(&container["name"]);
        match container["lastState"]["terminated"]["exitCode"].as_i64() {
            Some(code) => {
                Some(format!("container {name} is not ready, and ended with exit code {code}"))
            }
            None => Some(format!("container {name} is not ready")),
        }
    }

    /// Returns the newest Event on the pod that says why a container cannot start. Leaves out
    /// Warning Events such as MissingClusterDNS, which do not keep a container from starting.
    fn find_failure_event<'e>(&self, events: &'e [Value]) -> Option<&'e Value> {
        events.iter().rev().find(|event| {
            event["involvedObject"]["uid"] == self.pod["metadata"]["uid"]
                && text(&event["reason"]).starts_with("Failed")
        })
    }
}

/// Lists the agents' pods, then asks the agents for their state until `end`, several at a time.
pub fn ask_agents(api: &dyn Api, namespace: &str, end: Deadline) -> Result<Vec<Agent>, Error> {
    let pods = list_agent_pods(api, namespace)?;
    let mut agents = in_parallel(pods, |pod| ask_agent(api, namespace, pod, end));
    agents.sort_by_cached_key(|agent| (agent.node().to_owned(), agent.name().to_owned()));
    Ok(agents)
}

/// Lists the agents' pods. The pods that are not ready come first, so that their agents are asked
/// before the time is up.
fn list_agent_pods(api: &dyn Api, namespace: &str) -> Result<Vec<Value>, Error> {
    let mut pods = get_list(api, &format!("/api/v1/namespaces/{namespace}/pods"), SELECTOR)?;
    pods.sort_by_key(is_ready);
    Ok(pods)
}

/// Asks the agent in `pod` for its state, through the API server's proxy for pods.
fn ask_agent(api: &dyn Api, namespace: &str, pod: Value, end: Deadline) -> Agent {
    let Some(port) = admin_port(&pod["spec"]) else {
        return Agent { pod, ..Agent::default() };
    };
    let name = text(&pod["metadata"]["name"]);
    if end.has_passed() {
        return Agent { pod, status: Some(Err(Error::OutOfTime)), missing_keys: Vec::new() };
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/status");
    match read_status(api, &path) {
        Ok((body, missing_keys)) => Agent { pod, status: Some(Ok(body)), missing_keys },
        Err(error) => Agent { pod, status: Some(Err(error)), missing_keys: Vec::new() },
    }
}

/// Returns the state of an agent, and the keys that it does not report.
fn read_status(api: &dyn Api, path: &str) -> Result<(StatusBody, Vec<String>), Error> {
    let text = api.body(path)?;
    let body: StatusBody = decode(path, &text)?;
    let reported: Value = decode(path, &text)?;
    Ok((body, StatusBody::missing_keys(&reported)))
}

pub fn is_ready(pod: &Value) -> bool {
    find_condition(&pod["status"], "Ready", "True").is_some()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::extension::fake::{AGENTS, Cluster, Recorded};

    #[test]
    fn unready_agents_are_asked_first() {
        let mut cluster = Cluster::healthy();
        cluster.set(AGENTS, "/items/1/status", json!({}));
        let pods = list_agent_pods(&cluster, "linkerd-cni").unwrap();
        let names = pods.iter().map(|pod| &pod["metadata"]["name"]);
        assert_eq!(names.collect::<Vec<_>>(), ["linkerd-cni-2", "linkerd-cni-1"]);
    }

    #[test]
    fn no_agent_is_asked_after_the_deadline() {
        let api = Recorded::new(Cluster::healthy());
        let agents = ask_agents(&api, "linkerd-cni", Deadline::after(Duration::ZERO)).unwrap();
        assert_eq!(api.count("/status"), 0);
        assert_eq!(agents.len(), 2);
        for agent in agents {
            assert!(matches!(agent.status_error(), Some(Error::OutOfTime)), "{agent:?}");
        }
    }
}
