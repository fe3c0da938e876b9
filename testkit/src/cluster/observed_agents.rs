//! The agents of many nodes, as a watch shows them. A watch reports each change of a pod, so a state
//! that lasts only for an instant is seen, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linkerd2_cni::kube::Client;
use serde_json::Value;

use super::helm::NAMESPACE;

/// Longest time of a test. The API server then ends the watch.
pub const WATCH_TIME: Duration = Duration::from_secs(3600);

/// The pod of an agent, as its last event shows it.
#[derive(Clone, Debug)]
pub struct AgentPod {
    pub name: String,
    pub uid: String,
    /// `None` until the scheduler has bound the pod.
    pub node: Option<String>,
    /// Name and image of each container.
    pub containers: Vec<(String, String)>,
    /// Hash of the DaemonSet's revision.
    pub revision: String,
    pub is_ready: bool,
    /// When the first event of the pod arrived.
    pub created: Instant,
    /// When the first event with a deletion timestamp arrived.
    pub deleted: Option<Instant>,
}

impl AgentPod {
    /// Whether the pod is ready and is not being deleted.
    fn serves(&self) -> bool {
        self.is_ready && self.deleted.is_none()
    }
}

/// What was seen during an event such as a rollout.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Nodes that had no ready agent at some time.
    pub without_agent: BTreeSet<String>,
    /// Largest number of nodes that had no ready agent at the same time.
    pub most_without_agent: usize,
    /// Largest number of pods that were not ready at the same time, without those that were being
    /// deleted. Kubernetes limits it by `maxSurge`.
    pub most_starting: usize,
    /// Largest number of pods above one for each node, also those that were being deleted.
    pub most_above: usize,
    /// Node of each pod that got ready, and the time from its creation until then.
    pub ready_after: Vec<(String, Duration)>,
    /// Node of each pod that was deleted, and the time from its deletion until it was gone.
    pub gone_after: Vec<(String, Duration)>,
}

pub struct ObservedAgents {
    /// Nodes that must always have a ready agent.
    nodes: BTreeSet<String>,
    /// By UID.
    pods: BTreeMap<String, AgentPod>,
    /// Number of pods when the observation began: one for each node.
    pods_at_begin: usize,
    seen: Seen,
    /// Why the watch has ended. Without a watch, nothing that is asked here is known.
    end: Option<String>,
}

impl ObservedAgents {
    pub fn new(nodes: BTreeSet<String>) -> Self {
        ObservedAgents {
            nodes,
            pods: BTreeMap::new(),
            pods_at_begin: 0,
            seen: Seen::default(),
            end: None,
        }
    }

