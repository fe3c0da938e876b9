//! Finds the agent's own pod in the updates of a watch of pods.

use std::sync::Arc;

use crate::agent::api_thread::ApiHandle;
use crate::agent::identity::PodName;
use crate::agent::own_pod::{OwnPod, SeenPod};
use crate::kube::pod_watch::{Selection, Update};

pub struct OwnPodWatch {
    api: Arc<ApiHandle>,
    name: PodName,
}

impl OwnPodWatch {
    pub fn new(api: &Arc<ApiHandle>, name: PodName) -> OwnPodWatch {
        api.await_own_pod(name.uid.clone());
        OwnPodWatch { api: Arc::clone(api), name }
    }

    /// Selects only the agent's own pod.
    pub fn selection(&self) -> Selection {
        let PodName { namespace, name, .. } = self.name.clone();
        Selection::Pod { namespace, name }
    }

    /// Records what the update shows of the agent's own pod, and whether the API server accepted
    /// the agent's token. `seen` returns what a pod of the watch shows.
    pub fn record<T>(&self, update: &Update<'_, T>, seen: impl Fn(&T) -> &SeenPod) {
        match update {
            Update::Listed { pods, .. } => {
                self.api.record_list();
                let mut listed = pods.iter().map(seen);
                match listed.find(|pod| self.is_own(&pod.namespace, &pod.name)) {
                    Some(own) => self.record_seen(own),
                    None => self.api.record_own_pod(OwnPod::record_absent),
                }
            }
            Update::Changed(pod) => {
                let seen = seen(pod);
                if self.is_own(&seen.namespace, &seen.name) {
                    self.record_seen(seen);
                }
            }
            Update::Deleted(metadata) => {
                if self.is_own(&metadata.namespace, &metadata.name) {
                    self.api.record_own_pod(|own_pod| own_pod.record_deleted(&metadata.uid));
                }
            }
            Update::Opened => self.api.record_open_watch(),
            // A bookmark in a watch that began earlier does not show whether the token is still
            // valid.
            Update::Alive | Update::Ended(_) => {}
            Update::Failed { error, .. } => self.api.record_failed_watch(error),
        }
    }

    fn is_own(&self, namespace: &str, name: &str) -> bool {
        self.name.namespace == namespace && self.name.name == name
    }

    fn record_seen(&self, seen: &SeenPod) {
        self.api.record_own_pod(|own_pod| own_pod.record_seen(seen.clone()));
    }
}
