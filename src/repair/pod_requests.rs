//! Requests that delete or label exactly the pod that was found: never a changed pod, and
//! never another pod of the same name, such as the next pod of a StatefulSet.

use serde_json::json;

use super::api_path::pod_path;
use super::verdict::{Cause, LABEL, StrandedPod};
use crate::kube::types::{DeleteOptions, Preconditions};
use crate::kube::{Client, Error};

/// Part of the API server's message when a disruption budget refuses an eviction. Needed
/// because the status code 429 may also mean that the API server is overloaded.
const DISRUPTION_BUDGET: &str = "disruption budget";

/// Effect of a repair on the pod.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    Applied,
    /// A disruption budget refused the eviction; the API server's message.
    RefusedByDisruptionBudget(String),
}

/// Evicts the pod, so that disruption budgets are respected. Deletes the pod where
/// evictions are not allowed, as with the RBAC rules of upstream's chart.
///
/// Status 409: the pod has changed, or is another pod of the same name.
pub fn remove(client: &Client, pod: &StrandedPod) -> Result<Effect, Error> {
    let options = DeleteOptions {
        // The containers of a pod with a failed validator never started, so there is
        // nothing to shut down.
        grace_period_seconds: (pod.cause == Cause::Validator).then_some(0),
        preconditions: Preconditions {
            uid: pod.uid.clone(),
            resource_version: pod.resource_version.clone(),
        },
    };
    let path = pod_path(pod);
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": options,
    });
    match client.post(&format!("{path}/eviction"), &eviction) {
        Ok(()) => Ok(Effect::Applied),
        Err(Error::Status { code: 429, message, .. }) if message.contains(DISRUPTION_BUDGET) => {
            Ok(Effect::RefusedByDisruptionBudget(message))
        }
        Err(error) if matches!(error.code(), Some(403..=405)) => {
            client.delete(&path, &options).map(|()| Effect::Applied)
        }
        Err(error) => Err(error),
    }
}

/// Sets [`LABEL`] on the pod. Status 409: as with [`remove`].
pub fn label(client: &Client, pod: &StrandedPod) -> Result<(), Error> {
    let patch = json!({"metadata": {
        "uid": pod.uid,
        "resourceVersion": pod.resource_version,
        "labels": {LABEL: "true"},
    }});
    client.merge_patch(&pod_path(pod), &patch)
}
