//! Removes the startup taint, which keeps pods off a new node until the agent is ready.
//!
//! The taint is set when the node is created: by Karpenter's `startupTaints`, by the settings
//! of a node pool, or by the kubelet's `--register-with-taints`. The agent never adds the
//! taint: added later, it would come too late for pods that are already scheduled.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::kube::types::Metadata;
use crate::kube::{self, Client};

/// Attempts to patch the node when the API server responds 409. The kubelet of a new node
/// changes the node object every few seconds.
const MAX_ATTEMPTS: u32 = 5;

/// Removes every taint with `key` from `node`, whatever its value and effect. Returns whether
/// there was one.
///
/// Costs one GET if there is no such taint. Needs the verbs `get` and `patch` on nodes.
///
/// # Errors
/// If a request fails, or all attempts end with a conflict (409).
pub fn remove(client: &Client, node: &str, key: &str) -> Result<bool, kube::Error> {
    let path = format!("/api/v1/nodes/{node}");
    let mut attempt = 1;
    loop {
        let found: Node = client.get(&path)?;
        let Some(patch) = patch(&found, key) else {
            return Ok(false);
        };
        match client.merge_patch(&path, &patch) {
            Err(error) if error.code() == Some(409) && attempt < MAX_ATTEMPTS => attempt += 1,
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
    /// Raw JSON, so that the patch keeps fields unknown to this program.
    taints: Option<Vec<Value>>,
}

/// Returns the merge patch that removes the taints with `key`, or `None` if there are none.
///
/// A merge patch replaces the whole list of taints. So it contains the resource version: if
/// another client changed the node since, the API server rejects the patch with a 409.
fn patch(node: &Node, key: &str) -> Option<Value> {
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
