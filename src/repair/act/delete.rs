//! The repair mode `delete`: evicts or deletes exactly the pod that was found.
//!
//! The preconditions are the pod's UID and resourceVersion. So a pod that has changed is never
//! deleted, nor another pod of the same name, such as the next pod of a StatefulSet.

use serde_json::{Value, json};

use super::not_repaired::{NotRepaired, Retry};
use crate::kube::{Client, Error};
use crate::repair::find::stranded::{FoundBy, FoundPod};
use crate::repair::turn::attempts::EVICTION_RETRY;

/// Part of the API server's message when a disruption budget rejects an eviction. The status
/// code alone is ambiguous: an overloaded API server sends 429, too.
const DISRUPTION_BUDGET: &str = "disruption budget";

/// Start of the API server's message when an admission webhook rejects a request, with any status
/// code that the webhook chooses.
const WEBHOOK: &str = "admission webhook ";

/// What follows `pods "NAME" is forbidden: ` if the account has no permission, whatever the
/// cluster's authorizer.
const NO_PERMISSION: &str = "User ";

const NOT_PERMITTED: &str = "the repair controller has no permission to evict pods, and deletes no \
                             running pod without an eviction; permit create on pods/eviction, or \
                             set repairController.mode=in-place";

/// Why the API server does not evict a pod.
enum Rejection {
    /// The account may not create evictions.
    NoPermission,
    /// A disruption budget, admission or the API server itself rejects the eviction, with this
    /// message.
    Refused(String),
}

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
    match rejection(&error) {
        None => Err(failure(error)),
        Some(Rejection::Refused(message)) => {
            Err(NotRepaired::skip(message, Retry::After(EVICTION_RETRY)))
        }
        Some(Rejection::NoPermission) => match pod.found_by {
            FoundBy::Validator => delete(client, pod, &options).map_err(failure),
            FoundBy::Audit => Err(NotRepaired::skip(NOT_PERMITTED, Retry::After(EVICTION_RETRY))),
        },
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

fn delete(client: &Client, pod: &FoundPod, options: &Value) -> Result<(), Error> {
    client.delete(&pod.api_path(), options)
}

/// Returns how the API server rejected an eviction; `None` for a failed request, a pod that was
/// deleted or has changed, and an overloaded API server.
fn rejection(error: &Error) -> Option<Rejection> {
    let Error::Status { code, message, .. } = error else { return None };
    let is_rejection = match code {
        401 | 404 | 408 | 409 => false,
        400..=499 if *code != 429 => true,
        _ => message.contains(DISRUPTION_BUDGET) || message.starts_with(WEBHOOK),
    };
    if !is_rejection {
        None
    } else if lacks_permission(message) {
        Some(Rejection::NoPermission)
    } else {
        Some(Rejection::Refused(message.clone()))
    }
}

fn lacks_permission(message: &str) -> bool {
    match message.strip_prefix("pods \"").and_then(|rest| rest.split_once("\" is forbidden: ")) {
        Some((_, why)) => why.starts_with(NO_PERMISSION),
        None => false,
    }
}

/// Returns the result of a request that failed because of the pod's state, or for another reason.
fn failure(error: Error) -> NotRepaired {
    match error.code() {
        Some(404) => NotRepaired::Unneeded("Pod is gone"),
        // The watch delivers the change as an event.
        Some(409) => NotRepaired::Unneeded(
            "Pod has changed; its next event or the next audit finds it again",
        ),
        _ => NotRepaired::Request(error),
    }
}
