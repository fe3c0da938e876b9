//! The repair mode `delete`: evicts or deletes exactly the pod that was found.
//!
//! The preconditions are the pod's UID and resourceVersion. So a pod that has changed is never
//! deleted, nor another pod of the same name, such as the next pod of a StatefulSet.

use serde_json::{Value, json};

use super::eviction_response::{EvictionResponse, eviction_response};
use super::not_repaired::{NotRepaired, Retry};
use crate::kube::{Client, Error};
use crate::repair::find::stranded::{FoundBy, FoundPod};
use crate::repair::turn::attempts::EVICTION_RETRY;

const NOT_PERMITTED: &str = "the repair controller has no permission to evict pods, and deletes no \
                             running pod without an eviction; permit create on pods/eviction, or \
                             set repairController.mode=in-place";

/// Evicts the pod, so that disruption budgets and admission can reject that. No rejection leads to
/// a deletion. Without permission to create evictions, as with the RBAC rules of upstream's chart,
/// a pod with a failed validator, whose containers never started, is deleted, as upstream's
/// controller does.
///
/// The chart's admission policy compares the UID in the preconditions with those of the node's
/// pods.
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

/// Returns the preconditions of a deletion or eviction, and the grace period if it is not the
/// pod's.
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

/// Deletes the pod. Any rejection is tried again: no budget protects a deletion.
fn delete(client: &Client, pod: &FoundPod, options: &Value) -> Result<(), NotRepaired> {
    client.delete(&pod.api_path(), options).map_err(unneeded_or_failed)
}

/// Returns the result of a request that failed because of the pod's state, or for another reason.
fn unneeded_or_failed(error: Error) -> NotRepaired {
    match eviction_response(&error) {
        EvictionResponse::Gone => NotRepaired::Unneeded("Pod is gone"),
        // The watch delivers the change as an event.
        EvictionResponse::Changed => NotRepaired::Unneeded(
            "Pod has changed; its next event or the next audit finds it again",
        ),
        EvictionResponse::NoPermission
        | EvictionResponse::Refused(_)
        | EvictionResponse::Failed => NotRepaired::Request(error),
    }
}
