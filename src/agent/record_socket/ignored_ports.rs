//! Makes Events about port lists with invalid elements, which the plugin ignores. Pure.
//!
//! The Event is on the meshed pod if an annotation has the list, and on the agent's pod if the
//! plugin entry has it.

use super::pod_event;
use crate::agent::api::event_queue::PodEvent;
use crate::config::ignored::Ignored;
use crate::kube::event::{EventContent, EventType};
use crate::record::Record;

/// Longest text with the source and the elements in a note, in bytes. The API accepts a note of at
/// most 1,024 bytes.
const ELEMENTS_LIMIT: usize = 500;

/// Returns the Events for the record's pod, one per list.
pub fn pod_events(record: &Record) -> impl Iterator<Item = PodEvent> + '_ {
    let lists = record.ignored.iter().filter(|list| list.is_annotated());
    lists.filter_map(|list| {
        let remedy = "Correct the annotation of the pod or of its namespace.";
        pod_event::new(record, list.source, event_content(list, "annotation ", remedy))
    })
}

/// Returns the Events for the agent's pod, each with the key of the plugin entry that it is about.
pub fn agent_events(record: &Record) -> impl Iterator<Item = (&'static str, EventContent)> + '_ {
    let lists = record.ignored.iter().filter(|list| !list.is_annotated());
    lists.map(|list| {
        let remedy = "Correct the chart's values ignoreInboundPorts and ignoreOutboundPorts.";
        (list.source, event_content(list, "the plugin entry's ", remedy))
    })
}

/// Makes the Event's text; `of` says where the list is.
fn event_content(list: &Ignored, of: &str, remedy: &str) -> EventContent {
    let elements = list.to_string();
    let end =
        (0..=ELEMENTS_LIMIT.min(elements.len())).rev().find(|&end| elements.is_char_boundary(end));
    let (shown, cut) = elements.split_at(end.unwrap_or_default());
    let dots = if cut.is_empty() { "" } else { "…" };
    let shown = shown.replacen("ignored in ", &format!("Ignored in {of}"), 1);
    let grammar = list.grammar();
    EventContent {
        kind: EventType::Warning,
        reason: "LinkerdCNIPortsIgnored",
        action: "Redirecting",
        note: format!("{shown}{dots}. Allowed is {grammar}. {remedy}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample::{POD_UID, record};
    use super::*;

    #[test]
    fn a_note_names_annotation_elements_grammar_and_remedy() {
        let record = record(json!({"ignored": [
            {"source": "config.linkerd.io/skip-outbound-ports", "elements": ["http", "30-20"], "more": 0},
            {"source": "config.linkerd.io/admin-port", "elements": ["x"], "more": 0},
            {"source": "inbound-ports-to-ignore", "elements": ["smtp"], "more": 3},
        ]}));
        let events: Vec<PodEvent> = pod_events(&record).collect();
        let notes: Vec<&str> = events.iter().map(|event| &*event.content.note).collect();
        assert_eq!(
            notes,
            [
                "Ignored in annotation config.linkerd.io/skip-outbound-ports: \"http\", \"30-20\". \
                 Allowed is a list of ports (0-65535) and ranges (lower-upper), comma-separated and \
                 without blanks, such as 25,3306,8000-8010. \
                 Correct the annotation of the pod or of its namespace.",
                "Ignored in annotation config.linkerd.io/admin-port: \"x\". \
                 Allowed is a port from 1 to 65535. \
                 Correct the annotation of the pod or of its namespace.",
            ]
        );
        assert_eq!(events[0].subject, "config.linkerd.io/skip-outbound-ports");
        assert_eq!((events[0].pod.as_str(), events[0].uid.as_str()), ("web", POD_UID));
        let of_agent: Vec<_> = agent_events(&record).collect();
        assert_eq!(of_agent.len(), 1);
        assert!(of_agent[0].1.note.starts_with(
            "Ignored in the plugin entry's inbound-ports-to-ignore: \"smtp\", 3 more. "
        ));
    }

    #[test]
    fn a_note_keeps_grammar_and_remedy_when_the_elements_are_cut() {
        let elements = vec!["\u{6f22}".repeat(100); 10];
        let record = record(json!({"ignored": [
            {"source": "config.linkerd.io/skip-inbound-ports", "elements": elements},
        ]}));
        let note = pod_events(&record).next().unwrap().content.note;
        assert!(note.len() < 1024, "{}", note.len());
        assert!(note.ends_with("…. Allowed is a list of ports (0-65535) and ranges (lower-upper), comma-separated and without blanks, such as 25,3306,8000-8010. Correct the annotation of the pod or of its namespace."), "{note}");
    }
}
