//! Makes the Events about a plugin record. Pure.
//!
//! The text in a record may come from any process that can write to the socket. So the notes of the
//! Events take only names, ports and the error code from it. The words for the code are those of
//! [`failure`](crate::failure).

use crate::agent::api_thread::event_queue::Event;
use crate::cni::Command;
use crate::cni::args::PodRef;
use crate::config::ignored_ports::Ignored;
use crate::failure::{Failure, Row};
use crate::kube::event::{EventContent, EventType};
use crate::record::{CallError, Record};

/// Longest quotation of the ignored elements of a list in a note, in bytes.
const ELEMENTS_LIMIT: usize = 500;

/// What an Event reports about a pod.
struct Report {
    /// What the Event is about. Events on a pod with the same subject count as repetitions.
    subject: &'static str,
    kind: EventType,
    reason: &'static str,
    note: String,
}

/// Returns the Events on the pod of the record. Returns none if the UID of the pod is unknown:
/// without it, the Event would not be shown with the pod, and repetitions would not be recognized.
pub fn pod_events(record: &Record) -> Vec<Event> {
    if record.pod_uid.is_empty() {
        return Vec::new();
    }
    let pod = PodRef {
        namespace: record.namespace.clone(),
        name: record.pod.clone(),
        uid: record.pod_uid.clone(),
    };
    let mut events = Vec::new();
    for Report { subject, kind, reason, note } in reports(record) {
        let content = EventContent { kind, reason, action: "Redirecting", note };
        events.push(Event { pod: Some(pod.clone()), subject, ..Event::on_node(content) });
    }
    events
}

/// Returns a report for each problem of the pod that the record shows.
fn reports(record: &Record) -> Vec<Report> {
    let mut reports = Vec::new();
    for list in &record.ignored {
        if list.is_annotated() {
            reports.push(ignored_ports(list));
        }
    }
    if let Some(error) = &record.error
        && record.command == Command::Add
    {
        reports.extend(failed_add(error));
    }
    if !record.is_redirected_add() {
        return reports;
    }
    if let Some(error) = &record.degraded {
        reports.push(degraded(error));
    }
    let blocked = record.blocked_names();
    if !blocked.is_empty() {
        reports.push(blocked_init_containers(&blocked));
    }
    let exempt = record.exempt_names();
    if !exempt.is_empty() {
        reports.push(exempt_containers(&exempt));
    }
    reports
}

/// Reports an ADD that failed, so that the pod cannot start. Returns `None` if the pod was deleted
/// while it started, because nothing is wrong then. Returns `None` also for a failure that this
/// agent does not know, which happens for a moment after a rollback, when the plugin is newer than
/// the agent. The log has the error of that failure.
fn failed_add(error: &CallError) -> Option<Report> {
    let failure = error.failure()?;
    if matches!(failure, Failure::PodNotFound | Failure::PodReplaced) {
        return None;
    }
    let Row { name, cause, remedy, .. } = *failure.row();
    let note = format!(
        "The pod cannot start, because {cause} (code {}). Remedy: {remedy}. The agent's log on the \
         node has the error.",
        error.code
    );
    Some(Report { subject: name, kind: EventType::Warning, reason: "LinkerdCNIFailed", note })
}

/// Reports a pod that was redirected without the pod object, because of `error`.
fn degraded(error: &CallError) -> Report {
    let cause = error.failure().unwrap_or(Failure::ApiError).row().cause;
    let note = format!(
        "Redirected by annotations and plugin entry alone, because {cause} (code {}). UID and ports \
         that the linkerd-proxy container sets were not read. If they differ from the chart's \
         values, delete the pod once the agent on its node is ready.",
        error.code
    );
    let kind = EventType::Warning;
    Report { subject: "degraded", kind, reason: "LinkerdCNIDegraded", note }
}

/// Reports the elements of an annotated list of ports or interfaces that have no effect.
fn ignored_ports(list: &Ignored) -> Report {
    let elements = list.to_string();
    let shown = &elements[..elements.floor_char_boundary(ELEMENTS_LIMIT)];
    let ellipsis = if shown.len() < elements.len() { "…" } else { "" };
    let ignored = shown.replacen("ignored in ", "Ignored in annotation ", 1);
    let note = format!(
        "{ignored}{ellipsis}. Allowed is {}. Correct the annotation of the pod or of its \
         namespace.",
        list.grammar()
    );
    let kind = EventType::Warning;
    Report { subject: list.source, kind, reason: "LinkerdCNIPortsIgnored", note }
}

/// Reports init containers that start before the proxy. The rules apply from the start of the pod,
/// so each redirected connection of these containers is refused until the proxy listens.
fn blocked_init_containers(names: &str) -> Report {
    let note = format!(
        "Init containers that start before the proxy: {names}. Their outbound TCP connections are \
         redirected to the proxy and refused, as it does not run yet. If they need the network, \
         run the proxy as a native sidecar (config.linkerd.io/proxy-enable-native-sidecar: true), \
         run them with the proxy's UID, or skip their ports (config.linkerd.io/skip-outbound-ports)."
    );
    let kind = EventType::Normal;
    Report { subject: "init containers", kind, reason: "LinkerdCNIInitWithoutNetwork", note }
}

