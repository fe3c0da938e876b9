//! Evicts or deletes exactly the pod that was found, by UID and resourceVersion as
//! preconditions: never a changed pod, and never another pod of the same name, such as the
//! next pod of a StatefulSet.

use serde_json::{Value, json};

use super::api_path::pod_path;
use super::stranded_pod::{FoundBy, StrandedPod};
use crate::kube::types::{DeleteOptions, Preconditions};
use crate::kube::{Client, Error};

/// Part of the API server's message when a disruption budget rejects an eviction. The status
/// code alone is ambiguous: an overloaded API server sends 429, too.
const DISRUPTION_BUDGET: &str = "disruption budget";

/// Effect of a repair on the pod.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// The repair mode was applied: here, the API server evicts or deletes the pod.
    Applied,
    /// The API server deletes the pod, after a dry run of the eviction.
    AppliedAfterDryRun,
    /// A disruption budget rejects the eviction. The API server's message.
    RejectedByDisruptionBudget(String),
    /// The pod has no controller that would replace it, so it is not deleted.
    Unmanaged,
}

/// Evicts the pod, so that disruption budgets are respected. Deletes the pod if evictions are not
/// permitted (403), as with the RBAC rules of upstream's chart, or not supported (404, 405).
///
/// The chart's admission policy permits only dry runs of evictions, because an eviction does not
/// name the pod's node. So after a 403 a dry run checks the disruption budgets before the deletion.
///
/// Fails with status 409 if the pod has changed, or is another pod of the same name.
pub fn evict_or_delete(client: &Client, pod: &StrandedPod) -> Result<Effect, Error> {
    let options = DeleteOptions {
        // The containers of a pod with a failed validator never started, so there is
        // nothing to shut down.
        grace_period_seconds: (pod.found_by == FoundBy::Validator).then_some(0),
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
    let is_not_permitted = |error: &Error| matches!(error.code(), Some(403..=405));
    match evict(client, &format!("{path}/eviction"), &eviction) {
        Err(error) if error.code() == Some(403) => {
            match evict(client, &format!("{path}/eviction?dryRun=All"), &eviction) {
                Ok(Effect::Applied) => {
                    return client.delete(&path, &options).map(|()| Effect::AppliedAfterDryRun);
                }
                Err(error) if is_not_permitted(&error) => {}
                rejected => return rejected,
            }
        }
        Err(error) if is_not_permitted(&error) => {}
        result => return result,
    }
    client.delete(&path, &options).map(|()| Effect::Applied)
}

fn evict(client: &Client, path: &str, eviction: &Value) -> Result<Effect, Error> {
    match client.post(path, eviction) {
        Err(Error::Status { code: 429, message, .. }) if message.contains(DISRUPTION_BUDGET) => {
            Ok(Effect::RejectedByDisruptionBudget(message))
        }
        result => result.map(|()| Effect::Applied),
    }
}
