//! Publishes Kubernetes Events, for the agent and the repair controller.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{Client, Error};

// Limits of the API, in bytes:
// https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/validation/events.go
const NAME_LIMIT: usize = 253;
const INSTANCE_LIMIT: usize = 128;
const NOTE_LIMIT: usize = 1024;

/// The program that publishes an Event.
#[derive(Clone, Copy, Debug)]
pub struct Reporter<'a> {
    pub controller: &'static str,
    pub instance: &'a str,
}

/// The object that an Event is about.
#[derive(Clone, Copy, Debug)]
pub struct Regarding<'a> {
    pub kind: &'static str,
    /// Empty for a cluster-scoped object.
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

impl<'a> Regarding<'a> {
    /// Returns a reference to a node. Its UID is the node's name, because `kubectl describe node`
    /// looks for Events with this UID, which is also that of the kubelet's Events.
    pub fn node(name: &'a str) -> Self {
        Regarding { kind: "Node", namespace: "", name, uid: name }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventContent {
    pub kind: EventType,
    /// Why the Event happened, as one CamelCase word for programs.
    pub reason: &'static str,
    /// What the reporter did, as one CamelCase word for programs.
    pub action: &'static str,
    /// Text for people, cut at the API's limit.
    pub note: String,
}

/// Publishes an Event. The API server deletes it after an hour, unless configured otherwise. Needs
/// the right to `create` `events` in the group `events.k8s.io`.
pub fn publish(
    client: &Client,
    reporter: Reporter<'_>,
    regarding: Regarding<'_>,
    content: &EventContent,
) -> Result<(), Error> {
    publish_dated(client, reporter, regarding, content, SystemTime::now())
}

/// Like [`publish`], for an Event that happened at `date`.
pub fn publish_dated(
    client: &Client,
    reporter: Reporter<'_>,
    regarding: Regarding<'_>,
    content: &EventContent,
    date: SystemTime,
) -> Result<(), Error> {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", event_namespace(regarding));
    let event = event_object(reporter, regarding, content, date);
    client.post(&path, &event)
}

/// Returns whether the API server rejects only this Event and may accept others. It does so if the
/// pod or namespace of the Event is gone or being deleted, if the name of the Event is in use
/// (409), or if the Event is invalid (400, 422). The response of a proxy in front of the API server
/// says nothing about the Event.
pub fn is_rejected(error: &Error) -> bool {
    if !error.is_kubernetes_status() {
        return false;
    }
    match error.code() {
        // In a namespace that is being deleted, new objects are rejected with a 403 even if the
        // account may create Events. Any other 403 may end: a missing permission, or the decision
        // of a ResourceQuota or an admission webhook.
        Some(403) => error.to_string().contains("being terminated"),
        Some(401 | 408 | 429) => false,
        Some(400..=499) => true,
        _ => false,
    }
}

/// Returns the Event as the API expects it.
fn event_object(
    reporter: Reporter<'_>,
    regarding: Regarding<'_>,
    content: &EventContent,
    now: SystemTime,
) -> Value {
    let nanos = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let suffix = format!("{nanos:x}");
    let prefix =
        truncate(regarding.name, NAME_LIMIT - 1 - suffix.len()).trim_end_matches(['-', '.']);
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("{prefix}.{suffix}"), "namespace": event_namespace(regarding)},
        "eventTime": humantime::format_rfc3339_micros(now).to_string(),
        "type": format!("{:?}", content.kind),
        "reason": content.reason,
        "action": content.action,
        "note": truncate(&content.note, NOTE_LIMIT),
        "regarding": {
            "apiVersion": "v1",
            "kind": regarding.kind,
            "namespace": regarding.namespace,
            "name": regarding.name,
            "uid": regarding.uid,
        },
        "reportingController": reporter.controller,
        "reportingInstance": truncate(reporter.instance, INSTANCE_LIMIT),
    })
}

/// Returns the namespace of an Event. Kubernetes keeps Events about cluster-scoped objects, such as
/// nodes, in the namespace `default`.
fn event_namespace<'a>(regarding: Regarding<'a>) -> &'a str {
    if regarding.namespace.is_empty() { "default" } else { regarding.namespace }
}

/// Returns the start of a text, at most `length` bytes.
fn truncate(text: &str, length: usize) -> &str {
    &text[..text.floor_char_boundary(length)]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn reporter(instance: &str) -> Reporter<'_> {
        Reporter { controller: "linkerd-cni-repair-controller", instance }
    }

    fn pod(name: &str) -> Regarding<'_> {
        Regarding { kind: "Pod", namespace: "emojivoto", name, uid: "u-1" }
    }

    fn content(note: &str) -> EventContent {
        EventContent {
            kind: EventType::Normal,
            reason: "LinkerdCNINotConfigured",
            action: "Deleting",
            note: note.into(),
        }
    }

    #[test]
    fn an_event_names_object_reason_and_reporter() {
        let now = UNIX_EPOCH + Duration::from_micros(1_767_225_600_000_042);
        let content = content("Deleting pod to create a new one with proper CNI config");
        let event = event_object(reporter("linkerd-cni-x"), pod("web-1"), &content, now);
        insta::assert_snapshot!(format!("{event:#}"));
    }

    #[test]
    fn event_texts_are_truncated_to_the_limits_of_the_api() {
        let long_name = "a-".repeat(126);
        let content = content(&"ü".repeat(900));
        let instance = "b".repeat(253);
        let event = event_object(reporter(&instance), pod(&long_name), &content, SystemTime::now());
        let name = event["metadata"]["name"].as_str().unwrap();
        assert!(name.len() <= NAME_LIMIT && !name.contains("-."), "{name}");
        assert_eq!(event["reportingInstance"], "b".repeat(INSTANCE_LIMIT));
        assert_eq!(event["note"], "ü".repeat(NOTE_LIMIT / 2));
    }

    #[test]
    fn event_on_a_node_is_in_the_default_namespace() {
        let node = Regarding::node("node-1");
        let event = event_object(reporter("x"), node, &content("y"), SystemTime::now());
        assert_eq!(event["metadata"]["namespace"], "default");
        assert_eq!(event["regarding"]["namespace"], "");
    }
}
