//! The Event that tells a pod's owner why the pod was deleted. Pure.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::verdict::Stranded;

/// Who reports; also the user agent.
pub const CONTROLLER: &str = "linkerd-cni-repair-controller";

/// Limits of the API: a name, and `reportingInstance`.
const NAME: usize = 253;
const INSTANCE: usize = 128;

/// An events.k8s.io/v1 Event on the deleted `pod`, reported by the pod `controller`.
pub fn deleted(pod: &Stranded, controller: &str, now: SystemTime) -> Value {
    let nanos = now
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    let suffix = format!(".{nanos:x}");
    let prefix = shorten(&pod.name, NAME - suffix.len()).trim_end_matches(['-', '.']);
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("{prefix}{suffix}"), "namespace": pod.namespace},
        "eventTime": humantime::format_rfc3339_micros(now).to_string(),
        "type": "Normal",
        "reason": "LinkerdCNINotConfigured",
        "action": "Deleting",
        "note": "Deleting pod to create a new one with proper CNI config",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "reportingController": CONTROLLER,
        "reportingInstance": shorten(controller, INSTANCE),
    })
}

/// Names are ASCII, so that bytes are characters; other text stays whole.
fn shorten(text: &str, length: usize) -> &str {
    text.get(..length).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pod(name: &str) -> Stranded {
        Stranded {
            namespace: "emojivoto".into(),
            name: name.into(),
            uid: "u-1".into(),
            owner: "o-1".into(),
            created: "2026-01-01T00:00:00Z".into(),
        }
    }

    #[test]
    fn the_event_names_pod_reason_and_reporter() {
        let now = UNIX_EPOCH + Duration::from_micros(1_767_225_600_000_042);
        let event = deleted(&pod("web-1"), "linkerd-cni-x", now);
        insta::assert_snapshot!(format!("{event:#}"), @r#"
        {
          "apiVersion": "events.k8s.io/v1",
          "kind": "Event",
          "metadata": {
            "name": "web-1.18867251edfaa410",
            "namespace": "emojivoto"
          },
          "eventTime": "2026-01-01T00:00:00.000042Z",
          "type": "Normal",
          "reason": "LinkerdCNINotConfigured",
          "action": "Deleting",
          "note": "Deleting pod to create a new one with proper CNI config",
          "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "emojivoto",
            "name": "web-1",
            "uid": "u-1"
          },
          "reportingController": "linkerd-cni-repair-controller",
          "reportingInstance": "linkerd-cni-x"
        }
        "#);
    }

    #[test]
    fn the_longest_pod_name_still_makes_a_valid_event() {
        let event = deleted(&pod(&"a-".repeat(126)), &"b".repeat(253), SystemTime::now());
        let name = event["metadata"]["name"].as_str().unwrap();
        assert!(name.len() <= NAME && !name.contains("-."), "{name}");
        assert_eq!(event["reportingInstance"], "b".repeat(INSTANCE));
    }
}
