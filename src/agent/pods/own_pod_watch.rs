//! Finds the agent's own pod in the updates of a watch of pods, and records what they show of it.

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

    /// Returns a selection for a watch of only the agent's own pod.
    pub fn selection(&self) -> Selection {
        let PodName { namespace, name, .. } = self.name.clone();
        Selection::Pod { namespace, name }
    }

    /// Records what the update shows of the agent's own pod, and whether the API server accepted
    /// the agent's token. `seen_pod` returns the part of a watched pod that is recorded.
    pub fn record<T>(&self, update: &Update<'_, T>, seen_pod: impl Fn(&T) -> &SeenPod) {
        match update {
            Update::Listed { pods, .. } => {
                self.api.record_listed_pods();
                let mut listed = pods.iter().map(seen_pod);
                match listed.find(|pod| self.is_own(&pod.namespace, &pod.name)) {
                    Some(own) => self.record_seen(own),
                    None => self.api.update_own_pod(OwnPod::record_absent),
                }
            }
            Update::Changed(pod) => {
                let changed = seen_pod(pod);
                if self.is_own(&changed.namespace, &changed.name) {
                    self.record_seen(changed);
                }
            }
            Update::Deleted(metadata) => {
                if self.is_own(&metadata.namespace, &metadata.name) {
                    self.api.update_own_pod(|own_pod| own_pod.record_deleted(&metadata.uid));
                }
            }
            Update::Opened => self.api.record_open_watch(),
            // A bookmark is not recorded: the API server checked the token when the watch began, so
            // a bookmark does not show whether the token is still valid.
            Update::Alive | Update::Ended(_) => {}
            Update::Failed { error, .. } => self.api.record_failed_watch(error),
        }
    }

    fn is_own(&self, namespace: &str, name: &str) -> bool {
        self.name.namespace == namespace && self.name.name == name
    }

    fn record_seen(&self, seen: &SeenPod) {
        self.api.update_own_pod(|own_pod| own_pod.record_seen(seen.clone()));
    }
}
