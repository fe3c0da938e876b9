//! Makes Events about pods that the plugin could not redirect, so that they do not start. Pure.
//!
//! The kubelet's own Event quotes the error of the plugin. This Event names cause and remedy in fixed
//! words, one per class of errors: the text in a record may come from any process.

use super::pod_event;
use crate::agent::api::event_queue::PodEvent;
use crate::cni::error::code;
use crate::kube::event::{EventContent, EventType};
use crate::record::{Command, Record};

/// A class of errors: its codes, its name, and a note with cause and remedy.
type Class = (&'static [u32], &'static str, &'static str);

const CLASSES: [Class; 9] = [
    (
        &[code::KUBECONFIG],
        "failed: kubeconfig",
        "the plugin's kubeconfig is missing or invalid. The linkerd-cni agent on the node writes it: check that the agent is ready",
    ),
    (
        &[code::API_UNREACHABLE],
        "failed: API server unreachable",
        "the plugin could not reach the API server from the node. Check the node's network and the certificate of the API server",
    ),
    (
        &[code::API_DENIED],
        "failed: denied",
        "the API server rejected the plugin's token or denied the request. Check that the linkerd-cni agent on the node is ready, and that the plugin's ServiceAccount may get pods and namespaces",
    ),
    (
        &[code::API_RESPONSE],
        "failed: API response",
        "the response of the API server is invalid. Check the API server",
    ),
    (
        &[code::ANNOTATION],
        "failed: annotation",
        "an annotation of the pod or its namespace is invalid. Correct it, and delete the pod",
    ),
    (
        &[code::SHARED_PROXY_USER],
        "failed: proxy user",
        "a container runs as the proxy's user, so its connections would bypass the proxy. Set another runAsUser for the container, and delete the pod",
    ),
    (
        &[code::NO_IPTABLES, code::RULES_FAILED],
        "failed: rules",
        "the redirect rules could not be installed. Check the chart's iptablesMode and the node's nf_tables or iptables",
    ),
    (
        &[code::INVALID_NETNS],
        "failed: netns",
        "the plugin could not enter the pod's network namespace. The container runtime retries the pod",
    ),
    (
        &[
            code::INCOMPATIBLE_VERSION,
            code::INVALID_ENVIRONMENT,
            code::IO_FAILURE,
            code::DECODING_FAILURE,
            code::INVALID_CONFIG,
        ],
        "failed: configuration",
        "the plugin entry in the node's network config or the call of the container runtime is invalid. Check the chart's values and the agent's log",
    ),
];

/// Returns the Event on the record's pod, if its ADD failed. A pod that does not exist was deleted
/// while it started, and needs no Event.
pub fn pod_event(record: &Record) -> Option<PodEvent> {
    let code = record.error.as_ref().filter(|_| record.command == Command::Add)?.code;
    if code == code::POD_NOT_FOUND {
        return None;
    }
    let known = CLASSES.iter().find(|(codes, ..)| codes.contains(&code));
    let (subject, cause) = known.map_or(
        ("failed: other", "the plugin failed. See the agent's log"),
        |(_, subject, cause)| (subject, cause),
    );
    let content = EventContent {
        kind: EventType::Warning,
        reason: "LinkerdCNIFailed",
        action: "Redirecting",
        note: format!(
            "The pod cannot start, because {cause} (code {code}). The agent's log on the node has the error."
        ),
    };
    pod_event::new(record, subject, content)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample::record;
    use super::*;

    fn event(command: &str, code: u32) -> Option<PodEvent> {
        pod_event(&record(json!({
            "level": "error", "command": command, "decision": "failed",
            "error": {"code": code, "msg": "text of the sender"},
        })))
    }

    #[test]
    fn each_class_of_failed_adds_makes_an_event_of_its_own_without_the_senders_words() {
        let mut subjects = std::collections::BTreeSet::new();
        for code in [1, 4, 5, 6, 7, 8, 100, 101, 102, 104, 110, 111, 120, 121, 999] {
            let event = event("ADD", code).unwrap();
            let note = &event.content.note;
            assert_eq!(event.content.reason, "LinkerdCNIFailed");
            assert!(note.contains(&format!("(code {code})")), "{note}");
            assert!(!note.contains("sender"), "{note}");
            assert_eq!(event.subject == "failed: other", code == 999, "{code}");
            subjects.insert(event.subject);
        }
        assert_eq!(subjects.len(), CLASSES.len() + 1);
    }

    #[test]
    fn a_failed_check_and_a_deleted_pod_make_no_event() {
        assert_eq!(event("CHECK", 122), None);
        assert_eq!(event("ADD", code::POD_NOT_FOUND), None);
    }
}
