//! Makes Events about pods that were redirected without the API server. Pure.

use super::pod_event;
use crate::agent::api::event_queue::PodEvent;
use crate::cni::error::code;
use crate::kube::event::{EventContent, EventType};
use crate::record::{CallResult, Command, Degraded, Record};

/// Returns the Event on the record's pod, if it was redirected without the API server.
pub fn pod_event(record: &Record) -> Option<PodEvent> {
    let Degraded(error) = record.degraded.as_ref()?;
    let is_redirected = record.command == Command::Add && record.result == CallResult::Redirected;
    let content = EventContent {
        kind: EventType::Warning,
        reason: "LinkerdCNIDegraded",
        action: "Redirecting",
        note: format!(
            "Redirected by annotations and plugin entry alone, because {} (code {}). UID and ports that the linkerd-proxy container sets were not read. If they differ from the chart's values, delete the pod once the agent on its node is ready.",
            cause(error.code),
            error.code
        ),
    };
    is_redirected.then(|| pod_event::new(record, "degraded", content)).flatten()
}

/// Describes the class of errors, in words of this program: the text in a record may come from
/// any process.
fn cause(code: u32) -> &'static str {
    match code {
        code::KUBECONFIG => "the plugin's kubeconfig is missing or invalid",
        code::API_UNREACHABLE => "the API server was unreachable",
        code::API_DENIED => "the API server rejected the plugin's token or denied the request",
        _ => "the API server responded with an error",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample::record;
    use super::*;

    fn event(command: &str, decision: &str, code: u32) -> Option<PodEvent> {
        pod_event(&record(json!({
            "command": command, "decision": decision,
            "degraded": {"code": code, "msg": "text of the sender"},
        })))
    }

    #[test]
    fn a_pod_that_was_redirected_without_the_api_server_gets_an_event_with_cause_and_remedy() {
        for (code, cause) in [
            (100, "the plugin's kubeconfig is missing or invalid (code 100)"),
            (101, "the API server was unreachable (code 101)"),
            (102, "the API server rejected the plugin's token or denied the request (code 102)"),
            (104, "the API server responded with an error (code 104)"),
        ] {
            let content = event("ADD", "redirected", code).unwrap().content;
            assert_eq!((content.kind, content.reason), (EventType::Warning, "LinkerdCNIDegraded"));
            assert!(content.note.contains(cause), "{}", content.note);
            assert!(content.note.contains("delete the pod"), "{}", content.note);
            assert!(!content.note.contains("sender"), "{}", content.note);
        }
    }

    #[test]
    fn a_check_and_a_failed_add_make_no_event() {
        assert_eq!(event("CHECK", "checked", 101), None);
        assert_eq!(event("ADD", "failed", 101), None);
        assert_eq!(event("ADD", "simulated", 101), None);
    }
}
