//! Removes the startup taint, which keeps pods off a new node until the agent is ready.
//!
//! The taint is set when the node is created: by Karpenter's `startupTaints`, by the settings
//! of a node pool, or by the kubelet's `--register-with-taints`. The agent never adds the
//! taint: added later, it would come too late for pods that are already scheduled.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::agent::settings::Settings;
use crate::backoff::{Backoff, Limits, between};
use crate::kube::connection::Connection;
use crate::kube::types::Metadata;
use crate::kube::{self, Client};

/// Attempts to patch the node when the API server responds 409. The kubelet of a new node
/// changes the node object every few seconds.
const MAX_ATTEMPTS: u32 = 5;
/// Shortest and longest time until the Node is read again after the taint was removed, if the kubelet
/// does not renew the agent's token before. It does after four fifths of an hour.
pub const RECHECK: [Duration; 2] = [Duration::from_secs(60 * 60), Duration::from_secs(90 * 60)];

/// Shortest and longest time from a renewal of the agent's token to the next read of the Node. A
/// kubelet that starts registers its node and renews the tokens of all pods, in any order.
pub const TOKEN_RENEWED: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(45)];

/// First and longest wait after a failed removal.
const RETRY: Limits = [Duration::from_millis(500), Duration::from_secs(30)];

/// The taint to remove, and when to try next.
pub struct TaintRemoval {
    /// Name of the node, and key of the taint; `None` if no startup taint is configured.
    target: Option<(String, String)>,
    due: Instant,
    /// The agent's token at the last run. A Node is registered again, with the taint, only when its
    /// kubelet starts. The kubelet's cache of tokens is in memory, so it then writes a new token.
    token: Option<String>,
    backoff: Backoff,
    last_problem: Option<String>,
}

impl TaintRemoval {
    pub fn of(settings: &Settings, now: Instant) -> TaintRemoval {
        let (node, key) = (settings.node_name.clone(), settings.startup_taint.clone());
        if key.is_some() && node.is_none() {
            warn!("cannot remove the startup taint: LINKERD_CNI_NODE_NAME is not set");
        }
        TaintRemoval {
            target: node.zip(key),
            due: now,
            token: None,
            backoff: Backoff::new(RETRY),
            last_problem: None,
        }
    }

    /// Removes the taint if the node is ready and a try is due. Returns when the next try is due;
    /// `None` if the node is not ready or no startup taint is configured.
    pub fn run(
        &mut self,
        connection: &mut Connection,
        is_ready: impl Fn() -> bool,
        now: Instant,
    ) -> Option<Instant> {
        let (node, key) = self.target.as_ref().filter(|_| is_ready())?;
        let client = connection.client().map_err(|error| error.to_string());
        if self.token.as_deref() != connection.token() {
            self.token = connection.token().map(str::to_owned);
            self.due = self.due.min(now + between(TOKEN_RENEWED[0], TOKEN_RENEWED[1]));
        }
        if now < self.due {
            return Some(self.due);
        }
        let removal = client.and_then(|client| {
            remove(&client, node, key, &is_ready).map_err(|error| error.to_string())
        });
        let wait = match removal {
            Ok(Removal::NotReady) => return None,
            Ok(removal) => {
                let resolved = self.last_problem.take().is_some();
                if removal == Removal::Removed {
                    info!("removed the startup taint {key} from node {node}");
                } else if resolved {
                    info!("node {node} no longer has the startup taint {key}");
                }
                self.backoff.reset();
                between(RECHECK[0], RECHECK[1])
            }
            Err(why) => {
                let why = format!("cannot remove the startup taint {key} from node {node}: {why}");
                if self.last_problem.as_ref() != Some(&why) {
                    warn!("{why}");
                }
                self.last_problem = Some(why);
                self.backoff.next_delay()
            }
        };
        self.due = Instant::now() + wait;
        Some(self.due)
    }
}

/// Result of an attempt to remove the taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    Removed,
    /// The node does not have the taint.
    Absent,
    /// The node became not ready, or the agent received SIGTERM, before the patch was sent.
    NotReady,
}

/// Removes every taint with `key` from `node`, whatever its value and effect. Checks `is_ready`
/// before each patch, because reading the node may take seconds.
///
/// Costs one GET if there is no such taint. Needs the verbs `get` and `patch` on nodes.
///
/// # Errors
/// If a request fails, or all attempts end with a conflict (409).
pub fn remove(
    client: &Client,
    node: &str,
    key: &str,
    is_ready: impl Fn() -> bool,
) -> Result<Removal, kube::Error> {
    let path = format!("/api/v1/nodes/{node}");
    let mut attempt = 1;
    loop {
        let found: NodeTaints = client.get(&path)?;
        let Some(patch) = patch(&found, key) else {
            return Ok(Removal::Absent);
        };
        if !is_ready() {
            return Ok(Removal::NotReady);
        }
        match client.merge_patch(&path, &patch) {
            Err(error) if error.code() == Some(409) && attempt < MAX_ATTEMPTS => attempt += 1,
            patched => return patched.map(|()| Removal::Removed),
        }
    }
}

#[derive(Deserialize)]
struct NodeTaints {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    /// Raw JSON, so that the patch keeps fields unknown to this program.
    taints: Option<Vec<Value>>,
}

/// Returns the merge patch that removes the taints with `key`, or `None` if there are none.
///
/// A merge patch replaces the whole list of taints. So it contains the resource version: if
/// another client changed the node since, the API server rejects the patch with a 409.
fn patch(node: &NodeTaints, key: &str) -> Option<Value> {
    let taints = node.spec.taints.as_deref().unwrap_or_default();
    let remaining: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != key).collect();
    (remaining.len() < taints.len()).then(|| {
        json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": remaining},
        })
    })
}

#[cfg(test)]
mod tests;
