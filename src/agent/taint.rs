//! The startup taint: keeps pods off a new node until the agent has verified it.
//!
//! Whoever makes the node puts the taint on it (Karpenter's `startupTaints`, a node
//! pool's settings, the kubelet's `--register-with-taints`). We only ever take it
//! away: a taint that is put back later comes too late for the pods it should hold off.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::kube::types::Metadata;
use crate::kube::{self, Client};

/// How often to start again after somebody else has changed the node in between,
/// which the kubelet does every few seconds on a new one.
const TRIES: u32 = 5;

/// Takes every taint with `key` off `node`, whatever its value and effect, and leaves
/// the others as they are. Returns whether there was one.
///
/// Call it once the node is verified, and again at will: without the taint it is one
/// GET. Needs `get` and `patch` on nodes.
pub fn remove(client: &Client, node: &str, key: &str) -> Result<bool, kube::Error> {
    let path = format!("/api/v1/nodes/{node}");
    let mut tries = 1;
    loop {
        let found: Node = client.get(&path)?;
        let Some(patch) = patch(&found, key) else {
            return Ok(false);
        };
        match client.merge_patch(&path, &patch) {
            Err(error) if error.code() == Some(409) && tries < TRIES => tries += 1,
            patched => return patched.map(|()| true),
        }
    }
}

#[derive(Deserialize)]
struct Node {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    /// Whole, so that what we do not know of them survives.
    taints: Option<Vec<Value>>,
}

/// The merge patch that leaves the node's taints but those with `key`; `None` if there
/// is none. A merge patch replaces lists as a whole, so the version that the list was
/// read at goes with it.
fn patch(node: &Node, key: &str) -> Option<Value> {
    let taints = node.spec.taints.as_deref().unwrap_or_default();
    let left: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != key).collect();
    (left.len() < taints.len()).then(|| {
        json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": left},
        })
    })
}

#[cfg(test)]
mod tests;
