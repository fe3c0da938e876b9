//! Deletes or labels exactly the pod that was judged: never a changed one, and never
//! another of the same name (a StatefulSet's next pod has it, D-47).

use serde_json::json;

use super::verdict::{Cause, LABEL, Stranded};
use crate::kube::types::{DeleteOptions, Preconditions};
use crate::kube::{Client, Error};

/// What the API server says with 429 where a budget speaks; its own overload has that
/// code, too.
const BUDGET: &str = "disruption budget";

/// What became of a deletion.
#[derive(Debug, PartialEq, Eq)]
pub enum Removal {
    Deleted,
    /// A disruption budget wants the pod to stay; the API server's words.
    Refused(String),
}

/// Evicts the pod, so that disruption budgets count, or deletes it where evictions are
/// not ours to make (upstream's chart). 409: the pod is no longer the one judged.
pub fn remove(client: &Client, pod: &Stranded) -> Result<Removal, Error> {
    let options = DeleteOptions {
        // What never started has nothing to end in an orderly way.
        grace_period_seconds: (pod.cause == Cause::Validator).then_some(0),
        preconditions: Preconditions {
            uid: pod.uid.clone(),
            resource_version: pod.version.clone(),
        },
    };
    let path = path(pod);
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": options,
    });
    match client.post(&format!("{path}/eviction"), &eviction) {
        Ok(()) => Ok(Removal::Deleted),
        Err(Error::Status {
            code: 429, message, ..
        }) if message.contains(BUDGET) => Ok(Removal::Refused(message)),
        Err(error) if matches!(error.code(), Some(403..=405)) => {
            client.delete(&path, &options).map(|()| Removal::Deleted)
        }
        Err(error) => Err(error),
    }
}

/// Puts [`LABEL`] on the pod.
pub fn label(client: &Client, pod: &Stranded) -> Result<(), Error> {
    let patch = json!({"metadata": {
        "uid": pod.uid,
        "resourceVersion": pod.version,
        "labels": {LABEL: "true"},
    }});
    client.merge_patch(&path(pod), &patch)
}

/// The pod's path in the API.
pub fn path(pod: &Stranded) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}
