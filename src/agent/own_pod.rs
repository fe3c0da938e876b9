//! What the API server has shown of the agent's own pod: which DaemonSet owns it, and whether it is
//! being deleted. On SIGTERM, [`stop`](super::stop) decides by both. Pure.
//!
//! The watch of pods usually shows a deletion before the kubelet sends SIGTERM.

use std::time::{Duration, Instant, SystemTime};

use crate::kube::pod_list::FromPod;
use crate::kube::types::{Metadata, OwnerReference, Pod};

/// How long after the end of a pod's grace period the API server certainly accepts a token that is
/// bound to the pod, if the pod still exists. Kubernetes accepts it for a minute ([`claims.go`]).
/// The other half of that minute is for clocks that differ.
///
/// [`claims.go`]: https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/serviceaccount/claims.go#L172-L227
const TOKEN_LEEWAY: Duration = Duration::from_secs(30);

/// The DaemonSet that is a pod's controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub name: String,
    pub uid: String,
}

/// Whether the agent's pod is being deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deletion {
    /// The API server never showed the pod, or the watch failed since.
    #[default]
    Unknown,
    NotDeleted,
    /// The pod has a grace period. The API server accepts a token that is bound to the pod until
    /// `token_ends`, or longer.
    Graceful {
        shown: Instant,
        token_ends: Instant,
    },
    /// The pod is gone, or is deleted without a grace period. A token that is bound to the pod is
    /// no longer valid.
    Forced,
}

impl Deletion {
    /// Reads the deletion from metadata that arrived at `now`, which is `date` by the node's clock.
    fn read(metadata: &Metadata, now: Instant, date: SystemTime) -> Deletion {
        let Some(end) = &metadata.deletion_timestamp else {
            return Deletion::NotDeleted;
        };
        // A forced deletion is first shown as an update with a grace period of 0, then as
        // `DELETED`.
        if metadata.deletion_grace_period_seconds.unwrap_or(0) == 0 {
            return Deletion::Forced;
        }
        let end = humantime::parse_rfc3339(end).ok();
        let left = end.and_then(|end| (end + TOKEN_LEEWAY).duration_since(date).ok());
        Deletion::Graceful { shown: now, token_ends: now + left.unwrap_or_default() }
    }

    /// Returns the deletion after an object showed `seen`. A deletion is never taken back: a list
    /// may be older than the last event of the watch.
    fn updated(self, seen: Deletion) -> Deletion {
        match (self, seen) {
            (Deletion::Unknown | Deletion::NotDeleted, seen) => seen,
            (Deletion::Forced, _) => Deletion::Forced,
            (Deletion::Graceful { .. }, Deletion::Unknown | Deletion::NotDeleted) => self,
            (Deletion::Graceful { .. }, Deletion::Forced) => Deletion::Forced,
            // A second deletion may shorten the grace period.
            (Deletion::Graceful { shown, .. }, Deletion::Graceful { token_ends, .. }) => {
                Deletion::Graceful { shown, token_ends }
            }
        }
    }
}

/// What an API object shows of a pod that may be the agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenPod {
    pub namespace: String,
    pub name: String,
    uid: String,
    daemonset: Option<Owner>,
    deletion: Deletion,
}

impl SeenPod {
    pub fn read(metadata: &Metadata) -> SeenPod {
        SeenPod {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            daemonset: metadata.owner_references.iter().find_map(owning_daemonset),
            deletion: Deletion::read(metadata, Instant::now(), SystemTime::now()),
        }
    }
}

impl FromPod for SeenPod {
    fn from_pod(pod: Pod) -> Option<Self> {
        Some(SeenPod::read(&pod.metadata))
    }
}

/// Returns the DaemonSet of a reference to a pod's controller. A pod has at most one controller.
fn owning_daemonset(reference: &OwnerReference) -> Option<Owner> {
    let OwnerReference { api_version, kind, name, uid, controller } = reference;
    if !controller || api_version != "apps/v1" || kind != "DaemonSet" {
        return None;
    }
    Some(Owner { name: name.clone(), uid: uid.clone() })
}

/// The agent's own pod, as the API server showed it last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnPod {
    /// UID in the agent's token, or else that of the first object with the pod's name.
    pub uid: Option<String>,
    pub daemonset: Option<Owner>,
    pub deletion: Deletion,
}

impl OwnPod {
    pub fn is_being_deleted(&self) -> bool {
        matches!(self.deletion, Deletion::Graceful { .. } | Deletion::Forced)
    }

    /// Records an object with the name of the agent's pod.
    pub fn record_seen(&mut self, seen: SeenPod) {
        let uid = self.uid.get_or_insert_with(|| seen.uid.clone());
        if *uid != seen.uid {
            // Another pod has the name by now.
            self.record_gone();
            return;
        }
        self.daemonset = seen.daemonset;
        self.deletion = self.deletion.updated(seen.deletion);
    }

    /// Records that the pod does not exist, by a `DELETED` event or a response of HTTP 404.
    pub fn record_gone(&mut self) {
        self.deletion = Deletion::Forced;
    }

    /// Records a `DELETED` event of a pod with the agent's pod's name.
    pub fn record_deleted(&mut self, uid: &str) {
        match &self.uid {
            Some(own) if own != uid => {}
            _ => self.record_gone(),
        }
    }

    /// Records a list without the pod. A list from a cache may be older than the pod.
    pub fn record_absent(&mut self) {
        self.deletion = match self.deletion {
            Deletion::Graceful { .. } | Deletion::Forced => Deletion::Forced,
            Deletion::Unknown | Deletion::NotDeleted => Deletion::Unknown,
        };
    }

    /// Records that the watch failed: a deletion would no longer be shown.
    pub fn record_lost_watch(&mut self) {
        if self.deletion == Deletion::NotDeleted {
            self.deletion = Deletion::Unknown;
        }
    }
}

#[cfg(test)]
mod tests;
