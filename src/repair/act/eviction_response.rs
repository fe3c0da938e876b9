//! Classifies the API server's responses to failed evictions. Pure.
//!
//! `evictions.yaml` lists the responses, with the places in the API server's source that send them.

use crate::kube::{CONFLICT, Error, NOT_FOUND};

/// Part of the message when a disruption budget rejects an eviction. The status code 429 does not
/// show that, because an overloaded API server responds with 429, too.
const DISRUPTION_BUDGET: &str = "disruption budget";

/// Part of the message of status 500, if several disruption budgets select the pod.
const SEVERAL_BUDGETS: &str = "more than one PodDisruptionBudget";

/// Part of the message of a status 404 or 409 that is about a disruption budget, not about the pod.
const BUDGETS: &str = "poddisruptionbudget";

/// Start of the message when an admission webhook rejects a request, with any status code that the
/// webhook chooses.
const WEBHOOK: &str = "admission webhook ";

/// Part of the message when an admission policy rejects a request, with one of several status codes,
/// 401 among them.
const ADMISSION_POLICY: &str = "ValidatingAdmissionPolicy '";

/// Start of the text after `pods "NAME" is forbidden: ` if the account has no permission, whichever
/// authorizer the cluster uses.
const NO_PERMISSION: &str = "User ";

#[derive(Debug, PartialEq, Eq)]
pub enum EvictionResponse {
    /// The pod does not exist any more.
    Gone,
    /// The pod has changed since it was found, or another pod has its name now.
    Changed,
    /// The account may not create evictions.
    NoPermission,
    /// A disruption budget, admission or the API server itself rejects the eviction, for this
    /// reason. Only an operator's change or time removes the reason, so the pod is reported at
    /// once.
    Refused(String),
    /// There was no response, or one that says nothing about the pod, such as that of an overloaded
    /// API server.
    Failed,
}

pub fn eviction_response(error: &Error) -> EvictionResponse {
    let Error::Status { code, message, .. } = error else { return EvictionResponse::Failed };
    if let Some(refusal) = refusal_by_policy(message) {
        return EvictionResponse::Refused(refusal);
    }
    if !error.is_kubernetes_status() {
        // A proxy in front of the API server responded, which says nothing about the pod.
        return EvictionResponse::Failed;
    }
    // An eviction also reads and writes the disruption budget, which other clients change and
    // delete. So a 404 or 409 may be about the budget, and then says nothing about the pod.
    let is_about_pod = !message.contains(BUDGETS);
    if is_about_pod && error.is_status(404, NOT_FOUND) {
        return EvictionResponse::Gone;
    }
    if is_about_pod && error.is_status(409, CONFLICT) {
        return EvictionResponse::Changed;
    }
    if *code == 403 && lacks_permission(message) {
        return EvictionResponse::NoPermission;
    }
    match code {
        // A 404 or 409 that gets here is about a budget.
        401 | 404 | 408 | 409 | 429 => EvictionResponse::Failed,
        400..=499 => EvictionResponse::Refused(message.clone()),
        _ => EvictionResponse::Failed,
    }
}

/// Returns why a disruption budget or admission rejects the eviction. `None` if the message is not
/// theirs. The message decides, because they respond with several status codes.
fn refusal_by_policy(message: &str) -> Option<String> {
    if message.contains(SEVERAL_BUDGETS) {
        let remedy = "leave one PodDisruptionBudget that selects the pod";
        return Some(format!("{}; {remedy}", message.trim_end_matches('.')));
    }
    let is_of_budget = message.contains(DISRUPTION_BUDGET);
    let is_of_admission = message.starts_with(WEBHOOK) || message.contains(ADMISSION_POLICY);
    if is_of_budget || is_of_admission {
        return Some(message.to_owned());
    }
    None
}

/// Whether the message of a 403 says that the account has no permission, such as `pods "web-1" is
/// forbidden: User "x" cannot create resource "pods/eviction"`.
fn lacks_permission(message: &str) -> bool {
    let Some(name_and_reason) = message.strip_prefix("pods \"") else { return false };
    let Some((_, reason)) = name_and_reason.split_once("\" is forbidden: ") else { return false };
    reason.starts_with(NO_PERMISSION)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use testkit::table::rows;

    use super::*;

    #[derive(Deserialize)]
    struct Row {
        code: u16,
        reason: Option<String>,
        message: String,
        then: String,
    }

    #[test]
    fn each_response_of_the_eviction_api_says_what_to_do_next() {
        for (name, row) in rows::<Row>(include_str!("evictions.yaml")) {
            let Row { code, reason, message, then } = row;
            let request = "POST eviction".to_owned();
            let error = Error::Status {
                request,
                code,
                reason,
                message: message.clone(),
                retry_after: None,
            };
            let next = match eviction_response(&error) {
                EvictionResponse::Gone | EvictionResponse::Changed => "nothing",
                EvictionResponse::NoPermission => "delete",
                EvictionResponse::Failed => "retry",
                EvictionResponse::Refused(why) => {
                    assert!(why.starts_with(message.trim_end_matches('.')), "{name}: {why}");
                    "report"
                }
            };
            assert_eq!(next, then, "{name}");
        }
        let no_response =
            Error::Decode { request: String::new(), problem: String::new(), is_truncated: true };
        assert_eq!(eviction_response(&no_response), EvictionResponse::Failed);
    }
}
