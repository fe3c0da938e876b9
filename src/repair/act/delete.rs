//! The repair mode `delete`: evicts or deletes exactly the pod that was found, by UID and resourceVersion as
//! preconditions: never a changed pod, and never another pod of the same name, such as the
//! next pod of a StatefulSet.

use std::time::Duration;

use serde_json::json;

use super::not_repaired::NotRepaired;
use crate::kube::{Client, Error};
use crate::repair::find::stranded::{FoundBy, FoundPod};

/// Time until a rejected eviction is tried again: a disruption budget may allow it once other pods of the
/// workload are ready.
const RETRY: Duration = Duration::from_secs(60);

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

/// Returns the message of a response that rejects an eviction; `None` for a failed request, a pod that is
/// gone or has changed, and an overloaded API server.
fn rejection(error: &Error) -> Option<&String> {
    let Error::Status { code, message, .. } = error else { return None };
    let is_rejection = match code {
        401 | 404 | 408 | 409 => false,
        400..=499 if *code != 429 => true,
        _ => message.contains(DISRUPTION_BUDGET) || message.starts_with(WEBHOOK),
    };
    is_rejection.then_some(message)
}

fn lacks_permission(message: &str) -> bool {
    let rest =
        message.strip_prefix("pods \"").and_then(|rest| rest.split_once("\" is forbidden: "));
    rest.is_some_and(|(_, why)| why.starts_with(NO_PERMISSION))
}

/// Evicts the pod, so that disruption budgets and admission can reject that. No rejection leads to
/// a deletion. Without permission to create evictions, as with the RBAC rules of upstream's chart, a
/// pod with a failed validator, whose containers never started, is deleted, as upstream's controller
/// does.
///
/// The chart's admission policy compares the UID in the preconditions with those of the node's pods.
/// Fails with status 409 if the pod has changed, or is another pod of the same name.
pub fn evict_or_delete(client: &Client, pod: &FoundPod) -> Result<(), NotRepaired> {
    let mut options =
        json!({"preconditions": {"uid": pod.uid, "resourceVersion": pod.resource_version}});
    // The containers of a pod with a failed validator never started, so there is nothing to shut down.
    if pod.found_by == FoundBy::Validator {
        options["gracePeriodSeconds"] = json!(0);
    }
    let path = pod.api_path();
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": options,
    });
    let result: Result<(), Error> = client.post(&format!("{path}/eviction"), &eviction);
    match result.as_ref().err().and_then(rejection) {
        None => Ok(result?),
        Some(message) if !lacks_permission(message) => {
            Err(NotRepaired::Skipped(message.clone(), RETRY))
        }
        Some(_) if pod.found_by == FoundBy::Validator => Ok(client.delete(&path, &options)?),
        Some(_) => Err(NotRepaired::Skipped(NOT_PERMITTED.to_owned(), RETRY)),
    }
}
