//! Events of a namespace.

use serde_json::Value;

use super::api;

/// Returns the Events with this reason.
pub fn list(namespace: &str, reason: &str) -> Vec<Value> {
    api::list(&format!("/api/v1/namespaces/{namespace}/events?fieldSelector=reason={reason}"))
}

/// Returns the messages of the Events with this reason, one a line.
pub fn messages(namespace: &str, reason: &str) -> String {
    let events = list(namespace, reason);
    let messages: Vec<&str> = events.iter().filter_map(|event| event["message"].as_str()).collect();
    messages.join("\n")
}
