//! Reads the fields of API objects for which [`crate::kube`] has no type.

use serde::Deserialize;
use serde_json::Value;

use crate::kube::types::{ListMetadata, null_as_default};

/// Name of the agent's container, in both charts.
pub const AGENT_CONTAINER: &str = "install-cni";

#[derive(Deserialize)]
pub struct List<T> {
    #[serde(default)]
    pub metadata: ListMetadata,
    /// An object without this field is no list.
    #[serde(deserialize_with = "null_as_default", bound(deserialize = "T: Deserialize<'de>"))]
    pub items: Vec<T>,
}

/// Returns the text of a field; empty if the field is missing or `null`.
pub fn text(field: &Value) -> &str {
    field.as_str().unwrap_or_default()
}

/// Returns the items of a list; no items if the field is not a list.
pub fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns the item of a list that has this name, or null if no item has the name.
fn item_by_name<'l>(list: &'l Value, name: &str) -> &'l Value {
    items(list).find(|item| item["name"] == name).unwrap_or(&Value::Null)
}

/// Returns the spec of the DaemonSet's pods.
pub fn pod_spec(daemonset: &Value) -> &Value {
    &daemonset["spec"]["template"]["spec"]
}

/// Returns the agent's container in the spec of a pod.
pub fn agent_container(spec: &Value) -> &Value {
    item_by_name(&spec["containers"], AGENT_CONTAINER)
}

/// Returns an environment variable of the agents of a DaemonSet.
pub fn agent_variable<'d>(daemonset: &'d Value, name: &str) -> Option<&'d str> {
    container_variable(pod_spec(daemonset), AGENT_CONTAINER, name)
}

/// Returns an environment variable of a container in the spec of a pod.
pub fn container_variable<'s>(spec: &'s Value, container: &str, name: &str) -> Option<&'s str> {
    let container = item_by_name(&spec["containers"], container);
    item_by_name(&container["env"], name)["value"].as_str()
}

/// Returns the agent's port of `/status` in the spec of a pod. `None` for upstream's agent.
pub fn admin_port(spec: &Value) -> Option<u64> {
    item_by_name(&agent_container(spec)["ports"], "install-admin")["containerPort"].as_u64()
}

/// Returns the condition of this kind in an object's status if the condition has this value.
pub fn find_condition<'s>(status: &'s Value, kind: &str, value: &str) -> Option<&'s Value> {
    items(&status["conditions"])
        .find(|condition| condition["type"] == kind && condition["status"] == value)
}

/// Returns the time of the newest occurrence of an Event, RFC 3339.
pub fn event_time(event: &Value) -> &str {
    let last_timestamp = text(&event["lastTimestamp"]);
    if last_timestamp.is_empty() { text(&event["eventTime"]) } else { last_timestamp }
}

/// Returns reason and message of an Event.
pub fn event_text(event: &Value) -> String {
    format!("{}: {}", text(&event["reason"]), text(&event["message"]))
}
