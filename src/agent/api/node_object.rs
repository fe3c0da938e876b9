//! Keeps the agent's Node object as the settings say: without the startup taint once the node is ready,
//! or with the condition [`CONDITION`].
//!
//! The taint is set when the node is created: by Karpenter's `startupTaints`, by the settings
//! of a node pool, or by the kubelet's `--register-with-taints`. The agent never adds the
//! taint: added later, it would come too late for pods that are already scheduled.
//!
//! The condition is written only when it changes, since an idle node sends hardly any request. So its
//! `lastHeartbeatTime` is the time of the last write. Kubernetes' node lifecycle controller marks
//! conditions without heartbeats as unknown, but only kubelet's own: `tryUpdateNodeHealth` in
//! <https://github.com/kubernetes/kubernetes/blob/v1.35.0/pkg/controller/nodelifecycle/node_lifecycle_controller.go>.

use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::node_state::{NOT_READY, NodeState, Wanted};
use crate::agent::settings::{NodeSignal, Settings};
use crate::backoff::{Backoff, Limits, between};
use crate::kube::connection::Connection;
use crate::kube::types::{Metadata, null_as_default, objects};
use crate::kube::{self, Client};

pub const CONDITION: &str = "linkerd-cni.linkerd.io/Ready";
/// Status, reason and message of the condition while the node is ready.
const READY: [&str; 3] =
    ["True", "PluginVerified", "linkerd CNI is installed and verified on this node"];
/// Longest message of the condition, in bytes. As of an Event.
const MESSAGE_LIMIT: usize = 1024;

/// Shortest time between two writes that change only why the node is not ready.
const REASON_GAP: Duration = Duration::from_secs(60);

/// Attempts to remove the condition after an uninstall if the API server responds 409: the kubelet
/// of a new node changes the Node every few seconds. [`NodeUpdates::run`] makes one attempt each
/// time, and retries later.
const LAST_ATTEMPTS: u32 = 5;
/// Shortest and longest time until the Node is read again after a success, if the kubelet
/// does not renew the agent's token before. It does after four fifths of an hour.
pub const RECHECK: [Duration; 2] = [Duration::from_secs(60 * 60), Duration::from_secs(90 * 60)];

/// Shortest and longest time from a renewal of the agent's token to the next read of the Node. A
/// kubelet that starts registers its node and renews the tokens of all pods, in any order.
pub const TOKEN_RENEWED: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(45)];

const RETRY: Limits = [Duration::from_millis(500), Duration::from_secs(30)];

pub struct NodeUpdates {
    /// Name of the node, and what to keep there; `None` if nothing is configured.
    target: Option<(String, NodeSignal)>,
    due: Instant,
    /// What was tried last, and when.
    last: Option<(Wanted, Instant)>,
    /// The agent's token at the last run. A Node is registered again, with the taint and without the
    /// condition, only when its kubelet starts. The kubelet's cache of tokens is in memory, so it then
    /// writes a new token.
    token: Option<String>,
    backoff: Backoff,
    last_problem: Option<String>,
}

impl NodeUpdates {
    pub fn of(settings: &Settings, now: Instant) -> NodeUpdates {
        let (node, signal) = (settings.node_name.clone(), settings.node_signal.clone());
        if signal.is_some() && node.is_none() {
            warn!("cannot change the Node: LINKERD_CNI_NODE_NAME is not set");
        }
        NodeUpdates {
            target: node.zip(signal),
            due: now,
            last: None,
            token: None,
            backoff: Backoff::new(RETRY),
            last_problem: None,
        }
    }

    /// Patches the Node if that is due and needed. Returns when to call this again.
    pub fn run(
        &mut self,
        connection: &mut Connection,
        state: Option<NodeState>,
        now: Instant,
    ) -> Option<Instant> {
        let (node, signal) = self.target.as_ref()?;
        let (wanted, look_again) = state?.wanted(signal, now);
        let Some(wanted) = wanted else { return look_again };
        let client = connection.client();
        if self.token.as_deref() != connection.token() {
            self.token = connection.token().map(str::to_owned);
            self.due = self.due.min(now + between(TOKEN_RENEWED[0], TOKEN_RENEWED[1]));
        }
        match (&self.last, &wanted) {
            (Some((last, _)), _) if *last == wanted => {}
            (Some((Wanted::NotReady(_), tried)), Wanted::NotReady(_)) => {
                self.due = self.due.min(*tried + REASON_GAP);
            }
            _ => self.due = now,
        }
        if now >= self.due {
            let wait = match client.and_then(|client| Ok(update(&client, node, &wanted, 1)?)) {
                Ok(is_patched) => {
                    let was_failing = self.last_problem.take().is_some();
                    match is_patched {
                        true => info!("{}", wanted.task(node, true)),
                        false if was_failing => {
                            info!("no longer needed: {}", wanted.task(node, false));
                        }
                        false => {}
                    }
                    self.backoff.reset();
                    between(RECHECK[0], RECHECK[1])
                }
                Err(why) => {
                    let why = Some(format!("cannot {}: {why}", wanted.task(node, false)));
                    if self.last_problem != why {
                        why.iter().for_each(|why| warn!("{why}"));
                    }
                    self.last_problem = why;
                    self.backoff.next_delay()
                }
            };
            let now = Instant::now();
            self.last = Some((wanted, now));
            self.due = now + wait;
        }
        Some(look_again.map_or(self.due, |end| end.min(self.due)))
    }
}

