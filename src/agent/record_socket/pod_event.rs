//! Makes Events on the pod of a record. Pure.

use crate::agent::api::event_queue::PodEvent;
use crate::kube::event::EventContent;
use crate::record::Record;

/// Returns an Event on the record's pod. `None` if namespace, name or UID are not valid in
/// Kubernetes, because any process that can write to the socket can send records.
pub fn new(record: &Record, subject: &'static str, content: EventContent) -> Option<PodEvent> {
    let is_pod =
        is_label(&record.namespace) && is_subdomain(&record.pod) && is_uid(&record.pod_uid);
    is_pod.then(|| PodEvent {
        namespace: record.namespace.clone(),
        pod: record.pod.clone(),
        uid: record.pod_uid.clone(),
        subject,
        content,
    })
}

/// Whether `text` is a DNS label (RFC 1123), as the name of a Namespace is.
fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Whether `text` is a DNS subdomain as Kubernetes checks it for the name of a pod: at most 253
/// bytes, without a limit for each part.
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

/// Whether `text` has only the characters of a DNS label, and is not empty.
fn is_part(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(fits) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether `text` is a UUID, as the API server assigns them.
fn is_uid(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    let fits = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    lengths == [8, 4, 4, 4, 12] && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample::{self, POD_UID as UID};
    use super::*;
    use crate::kube::event::EventType;

    fn record(namespace: &str, pod: &str, uid: &str) -> Record {
        sample::record(json!({"namespace": namespace, "pod": pod, "pod_uid": uid}))
    }

    fn content() -> EventContent {
        EventContent { kind: EventType::Warning, reason: "R", action: "A", note: "n".into() }
    }

    #[test]
    fn a_valid_pod_gets_an_event() {
        let event = new(&record("emojivoto", "web-1.x", UID), "s", content()).unwrap();
        let PodEvent { namespace, pod, uid, subject, .. } = event;
        assert_eq!((&*namespace, &*pod, &*uid, subject), ("emojivoto", "web-1.x", UID, "s"));
    }

    #[test]
    fn each_part_of_a_pod_name_may_have_more_than_63_bytes() {
        let name = format!("{}.x", "a".repeat(64));
        assert!(new(&record("ns", &name, UID), "s", content()).is_some());
        assert!(new(&record("ns", &"a".repeat(253), UID), "s", content()).is_some());
    }

    #[test]
    fn a_record_without_a_valid_pod_makes_no_event() {
        let long = "a".repeat(64);
        for (namespace, pod, uid) in [
            ("..", "web", UID),
            ("Ns", "web", UID),
            ("", "web", UID),
            (&long, "web", UID),
            ("ns", "..", UID),
            ("ns", "web.", UID),
            ("ns", "a_b", UID),
            ("ns", "-web", UID),
            ("ns", "", UID),
            ("ns", "web.-x", UID),
            ("ns", "web", ""),
            ("ns", "web", "u"),
            ("ns", "web", "c0ffee00-0000-4000-8000-00000000000x"),
            ("ns", "web", "c0ffee00000040008000000000000001----"),
        ] {
            let event = new(&record(namespace, pod, uid), "s", content());
            assert_eq!(event, None, "{namespace}/{pod} {uid}");
        }
    }
}
