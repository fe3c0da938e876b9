//! What the status of a pod says about its sandbox. Pure.

use std::time::SystemTime;

use crate::kube::types::{Pod, PodStatus};

/// Condition that is true while the pod has a sandbox with a network. Kubernetes has it by default
/// from 1.29 on (feature gate `PodReadyToStartContainersCondition`).
const READY_TO_START: &str = "PodReadyToStartContainers";

/// The sandbox of a pod that is not in the host's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    Missing,
    Made {
        /// When the kubelet accepted the pod, before the sandbox was made. `None` if the status does
        /// not tell.
        accepted: Option<SystemTime>,
    },
    /// The pod is being deleted, so that it may lose its sandbox, or never get one.
    Leaving,
}

impl Sandbox {
    /// Reads the pod's status. `None` for a pod in the host's network: the runtime calls no plugin
    /// for it.
    pub fn read(pod: &Pod) -> Option<Sandbox> {
        if pod.spec.host_network {
            return None;
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return Some(Sandbox::Leaving);
        }
        if !has_sandbox(&pod.status) {
            return Some(Sandbox::Missing);
        }
        let mut accepted = None;
        if let Some(start_time) = &pod.status.start_time {
            accepted = humantime::parse_rfc3339(start_time).ok();
        }
        Some(Sandbox::Made { accepted })
    }
}

/// Returns whether the pod has a sandbox. If the status has no condition that tells, a pod with an
/// IP address has one.
fn has_sandbox(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter();
    if let Some(condition) = conditions.find(|condition| condition.kind == READY_TO_START) {
        match condition.status.as_str() {
            "True" => return true,
            "False" => return false,
            _ => {}
        }
    }
    !status.ips.is_empty()
}
