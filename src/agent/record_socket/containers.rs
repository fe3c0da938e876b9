//! Makes Events about containers that the redirect rules treat in a way that their author may not
//! expect. Pure.
//!
//! - Init containers that start before the proxy: the rules apply from the start of the pod, so each
//!   redirected connection is refused until the proxy listens.
//! - Containers that run as the proxy's user: the rules exempt that user, so their connections bypass
//!   the proxy.

use super::pod_event;
use crate::agent::api::event_queue::PodEvent;
use crate::kube::event::{EventContent, EventType};
use crate::record::{CallResult, Command, Record};

/// Number of containers that a note names. The API accepts a note of at most 1,024 bytes, and the
/// name of a container has at most 63.
const NAMED: usize = 5;

/// Returns the Events on the record's pod, if it was redirected and has such containers.
pub fn pod_events(record: &Record) -> impl Iterator<Item = PodEvent> {
    let is_redirected = record.command == Command::Add && record.result == CallResult::Redirected;
    let event = |names: &[String], content: fn(String) -> EventContent, subject| {
        let is_needed = is_redirected && !names.is_empty();
        is_needed.then(|| pod_event::new(record, subject, content(listed(names)))).flatten()
    };
    let blocked = event(&record.blocked_init_containers, without_network, "init containers");
    let exempt = event(&record.exempt_containers, exempt, "containers with the proxy's user");
    [blocked, exempt].into_iter().flatten()
}

fn listed(names: &[String]) -> String {
    let named = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn without_network(names: String) -> EventContent {
    EventContent {
        kind: EventType::Normal,
        reason: "LinkerdCNIInitWithoutNetwork",
        action: "Redirecting",
        note: format!(
            "Init containers that start before the proxy: {names}. Their outbound TCP connections are redirected to the proxy and refused, as it does not run yet. If they need the network, run the proxy as a native sidecar (config.linkerd.io/proxy-enable-native-sidecar: true), run them with the proxy's UID, or skip their ports (config.linkerd.io/skip-outbound-ports)."
        ),
    }
}

fn exempt(names: String) -> EventContent {
    EventContent {
        kind: EventType::Warning,
        reason: "LinkerdCNIProxyUserShared",
        action: "Redirecting",
        note: format!(
            "Containers that run as the proxy's user: {names}. Their outbound connections bypass the proxy, without mTLS and policy. Set another runAsUser or runAsGroup for them or for the pod, and delete the pod. With the chart's strictProxyUser such a pod does not start."
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample::record;
    use super::*;

    fn event(command: &str, decision: &str, names: &[&str]) -> Option<PodEvent> {
        only("blocked_init_containers", command, decision, names)
    }

    fn only(key: &str, command: &str, decision: &str, names: &[&str]) -> Option<PodEvent> {
        let record = record(json!({"command": command, "decision": decision, key: names}));
        let mut events = pod_events(&record);
        let first = events.next();
        assert_eq!(events.next(), None);
        first
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
    fn a_container_with_the_proxys_user_gets_a_warning_with_the_remedy() {
        let event =
            |command, names: &[&str]| only("exempt_containers", command, "redirected", names);
        let long = "n".repeat(63);
        let content = event("ADD", &[long.as_str(); 7]).unwrap().content;
        assert_eq!(content.reason, "LinkerdCNIProxyUserShared");
        assert_eq!(content.kind, EventType::Warning);
        assert!(content.note.contains(&format!("{long} and 2 more. ")), "{}", content.note);
        assert!(content.note.contains("runAsUser") && content.note.len() < 1024);
        assert_eq!(event("CHECK", &["app"]), None);
        assert_eq!(event("ADD", &[]), None);
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
