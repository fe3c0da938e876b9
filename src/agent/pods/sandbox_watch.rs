//! Records which pods of the node have a sandbox, for [`runtime_proof`](crate::agent::runtime_proof).

use std::sync::Arc;
use std::time::Instant;

use super::node_pod::{NodePod, runtime_pod};
use crate::agent::api_thread::ApiHandle;
use crate::kube::pod_watch::Update;

/// Why the agent does not see pods without sandbox.
const DENIED: &str = "without a watch of the node's pods, the agent does not notice that the \
    container runtime cannot run the plugin";

pub struct SandboxWatch {
    api: Arc<ApiHandle>,
}

impl SandboxWatch {
    pub fn new(api: &Arc<ApiHandle>) -> SandboxWatch {
        SandboxWatch { api: Arc::clone(api) }
    }

    pub fn record(&self, update: &Update<'_, NodePod>) {
        let now = Instant::now();
        match update {
            Update::Listed { pods, .. } => {
                let mut sandboxes = Vec::new();
                for pod in pods {
                    if let Some(sandbox) = pod.sandbox {
                        sandboxes.push((pod.pod.clone(), sandbox));
                    }
                }
                self.api.update_runtime_proof(|proof| proof.record_pods(&sandboxes, now));
            }
            Update::Changed(pod) => {
                if let Some(sandbox) = pod.sandbox {
                    self.api.update_runtime_proof(|proof| proof.record_pod(&pod.pod, sandbox, now));
                }
            }
            Update::Ended(metadata) | Update::Deleted(metadata) => {
                let uid = runtime_pod(metadata).uid;
                self.api.update_runtime_proof(|proof| proof.forget_pod(&uid));
            }
            // While the watch fails, what it has shown stays true enough: the API server is asked
            // about each pod before anything is withdrawn.
            Update::Failed { error, .. } => {
                if error.is_denied() {
                    let why = DENIED.to_owned();
                    self.api.update_runtime_proof(|proof| proof.record_denied_watch(why));
                }
            }
            Update::Opened | Update::Alive => {}
        }
    }
}