/// Removes the condition that this agent set on the Node. Called after an uninstall.
pub fn remove_condition(connection: &mut Connection, settings: &Settings) {
    let (Some(NodeSignal::Condition), Some(node)) = (&settings.node_signal, &settings.node_name)
    else {
        return;
    };
    let wanted = Wanted::NoCondition;
    let removed =
        connection.client().and_then(|client| Ok(update(&client, node, &wanted, LAST_ATTEMPTS)?));
    if let Err(error) = removed {
        warn!("cannot {}: {error}", wanted.task(node, false));
    }
}

/// Patches `node` unless it already is as `wanted`. Returns whether it sent a patch.
///
/// Sends one GET if the node is as wanted. Needs the verb `get` on nodes, and `patch` on nodes or
/// `nodes/status`.
///
/// # Errors
/// If a request fails, or all attempts end with a conflict (409).
pub fn update(
    client: &Client,
    node: &str,
    wanted: &Wanted,
    attempts: u32,
) -> Result<bool, kube::Error> {
    let path = format!("/api/v1/nodes/{node}");
    let subresource = if matches!(wanted, Wanted::NoTaint(_)) { "" } else { "/status" };
    let mut attempt = 1;
    loop {
        let found: Node = client.get(&path)?;
        let Some(patch) = wanted.patch(&found, SystemTime::now()) else { return Ok(false) };
        match client.merge_patch(&format!("{path}{subresource}"), &patch) {
            Err(error) if error.code() == Some(409) && attempt < attempts => attempt += 1,
            patched => return patched.map(|()| true),
        }
    }
}

objects! {
    pub struct Node {
        pub metadata: Metadata,
        pub spec: NodeSpec,
        pub status: NodeStatus,
    }

    pub struct NodeSpec {
        /// Raw JSON, like the conditions, so that a patch keeps fields unknown to this program.
        pub taints: Vec<Value>,
    }

    pub struct NodeStatus {
        pub conditions: Vec<Value>,
    }
}

impl Wanted {
    /// Returns the merge patch that makes the node as wanted, or `None` if it is.
    ///
    /// A merge patch replaces the whole list. So it contains the resource version: if another client
    /// changed the node since, the API server rejects the patch with a 409.
    fn patch(&self, node: &Node, now: SystemTime) -> Option<Value> {
        let (taints, conditions) = (&node.spec.taints, &node.status.conditions);
        let (part, list, items) = match self {
            Wanted::NoTaint(key) => ("spec", "taints", without(taints, "key", key)?),
            Wanted::NoCondition => {
                ("status", "conditions", without(conditions, "type", CONDITION)?)
            }
            Wanted::Ready => ("status", "conditions", with_condition(conditions, READY, now)?),
            Wanted::NotReady(why) => {
                let why = &why[..why.floor_char_boundary(MESSAGE_LIMIT)];
                let condition = ["False", NOT_READY, why];
                ("status", "conditions", with_condition(conditions, condition, now)?)
            }
        };
        let version = &node.metadata.resource_version;
        Some(json!({"metadata": {"resourceVersion": version}, part: {list: items}}))
    }

    /// Says what is to be done, or was done.
    pub fn task(&self, node: &str, is_done: bool) -> String {
        let remove = if is_done { "removed" } else { "remove" };
        match self {
            Wanted::NoTaint(key) => format!("{remove} the startup taint {key} from node {node}"),
            Wanted::NoCondition => format!("{remove} the condition {CONDITION} from node {node}"),
            Wanted::Ready => format!("set the condition {CONDITION} of node {node} to True"),
            Wanted::NotReady(_) => format!("set the condition {CONDITION} of node {node} to False"),
        }
    }
}

/// Returns the items whose field `key` is not `value`; `None` if these are all.
fn without(items: &[Value], key: &str, value: &str) -> Option<Vec<Value>> {
    let left: Vec<Value> = items.iter().filter(|item| item[key] != value).cloned().collect();
    (left.len() < items.len()).then_some(left)
}

/// Returns the conditions with the agent's own; `None` if that is the same as before.
fn with_condition(
    all: &[Value],
    [status, reason, message]: [&str; 3],
    now: SystemTime,
) -> Option<Vec<Value>> {
    let old = all.iter().find(|condition| condition["type"] == CONDITION).unwrap_or(&Value::Null);
    if old["status"] == status && old["reason"] == reason && old["message"] == message {
        return None;
    }
    let now = json!(humantime::format_rfc3339_seconds(now).to_string());
    let since = if old["status"] == status { &old["lastTransitionTime"] } else { &now };
    let mut conditions = without(all, "type", CONDITION).unwrap_or_else(|| all.to_vec());
    conditions.push(json!({
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since,
    }));
    Some(conditions)
}

#[cfg(test)]
mod tests;
