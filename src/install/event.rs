//! Events on the agent's own pod.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::api::{self, USER_AGENT, claims::Claims};
use super::environment::Settings;

/// An events.k8s.io/v1 Event of type Warning; none where the agent is told of no pod.
/// The pod's UID, by which `kubectl describe` finds it, is in the agent's own token.
pub fn warning(settings: &Settings, reason: &str, action: &str, note: &str) -> Option<Value> {
    let pod = settings.pod.as_deref()?;
    let namespace = api::namespace(settings)?;
    let token = fs::read_to_string(settings.service_account_dir.join("token"));
    let claims = Claims::read(&token.unwrap_or_default()).unwrap_or_default();
    let now = SystemTime::now();
    let nanos = now
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    Some(json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("{pod}.{nanos:x}"), "namespace": namespace},
        "eventTime": humantime::format_rfc3339_micros(now).to_string(),
        "type": "Warning",
        "reason": reason,
        "action": action,
        "note": note,
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": namespace,
            "name": pod,
            "uid": claims.kubernetes.pod.uid,
        },
        "reportingController": USER_AGENT,
        "reportingInstance": pod.get(..128).unwrap_or(pod),
    }))
}
