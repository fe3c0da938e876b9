//! The repair mode `delete`: evicts or deletes exactly the pod that was found.
//!
//! Each request has the pod's UID and resourceVersion as preconditions. So the API server deletes
//! neither a pod that has changed since it was found, nor another pod of the same name, such as the
//! next pod of a StatefulSet.

use serde_json::{Value, json};

use super::eviction_response::{EvictionResponse, eviction_response};
use super::not_repaired::{NotRepaired, Retry};
use crate::kube::{Client, Error};
use crate::repair::find::stranded::{FoundBy, FoundPod};
use crate::repair::turn::attempts::EVICTION_RETRY;

const NOT_PERMITTED: &str = "the repair controller has no permission to evict pods, and deletes no \
                             running pod without an eviction; permit create on pods/eviction, or \
                             set repairController.mode=in-place";

/// Evicts the pod, so that disruption budgets and admission can reject the eviction. A rejected
/// eviction is never followed by a deletion.
///
/// A missing permission to create evictions, as with the RBAC rules of upstream's chart, is no such
/// rejection. Then a pod whose validator failed is deleted, as upstream's controller does: its
/// containers never started. A pod that an audit found is running, and is left unchanged.
///
/// The preconditions must name the UID, because the chart's admission policy compares this UID with
/// the UIDs of the node's pods.
pub fn evict_or_delete(client: &Client, pod: &FoundPod) -> Result<(), NotRepaired> {
    let options = delete_options(pod);
    let Err(error) = evict(client, pod, &options) else { return Ok(()) };
    match eviction_response(&error) {
        EvictionResponse::Refused(why) => Err(NotRepaired::skip(why, Retry::After(EVICTION_RETRY))),
        EvictionResponse::NoPermission => match pod.found_by {
            FoundBy::Validator => delete(client, pod, &options),
            FoundBy::Audit => Err(NotRepaired::skip(NOT_PERMITTED, Retry::After(EVICTION_RETRY))),
        },
        EvictionResponse::Gone | EvictionResponse::Changed | EvictionResponse::Failed => {
            Err(unneeded_or_failed(error))
        }
    }
}

/// Returns the options of an eviction or deletion: the preconditions, and a grace period if the
/// pod's own does not apply.
fn delete_options(pod: &FoundPod) -> Value {
    let mut options =
        json!({"preconditions": {"uid": pod.uid, "resourceVersion": pod.resource_version}});
    // The containers of a pod with a failed validator never started, so there is nothing to shut
    // down.
    if pod.found_by == FoundBy::Validator {
        options["gracePeriodSeconds"] = json!(0);
    }
    options
}

fn evict(client: &Client, pod: &FoundPod, options: &Value) -> Result<(), Error> {
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": options,
    });
    client.post(&format!("{}/eviction", pod.api_path()), &eviction)
}

/// Deletes the pod. A rejected deletion is retried like a failed request: disruption budgets
/// protect pods from evictions only, so the rejection is not the decision of a budget.
fn delete(client: &Client, pod: &FoundPod, options: &Value) -> Result<(), NotRepaired> {
    client.delete(&pod.api_path(), options).map_err(unneeded_or_failed)
}

/// Returns why a failed eviction or deletion did not repair the pod: the pod is gone or has
/// changed, so that no request is needed, or the request failed for another reason.
fn unneeded_or_failed(error: Error) -> NotRepaired {
    match eviction_response(&error) {
        EvictionResponse::Gone => NotRepaired::Unneeded("Pod is gone"),
        // The watch delivers the changed pod as an event, which queues the pod again if needed.
        EvictionResponse::Changed => NotRepaired::Unneeded(
            "Pod has changed; its next event or the next audit finds it again",
        ),
        EvictionResponse::NoPermission
        | EvictionResponse::Refused(_)
        | EvictionResponse::Failed => NotRepaired::Request(error),
    }
}
