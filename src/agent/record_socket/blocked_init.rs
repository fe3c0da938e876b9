//! Makes Events about init containers that start before the proxy. Pure.
//!
//! The redirect rules apply from the start of the pod. Until the proxy listens, each redirected
//! connection is refused.

use super::pod_event;
use crate::agent::api::pod_event_queue::PodEvent;
use crate::kube::event::{EventContent, EventType};
use crate::record::{CallResult, Command, Record};

/// Number of containers that the note names. The API accepts a note of at most 1,024 bytes, and the
/// name of a container has at most 63.
const NAMED: usize = 5;

/// Returns the Event on the record's pod, if it was redirected and has such init containers.
pub fn pod_event(record: &Record) -> Option<PodEvent> {
    let names = &record.blocked_init_containers;
    let is_redirected = record.command == Command::Add && record.result == CallResult::Redirected;
    if !is_redirected || names.is_empty() {
        return None;
    }
    let mut text = names[..names.len().min(NAMED)].join(", ");
    if names.len() > NAMED {
        text.push_str(&format!(" and {} more", names.len() - NAMED));
    }
    let content = EventContent {
        kind: EventType::Normal,
        reason: "LinkerdCNIInitWithoutNetwork",
        action: "Redirecting",
        note: format!(
            "Init containers that start before the proxy: {text}. Their outbound TCP connections are redirected to the proxy and refused, as it does not run yet. If they need the network, run the proxy as a native sidecar (config.linkerd.io/proxy-enable-native-sidecar: true), run them with the proxy's UID, or skip their ports (config.linkerd.io/skip-outbound-ports)."
        ),
    };
    pod_event::new(record, "init containers", content)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample::record;
    use super::*;

    fn event(command: &str, decision: &str, names: &[&str]) -> Option<PodEvent> {
        pod_event(&record(json!({
            "level": "info", "command": command, "decision": decision, "blocked_init_containers": names,
        })))
    }

    #[test]
    fn an_event_names_the_first_init_containers_and_the_remedies() {
        let long = "n".repeat(63);
        let note = event("ADD", "redirected", &[long.as_str(); 7]).unwrap().content.note;
        assert!(note.contains(&format!("{long} and 2 more. ")), "{note}");
        assert!(note.len() < 1024, "{}", note.len());
        for remedy in ["native sidecar", "UID", "skip-outbound-ports"] {
            assert!(note.contains(remedy), "{note}");
        }
    }

    #[test]
    fn only_a_redirected_pod_with_such_init_containers_gets_an_event() {
        assert_eq!(event("ADD", "redirected", &[]), None);
        assert_eq!(event("ADD", "simulated", &["a"]), None);
        assert_eq!(event("CHECK", "checked", &["a"]), None);
        // The names come from outside.
        assert_eq!(event("ADD", "redirected", &["Not a name"]), None);
    }
}
