//! Removes the startup taint from the agent's Node once the node is ready.
//!
//! The taint is set when the node is created: by Karpenter's `startupTaints`, by the settings
//! of a node pool, or by the kubelet's `--register-with-taints`. The agent never adds the taint,
//! because that would be too late for pods that are already scheduled.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::agent::settings::Settings;
use crate::backoff::{Backoff, Limits, between};
use crate::kube::connection::{Connection, Error};
use crate::kube::types::{Metadata, null_as_default, objects};
use crate::kube::{self, Client};

/// Shortest and longest time until the Node is read again after a success. The Node is read earlier
/// if the kubelet renews the agent's token, which it does after four fifths of an hour.
pub const RECHECK: [Duration; 2] = [Duration::from_secs(60 * 60), Duration::from_secs(90 * 60)];

/// Shortest and longest time from a renewal of the agent's token to the next read of the Node. A
/// kubelet that has just started renews the tokens of all pods and registers its node with the
/// taint, in any order. So the taint may appear only some time after the new token.
pub const AFTER_TOKEN_RENEWAL: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(45)];

/// First and longest wait after a failure.
const RETRY: Limits = [Duration::from_millis(500), Duration::from_secs(30)];

/// Removes the startup taint, and decides when to look for the taint again.
pub struct StartupTaint {
    /// `None` if no taint is to be removed.
    tainted_node: Option<TaintedNode>,
    due: Instant,
    /// The agent's token in the last call. A new token may mean that the kubelet has restarted: it
    /// caches tokens in memory, so it then writes new ones. Only a kubelet that starts registers
    /// its Node again, and sets the taint again.
    token: Option<String>,
    backoff: Backoff,
    last_problem: Option<String>,
}

/// The agent's Node, and the key of the taint that is removed from it.
#[derive(Clone)]
struct TaintedNode {
    node: String,
    key: String,
}

impl TaintedNode {
    /// Returns `None` if no taint is configured, or if the settings do not name the node.
    fn from_settings(settings: &Settings) -> Option<TaintedNode> {
        let key = settings.startup_taint.clone()?;
        let Some(node) = settings.node_name.clone() else {
            warn!("cannot remove the startup taint: LINKERD_CNI_NODE_NAME is not set");
            return None;
        };
        Some(TaintedNode { node, key })
    }
}

impl StartupTaint {
    pub fn new(settings: &Settings, now: Instant) -> StartupTaint {
        StartupTaint {
            tainted_node: TaintedNode::from_settings(settings),
            due: now,
            token: None,
            backoff: Backoff::new(RETRY),
            last_problem: None,
        }
    }

    /// Removes the startup taint if the node is ready and the removal is due. Returns when to call
    /// this function again. `None` if no taint is configured, or while the node is not ready.
    pub fn remove_if_due(
        &mut self,
        connection: &mut Connection,
        is_ready: bool,
    ) -> Option<Instant> {
        let TaintedNode { node, key } = self.tainted_node.clone()?;
        if !is_ready {
            return None;
        }
        let now = Instant::now();
        // This reads the agent's token again.
        let client = connection.client();
        self.notice_renewed_token(connection.token(), now);
        if now < self.due {
            return Some(self.due);
        }
        let removed = match client {
            Ok(client) => remove_taint(&client, &node, &key).map_err(Error::from),
            Err(error) => Err(error),
        };
        let wait = match removed {
            Ok(was_tainted) => {
                self.log_success(was_tainted, &node, &key);
                self.backoff.reset();
                between(RECHECK[0], RECHECK[1])
            }
            Err(error) => {
                self.log_failure(format!(
                    "cannot remove the startup taint {key} from node {node}: {error}"
                ));
                self.backoff.next_delay()
            }
        };
        self.due = Instant::now() + wait;
        Some(self.due)
    }

    /// Reads the Node earlier if the agent's `token` has changed since the last call.
    fn notice_renewed_token(&mut self, token: Option<&str>, now: Instant) {
        if self.token.as_deref() == token {
            return;
        }
        self.token = token.map(str::to_owned);
        let wait = between(AFTER_TOKEN_RENEWAL[0], AFTER_TOKEN_RENEWAL[1]);
        self.due = self.due.min(now + wait);
    }

    fn log_success(&mut self, was_tainted: bool, node: &str, key: &str) {
        let was_failing = self.last_problem.take().is_some();
        if was_tainted {
            info!("removed the startup taint {key} from node {node}");
        } else if was_failing {
            info!("no longer needed: remove the startup taint {key} from node {node}");
        }
    }

    /// Logs the problem, unless the last attempt failed with the same problem.
    fn log_failure(&mut self, problem: String) {
        if self.last_problem.as_ref() != Some(&problem) {
            warn!("{problem}");
        }
        self.last_problem = Some(problem);
    }
}

/// Removes the taints with this key from `node`, whatever their value and effect. Returns whether
/// there were any. Sends one GET if there are none. Needs the verbs `get` and `patch` on nodes.
///
/// # Errors
/// If a request fails, or if another client changed the Node between the two requests (409). Also
/// if a response is another object, so that it says nothing about the taints.
fn remove_taint(client: &Client, node: &str, key: &str) -> Result<bool, kube::Error> {
    let path = format!("/api/v1/nodes/{node}");
    let found: Node = client.get_object(&path, "Node")?;
    let Some(patch) = patch_without_taint(&found, key) else { return Ok(false) };
    client.merge_patch(&path, &patch)?;
    Ok(true)
}

objects! {
    pub struct Node {
        pub metadata: Metadata,
        pub spec: NodeSpec,
    }

    pub struct NodeSpec {
        /// Raw JSON, so that a patch keeps fields unknown to this program.
        pub taints: Vec<Value>,
    }
}

/// Returns the merge patch that removes the taints with this key, or `None` if there are none.
///
/// A merge patch replaces the whole list of taints. So that it does not undo the change of another
/// client, the patch contains the resource version that was read. If the Node has changed since,
/// the API server rejects the patch with a 409.
fn patch_without_taint(node: &Node, key: &str) -> Option<Value> {
    let taints = &node.spec.taints;
    let other_taints: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != key).collect();
    if other_taints.len() == taints.len() {
        return None;
    }
    let version = &node.metadata.resource_version;
    Some(json!({"metadata": {"resourceVersion": version}, "spec": {"taints": other_taints}}))
}

#[cfg(test)]
mod tests;