    /// Applies an event of the watch. The error says why the event is not one of a pod.
    pub fn apply(&mut self, event: &Value, now: Instant) -> Result<(), String> {
        let object = &event["object"];
        let Some(uid) = object["metadata"]["uid"].as_str() else {
            return Err(format!("not a pod: {event}"));
        };
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => self.update(uid, object, now)?,
            Some("DELETED") => self.remove(uid, now),
            _ => return Err(format!("unexpected event: {event}")),
        }
        self.record();
        Ok(())
    }

    fn update(&mut self, uid: &str, object: &Value, now: Instant) -> Result<(), String> {
        let Some(mut pod) = parse(uid, object, now) else {
            return Err(format!("incomplete pod: {object}"));
        };
        let before = self.pods.get(uid);
        if let Some(before) = before {
            pod.created = before.created;
            pod.deleted = before.deleted.or(pod.deleted);
        }
        let was_ready = before.is_some_and(|before| before.is_ready);
        if pod.is_ready && !was_ready {
            self.seen.ready_after.push((node_of(&pod), now - pod.created));
        }
        self.pods.insert(uid.to_owned(), pod);
        Ok(())
    }

    fn remove(&mut self, uid: &str, now: Instant) {
        if let Some(pod) = self.pods.remove(uid)
            && let Some(deleted) = pod.deleted
        {
            self.seen.gone_after.push((node_of(&pod), now - deleted));
        }
    }

    /// Compares the current pods with what was seen so far.
    fn record(&mut self) {
        let mut without_agent = self.nodes.clone();
        let mut starting = 0;
        for pod in self.pods.values() {
            if pod.deleted.is_none() && !pod.is_ready {
                starting += 1;
            }
            if let Some(node) = &pod.node
                && pod.serves()
            {
                without_agent.remove(node);
            }
        }
        let above = self.pods.len().saturating_sub(self.pods_at_begin);
        let seen = &mut self.seen;
        seen.most_starting = seen.most_starting.max(starting);
        seen.most_above = seen.most_above.max(above);
        seen.most_without_agent = seen.most_without_agent.max(without_agent.len());
        seen.without_agent.append(&mut without_agent);
    }

    /// Forgets what was seen. Only for settled agents.
    pub fn begin(&mut self) {
        self.pods_at_begin = self.pods.len();
        self.seen = Seen::default();
        self.record();
    }

    /// Returns what was seen since [`ObservedAgents::begin`]. Panics if the watch has ended.
    pub fn seen(&self) -> Seen {
        self.assert_watched();
        self.seen.clone()
    }

    /// Whether each node has exactly one agent, all of them are ready and of the same revision, and
    /// none is being deleted. There is one more agent, on the real node. Panics if the watch has
    /// ended.
    pub fn are_settled(&self) -> bool {
        self.assert_watched();
        let mut nodes = BTreeSet::new();
        let mut revisions = BTreeSet::new();
        for pod in self.pods.values() {
            if !pod.serves() {
                return false;
            }
            nodes.insert(node_of(pod));
            revisions.insert(&pod.revision);
        }
        let has_all = self.nodes.is_subset(&nodes) && nodes.len() == self.nodes.len() + 1;
        has_all && self.pods.len() == nodes.len() && revisions.len() == 1
    }

    /// Returns the UIDs of the agents' pods.
    pub fn uids(&self) -> BTreeSet<String> {
        self.pods.keys().cloned().collect()
    }

    pub fn pods(&self) -> impl Iterator<Item = &AgentPod> {
        self.pods.values()
    }

    fn assert_watched(&self) {
        assert_eq!(self.end, None, "the watch of the agents has ended");
    }
}

fn node_of(pod: &AgentPod) -> String {
    pod.node.clone().unwrap_or_default()
}

/// Reads a pod whose first event arrives `now`. `None`: a field is missing that each pod of a
/// DaemonSet has.
fn parse(uid: &str, object: &Value, now: Instant) -> Option<AgentPod> {
    let metadata = &object["metadata"];
    let mut containers = Vec::new();
    for container in object["spec"]["containers"].as_array()? {
        let name = container["name"].as_str()?;
        containers.push((name.to_owned(), container["image"].as_str()?.to_owned()));
    }
    let is_deleted = metadata["deletionTimestamp"].is_string();
    Some(AgentPod {
        name: metadata["name"].as_str()?.to_owned(),
        uid: uid.to_owned(),
        node: object["spec"]["nodeName"].as_str().map(str::to_owned),
        containers,
        revision: metadata["labels"]["controller-revision-hash"].as_str()?.to_owned(),
        is_ready: is_ready(object),
        created: now,
        deleted: if is_deleted { Some(now) } else { None },
    })
}

fn is_ready(pod: &Value) -> bool {
    let Some(conditions) = pod["status"]["conditions"].as_array() else {
        return false;
    };
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

pub fn lock(agents: &Mutex<ObservedAgents>) -> MutexGuard<'_, ObservedAgents> {
    agents.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies the events of the agents' pods until the watch ends.
pub fn watch(client: &Client, agents: &Mutex<ObservedAgents>) {
    let reason = match apply_events(client, agents) {
        Ok(()) => "the API server ended it".to_owned(),
        Err(problem) => problem,
    };
    println!("the watch of the agents has ended: {reason}");
    lock(agents).end = Some(reason);
}

/// Returns when the API server ends the watch. The error says why it ended otherwise.
fn apply_events(client: &Client, agents: &Mutex<ObservedAgents>) -> Result<(), String> {
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=k8s-app%3Dlinkerd-cni");
    // Version 0 is that of the API server's cache: the watch begins with an event for each pod in it.
    // Without a version, the API server first brings its cache up to date, which times out with the
    // etcd of Debian 12.
    let watch = format!("watch=true&resourceVersion=0&timeoutSeconds={}", WATCH_TIME.as_secs());
    let watch = format!("{pods}&{watch}");
    let events = client.watch(&watch).map_err(|error| error.to_string())?;
    for event in serde_json::Deserializer::from_reader(events).into_iter::<Value>() {
        let event = event.map_err(|error| error.to_string())?;
        lock(agents).apply(&event, Instant::now())?;
    }
    Ok(())
}
