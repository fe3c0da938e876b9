//! A node of the cluster, and what its kubelet reports.

use serde::Deserialize;
use serde_json::Value;

use super::objects::{find_condition, text};
use crate::kube::scheduling::Node;

/// Part of the message with which a kubelet reports that the container runtime has no usable
/// network config (`syncLoop` in
/// <https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/kubelet/kubelet.go>).
const NO_NETWORK: &str = "runtime network not ready";

#[derive(Clone, Debug, Deserialize)]
pub struct ClusterNode {
    /// The fields that decide whether the node is in the scope of the DaemonSet.
    #[serde(flatten)]
    pub scheduled: Node,
    #[serde(default)]
    status: Value,
}

/// Whether pods can start on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    Ready,
    /// The runtime has no usable network config, so that no pod starts on the node.
    NoNetwork(String),
    /// The kubelet does not report, or reports another problem, so that it is unknown what runs
    /// there.
    NotReady(String),
}

impl ClusterNode {
    pub fn name(&self) -> &str {
        &self.scheduled.metadata.name
    }

    pub fn state(&self) -> NodeState {
        let status = &self.status;
        if find_condition(status, "Ready", "True").is_some() {
            return NodeState::Ready;
        }
        if let Some(failed) = find_condition(status, "Ready", "False") {
            let reason = text(&failed["message"]).to_owned();
            if reason.contains(NO_NETWORK) {
                return NodeState::NoNetwork(reason);
            }
            return NodeState::NotReady(reason);
        }
        // The controller manager sets `Unknown` when the kubelet no longer reports. A new node has
        // no condition yet.
        match find_condition(status, "Ready", "Unknown") {
            Some(unknown) => NodeState::NotReady(text(&unknown["message"]).to_owned()),
            None => NodeState::NotReady("its kubelet has not reported yet".to_owned()),
        }
    }
}
