//! Remembers what the API server has shown of the agent's own pod: which DaemonSet owns the pod,
//! and whether the pod is being deleted. On SIGTERM, [`stop`](super::stop) needs both to decide
//! whether to uninstall. Pure.
//!
//! The watch of pods usually shows a deletion before the kubelet sends SIGTERM.

use std::time::{Duration, Instant, SystemTime};

use crate::kube::pod_list::FromPod;
use crate::kube::types::{Metadata, OwnerReference, Pod};

/// Time after the end of a pod's grace period for which the API server certainly accepts a token
/// that is bound to the pod, if the pod still exists. Kubernetes accepts such a token for a minute
/// ([`claims.go`]). Only half of that minute is counted, because the clocks of API server and node
/// may differ.
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
    /// The API server has not shown the pod yet, or the watch has failed since it did.
    #[default]
    Unknown,
    NotDeleted,
    /// The pod is deleted with a grace period. The deletion was `shown` at this time. The API
    /// server accepts a token that is bound to the pod until `token_ends`, or longer.
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
        // A pod that is deleted by force still appears in an update before its `DELETED` event.
        // That update has a grace period of 0.
        if metadata.deletion_grace_period_seconds.unwrap_or(0) == 0 {
            return Deletion::Forced;
        }
        let token_left = token_time_left(end, date).unwrap_or_default();
        Deletion::Graceful { shown: now, token_ends: now + token_left }
    }

    /// Combines the deletion known so far with what a newly read object shows (`seen`). A known
    /// deletion stays even if the object shows none, because the object may come from a list that
    /// is older than the last event of the watch.
    fn updated(self, seen: Deletion) -> Deletion {
        match (self, seen) {
            (Deletion::Unknown | Deletion::NotDeleted, seen) => seen,
            (Deletion::Forced, _) => Deletion::Forced,
            (Deletion::Graceful { .. }, Deletion::Unknown | Deletion::NotDeleted) => self,
            (Deletion::Graceful { .. }, Deletion::Forced) => Deletion::Forced,
            // The pod was deleted a second time, perhaps with a shorter grace period.
            (Deletion::Graceful { shown, .. }, Deletion::Graceful { token_ends, .. }) => {
                Deletion::Graceful { shown, token_ends }
            }
        }
    }
}

/// Returns how long the API server certainly accepts a token that is bound to a pod whose grace
/// period is over at `end`, a time in the format of RFC 3339. `None` if that time has passed, or if
/// `end` is invalid.
fn token_time_left(end: &str, date: SystemTime) -> Option<Duration> {
    let end = humantime::parse_rfc3339(end).ok()?;
    (end + TOKEN_LEEWAY).duration_since(date).ok()
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

/// Returns the DaemonSet that owns a pod, if this owner reference names a DaemonSet as the pod's
/// controller. A pod has at most one controller.
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
    /// UID of the pod, from the agent's token. If the token has none, the UID of the first object
    /// that had the pod's name.
    pub uid: Option<String>,
    pub daemonset: Option<Owner>,
    pub deletion: Deletion,
}

impl OwnPod {
    pub fn is_being_deleted(&self) -> bool {
        matches!(self.deletion, Deletion::Graceful { .. } | Deletion::Forced)
    }

    /// Records an object that has the name of the agent's pod.
    pub fn record_seen(&mut self, seen: SeenPod) {
        let uid = self.uid.get_or_insert_with(|| seen.uid.clone());
        if *uid != seen.uid {
            // Another pod has the name now, so the agent's pod is gone.
            self.record_gone();
            return;
        }
        self.daemonset = seen.daemonset;
        self.deletion = self.deletion.updated(seen.deletion);
    }

    /// Records that the pod does not exist any more, as a `DELETED` event or a response of HTTP 404
    /// shows.
    pub fn record_gone(&mut self) {
        self.deletion = Deletion::Forced;
    }

    /// Records a `DELETED` event of a pod that has the name of the agent's pod and this `uid`.
    pub fn record_deleted(&mut self, uid: &str) {
        if let Some(own_uid) = &self.uid
            && own_uid != uid
        {
            return;
        }
        self.record_gone();
    }

    /// Records a list that does not contain the pod. Unless a deletion was shown before, this does
    /// not mean that the pod is gone: the list comes from a cache that may be older than the pod.
    pub fn record_absent(&mut self) {
        self.deletion = match self.deletion {
            Deletion::Graceful { .. } | Deletion::Forced => Deletion::Forced,
            Deletion::Unknown | Deletion::NotDeleted => Deletion::Unknown,
        };
    }

    /// Records that the watch has failed, so that it would not show a deletion any more.
    pub fn record_lost_watch(&mut self) {
        if self.deletion == Deletion::NotDeleted {
            self.deletion = Deletion::Unknown;
        }
    }
}

#[cfg(test)]
mod tests;