/// Reports containers that run as the proxy's user, which the rules exempt.
fn exempt_containers(names: &str) -> Report {
    let note = format!(
        "Containers that run as the proxy's user: {names}. Their outbound connections bypass the \
         proxy, without mTLS and policy. Set another runAsUser or runAsGroup for them or for the \
         pod, and delete the pod. With the chart's strictProxyUser such a pod does not start."
    );
    let kind = EventType::Warning;
    Report { subject: "exempt containers", kind, reason: "LinkerdCNIProxyUserShared", note }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::failure::TABLE;

    const UID: &str = "c0ffee00-0000-4000-8000-000000000001";

    /// Returns the record of a redirected pod, with `changes` to its keys.
    fn record(changes: Value) -> Record {
        let mut record = json!({
            "command": "ADD", "namespace": "ns", "pod": "web", "pod_uid": UID,
            "container_id": "c", "decision": "redirected", "requests": 2, "ms": 3,
        });
        let Value::Object(changes) = changes else { panic!("changes are an object: {changes}") };
        record.as_object_mut().unwrap().extend(changes);
        Record::parse(record.to_string().as_bytes()).unwrap()
    }

    /// Returns the only Event on the pod of such a record. `None` if there is no Event.
    fn event(changes: Value) -> Option<Event> {
        let mut events = pod_events(&record(changes));
        assert!(events.len() <= 1, "{events:?}");
        events.pop()
    }

    #[test]
    fn failed_add_makes_an_event_with_cause_and_remedy_of_the_failure() {
        for row in TABLE.iter().filter(|row| row.code != 103) {
            let error = json!({"code": row.code, "failure": row.name, "msg": "text of the sender"});
            let content = event(json!({"decision": "failed", "error": error})).unwrap().content;
            assert_eq!((content.kind, content.reason), (EventType::Warning, "LinkerdCNIFailed"));
            let note = content.note;
            assert!(note.contains(&format!("because {} (code {})", row.cause, row.code)), "{note}");
            assert!(note.contains(&format!("Remedy: {}.", row.remedy)), "{note}");
            assert!(!note.contains("sender") && note.len() < 1024, "{note}");
        }
    }

    #[test]
    fn a_record_without_a_problem_of_its_pod_makes_no_event() {
        for (name, changes) in testkit::table::rows(include_str!("no_event.yaml")) {
            assert_eq!(event(changes), None, "{name}");
        }
    }

    #[test]
    fn add_without_the_api_server_makes_an_event_with_cause_and_remedy() {
        let outages = [
            Failure::Kubeconfig,
            Failure::ApiUnreachable,
            Failure::TokenRejected,
            Failure::ApiError,
        ];
        for row in outages.map(Failure::row) {
            let error = json!({"code": row.code, "failure": row.name, "msg": "text of the sender"});
            let content = event(json!({"degraded": error})).unwrap().content;
            assert_eq!((content.kind, content.reason), (EventType::Warning, "LinkerdCNIDegraded"));
            let cause = format!("because {} (code {})", row.cause, row.code);
            assert!(content.note.contains(&cause), "{}", content.note);
            assert!(content.note.contains("delete the pod"), "{}", content.note);
            assert!(!content.note.contains("sender"), "{}", content.note);
        }
    }

    #[test]
    fn an_event_about_containers_names_them_and_the_remedies() {
        let long = "n".repeat(63);
        let cases = [
            (
                "blocked_init_containers",
                (EventType::Normal, "LinkerdCNIInitWithoutNetwork"),
                &["native sidecar", "UID", "skip-outbound-ports"][..],
            ),
            (
                "exempt_containers",
                (EventType::Warning, "LinkerdCNIProxyUserShared"),
                &["runAsUser", "delete the pod"],
            ),
        ];
        for (key, kind_and_reason, remedies) in cases {
            let content = event(json!({key: vec![&long; 10]})).unwrap().content;
            assert_eq!((content.kind, content.reason), kind_and_reason);
            let note = content.note;
            assert!(note.contains(&[&*long; 10].join(", ")) && note.len() < 1024, "{note}");
            assert!(remedies.iter().all(|remedy| note.contains(remedy)), "{note}");
        }
    }

    #[test]
    fn each_annotation_with_ignored_ports_makes_a_bounded_event_with_its_grammar() {
        let long = "\u{6f22}".repeat(100);
        let record = record(json!({"ignored": [
            {"source": "config.linkerd.io/skip-outbound-ports", "elements": vec![&long; 10]},
            {"source": "config.linkerd.io/admin-port", "elements": ["x"]},
            {"source": "config.linkerd.io/inner-interfaces", "elements": ["docker+"]},
            {"source": "inbound-ports-to-ignore", "elements": ["smtp"], "more": 3},
            {"source": "inner-interfaces", "elements": ["eth0"]},
        ]}));
        let remedy = "Correct the annotation of the pod or of its namespace.";
        let grammars = [
            "a list of ports (0-65535) and ranges (lower-upper)",
            "a port from 1 to 65535",
            "a list of up to 8 names of interfaces inside the pod",
        ];
        let events = pod_events(&record);
        assert_eq!(events.len(), grammars.len());
        for (event, grammar) in events.iter().zip(grammars) {
            let (note, annotation) = (&event.content.note, event.subject);
            assert!(note.starts_with(&format!("Ignored in annotation {annotation}: ")), "{note}");
            assert!(note.contains(&format!(". Allowed is {grammar}")), "{note}");
            assert!(note.ends_with(remedy) && note.len() < 1024, "{note}");
        }
        assert!(events[0].content.note.contains("…. Allowed"), "{}", events[0].content.note);
        assert_eq!(events[1].subject, "config.linkerd.io/admin-port");
    }

    #[test]
    fn an_event_is_on_the_pod_that_the_record_names() {
        let event = event(json!({"error": {"code": 101, "msg": ""}})).unwrap();
        let pod = PodRef { namespace: "ns".into(), name: "web".into(), uid: UID.into() };
        assert_eq!(event.pod, Some(pod));
    }
}
