//! The pods and nodes on which repair controllers reported a problem in an Event, and have not
//! reported its end since.
//!
//! The API server does not record who created an Event, so whoever may create Events can forge one
//! (docs/security.md).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use humantime::parse_rfc3339;
use serde_json::Value;

use super::objects::{event_time, text};
use super::requests::{Api, Error, get_list};
use crate::kube::object_reader::namespace_path;
use crate::kube::types::Pod;

/// `reportingComponent` of the repair controllers' Events. See `CONTROLLER` in `repair`.
const REPORTER: &str = "linkerd-cni-repair-controller";

/// Reason of Events on running pods with missing or changed rules.
const RULES_MISSING: &str = "LinkerdCNIRulesMissing";
/// Reasons of Events on running pods whose rules are unknown, and on nodes where audits fail or
/// their evictions are suspended.
const RULES_UNKNOWN: [&str; 2] = ["LinkerdCNIRulesUnknown", "LinkerdCNIRepairsSuspended"];

/// Action of the Event on a node that ends all reports on the node and its pods that are older than
/// the Event. It has the time at which the repair controller started. See `AUDITED` in
/// `repair::pod_events`.
const AUDITED: &str = "Audited";

/// Namespace of the Events on nodes.
const NODE_EVENTS: &str = "default";

/// Longest time by which a node's clock may be ahead of the API server's. Without a limit, one Event
/// with a distant date would end all reports before that date. Clocks that are synchronized differ
/// by less than a second. A minute also admits a node that has just booted, and is the difference
/// that the API server tolerates in a token (`DefaultLeeway` in
/// <https://github.com/go-jose/go-jose/blob/v2.6.3/jwt/validation.go>).
const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// The Events that no later Event on the same object has ended, by [`Object`].
#[derive(Debug, Default)]
pub struct RepairReports {
    /// Why rules are missing or changed.
    missing: BTreeMap<Object, Report>,
    /// Why rules are unknown.
    unknown: BTreeMap<Object, Report>,
    /// Since when the reports of each node are complete: the repair controller that started then
    /// has audited all pods, and has reported again what still applies. RFC 3339.
    complete_since: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Report {
    /// RFC 3339.
    time: String,
    note: String,
}

impl Report {
    fn from_event(event: &Value) -> Report {
        Report { time: event_time(event).to_owned(), note: text(&event["message"]).to_owned() }
    }
}

/// The object of a report.
///
/// The author of an Event may state any UID, so the UID alone would let a tenant end or forge the
/// report on a pod of another tenant.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Pod { namespace: String, uid: String },
    Node { name: String },
}

impl RepairReports {
    /// Returns why rules of the pod are missing or changed, if that is reported.
    pub fn missing_rules(&self, pod: &Pod) -> Option<&String> {
        self.active(self.missing.get(&Object::of_pod(pod))?, &pod.spec.node_name)
    }

    /// Returns why the rules of the pod are unknown, if that is reported for the pod itself.
    pub fn unknown_rules(&self, pod: &Pod) -> Option<&String> {
        self.active(self.unknown.get(&Object::of_pod(pod))?, &pod.spec.node_name)
    }

    /// Returns why the rules of all pods of the node are unknown, if that is reported.
    pub fn unknown_rules_on_node(&self, node: &str) -> Option<&String> {
        self.active(self.unknown.get(&Object::Node { name: node.to_owned() })?, node)
    }

    /// Returns the note of a report on the node or on one of its pods. `None` if a repair
    /// controller that started later has not reported it again.
    fn active<'r>(&self, report: &'r Report, node: &str) -> Option<&'r String> {
        if let Some(since) = self.complete_since.get(node)
            && report.time < *since
        {
            return None;
        }
        Some(&report.note)
    }
}

impl Object {
    fn of_pod(pod: &Pod) -> Object {
        let metadata = &pod.metadata;
        Object::Pod { namespace: metadata.namespace.clone(), uid: metadata.uid.clone() }
    }

    /// Returns the object of an Event. `None` if it is neither a pod nor a node, or if a repair
    /// controller would have posted the Event in another namespace.
    ///
    /// The namespaces have to be compared here: the API server compares them only in Events without
    /// `eventTime`, and also admits an Event about a node in `kube-system` (`legacyValidateEvent` in
    /// <https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/apis/core/validation/events.go>).
    fn of_event(event: &Value) -> Option<Object> {
        let event_namespace = text(&event["metadata"]["namespace"]);
        let object = &event["involvedObject"];
        let namespace = text(&object["namespace"]).to_owned();
        let uid = text(&object["uid"]).to_owned();
        match text(&object["kind"]) {
            "Pod" if namespace == event_namespace => Some(Object::Pod { namespace, uid }),
            // The UID of a node is its name, see `Regarding::node`.
            "Node" if namespace.is_empty() && event_namespace == NODE_EVENTS => {
                Some(Object::Node { name: uid })
            }
            _ => None,
        }
    }
}

/// Reads the reports on nodes, and on pods. `parent` is the API path of one namespace or of all.
pub fn read_reports(api: &dyn Api, parent: &str) -> Result<RepairReports, Error> {
    let mut parents = BTreeSet::from([parent.to_owned()]);
    if parent != "/api/v1" {
        parents.insert(namespace_path(NODE_EVENTS));
    }
    let mut reports = RepairReports::default();
    for parent in &parents {
        let events = read_events(api, parent, RULES_MISSING)?;
        reports.missing.extend(unended_reports(&events));
        for reason in RULES_UNKNOWN {
            let events = read_events(api, parent, reason)?;
            reports.unknown.extend(unended_reports(&events));
            reports.complete_since.extend(audited_nodes(&events));
        }
    }
    Ok(reports)
}

/// Returns the repair controllers' Events of this reason, the oldest first. Leaves out Events of
/// other programs, and Events that would end a report although they are dated in the future.
fn read_events(api: &dyn Api, parent: &str, reason: &str) -> Result<Vec<Value>, Error> {
    let query = format!("fieldSelector=reason%3D{reason}");
    let mut events: Vec<Value> = get_list(api, &format!("{parent}/events"), &query)?;
    events.retain(|event| {
        event["reportingComponent"] == REPORTER && (is_warning(event) || has_past_date(event))
    });
    events.sort_by(|a, b| event_time(a).cmp(event_time(b)));
    Ok(events)
}

/// Whether the Event reports a problem. Any other Event ends a report. A report counts whatever its
/// date is: the clock of its node may be wrong, and a problem must not be overlooked.
fn is_warning(event: &Value) -> bool {
    event["type"] == "Warning"
}

/// Whether the Event happened before the API server received it. The date of the Event is the
/// author's, and `creationTimestamp` is the API server's own.
fn has_past_date(event: &Value) -> bool {
    let created = text(&event["metadata"]["creationTimestamp"]);
    match (parse_rfc3339(event_time(event)), parse_rfc3339(created)) {
        (Ok(happened), Ok(created)) => happened <= created + CLOCK_SKEW,
        _ => false,
    }
}

/// Returns the newest Event on each object. Leaves out objects whose newest Event is not a Warning,
/// and so ends the report.
fn unended_reports(events: &[Value]) -> BTreeMap<Object, Report> {
    let mut reports = BTreeMap::new();
    for event in events {
        let Some(object) = Object::of_event(event) else { continue };
        if is_warning(event) {
            reports.insert(object, Report::from_event(event));
        } else {
            reports.remove(&object);
        }
    }
    reports
}

/// Returns the time of the newest Event [`AUDITED`] on each node.
fn audited_nodes(events: &[Value]) -> BTreeMap<String, String> {
    let mut nodes = BTreeMap::new();
    for event in events {
        if event["action"] == AUDITED
            && event["type"] == "Normal"
            && let Some(Object::Node { name }) = Object::of_event(event)
        {
            nodes.insert(name, event_time(event).to_owned());
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::extension::fake::Cluster;
    use crate::repair::CONTROLLER;

    /// An Event on a pod or node of `node-1`, or another node.
    fn event(kind: &str, uid: &str, event_type: &str, action: &str, time: &str) -> Value {
        let namespace = if kind == "Pod" { "shop" } else { "" };
        json!({
            "metadata": {"namespace": if kind == "Pod" { "shop" } else { "default" }},
            "involvedObject": {"kind": kind, "namespace": namespace, "uid": uid, "name": uid},
            "type": event_type,
            "action": action,
            "eventTime": time,
            "message": "why",
        })
    }

    #[test]
    fn a_report_from_before_the_start_of_an_auditing_controller_has_ended() {
        let audited = event("Node", "node-1", "Normal", "Audited", "2026-12-01T08:00:00.000000Z");
        for (name, time, action, ends) in [
            ("a restarted controller has audited", "2026-12-01T07:59:59.999999Z", "Audited", true),
            ("it has reported again", "2026-12-01T08:00:00.000001Z", "Audited", false),
            ("another Event on the node", "2026-12-01T07:00:00.000000Z", "Reporting", false),
        ] {
            let mut audited = audited.clone();
            audited["action"] = action.into();
            for node in ["node-1", "node-2"] {
                let mut events = [event("Pod", "1", "Warning", "Skipping", time), audited.clone()];
                events.sort_by(|a, b| event_time(a).cmp(event_time(b)));
                let reports = RepairReports {
                    missing: unended_reports(&events),
                    unknown: unended_reports(&events),
                    complete_since: audited_nodes(&events),
                };
                let pod: Pod = serde_json::from_value(json!({
                    "metadata": {"namespace": "shop", "name": "1", "uid": "1"},
                    "spec": {"nodeName": node},
                }))
                .unwrap();
                let has_ended = ends && node == "node-1";
                assert_eq!(reports.missing_rules(&pod).is_none(), has_ended, "{name}, {node}");
                assert_eq!(reports.unknown_rules(&pod).is_none(), has_ended, "{name}, {node}");
            }
        }
    }

    /// An Event that the API server received at 08:00.
    fn received(
        event_type: &str,
        action: &str,
        object: &Value,
        component: &str,
        time: &str,
    ) -> Value {
        let namespace = object["namespace"].as_str().unwrap_or("default");
        json!({
            "metadata": {"namespace": namespace, "creationTimestamp": "2026-12-01T08:00:00Z"},
            "involvedObject": object,
            "reason": "LinkerdCNIRulesUnknown",
            "type": event_type,
            "action": action,
            "reportingComponent": component,
            "eventTime": format!("2026-12-01T{time}Z"),
            "message": "why",
        })
    }

    /// Whether these Events report that the rules of the pod `web` are unknown.
    fn is_reported(events: &[Value]) -> bool {
        let mut cluster = Cluster::healthy();
        cluster.put("/api/v1/events", json!({"items": events}));
        let reports = read_reports(&cluster, "/api/v1").unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "1"},
            "spec": {"nodeName": "node-1"},
        }))
        .unwrap();
        reports.unknown_rules(&pod).is_some()
    }

    #[test]
    fn report_is_ended_only_by_a_controllers_event_that_is_not_from_the_future() {
        let pod = json!({"kind": "Pod", "namespace": "shop", "uid": "1"});
        let node = json!({"kind": "Node", "uid": "node-1"});
        let report = received("Warning", "Skipping", &pod, CONTROLLER, "06:00:00.000000");
        for (name, component, time, ends) in [
            ("posted an hour later", CONTROLLER, "07:00:00.000000", true),
            ("of a clock that is a minute ahead", CONTROLLER, "08:01:00.000000", true),
            ("from the future", CONTROLLER, "08:01:00.000001", false),
            ("of the next day", CONTROLLER, "23:59:59.000000", false),
            ("without a valid date", CONTROLLER, "", false),
            ("of another program", "linkerd2-cni-install", "07:00:00.000000", false),
            ("of no program", "", "07:00:00.000000", false),
        ] {
            for (action, object) in [("Auditing", &pod), ("Audited", &node)] {
                let end = received("Normal", action, object, component, time);
                let is_reported = is_reported(&[report.clone(), end]);
                assert_eq!(is_reported, !ends, "{action} {name}");
            }
        }
    }

    /// Otherwise no problem would be reported of a node whose clock is ahead.
    #[test]
    fn report_from_the_future_is_a_report_if_it_is_of_a_controller() {
        let pod = json!({"kind": "Pod", "namespace": "shop", "uid": "1"});
        for (component, expected) in [(CONTROLLER, true), ("kubelet", false)] {
            let report = received("Warning", "Skipping", &pod, component, "23:00:00.000000");
            assert_eq!(is_reported(&[report]), expected, "{component}");
        }
    }

    #[test]
    fn event_reports_only_on_objects_of_its_own_namespace() {
        let pod = |namespace: &str| Object::Pod { namespace: namespace.into(), uid: "1".into() };
        let node = Object::Node { name: "node-1".into() };
        for (name, namespace, involved, expected) in [
            (
                "a pod",
                "shop",
                json!({"kind": "Pod", "namespace": "shop", "uid": "1"}),
                Some(pod("shop")),
            ),
            (
                "a pod's UID in a tenant's namespace",
                "evil",
                json!({"kind": "Pod", "namespace": "evil", "uid": "1"}),
                Some(pod("evil")),
            ),
            (
                "a pod of another tenant",
                "evil",
                json!({"kind": "Pod", "namespace": "shop", "uid": "1"}),
                None,
            ),
            (
                "a node",
                "default",
                json!({"kind": "Node", "name": "node-1", "uid": "node-1"}),
                Some(node),
            ),
            (
                "a node, in the other namespace that the API server admits",
                "kube-system",
                json!({"kind": "Node", "name": "node-1", "uid": "node-1"}),
                None,
            ),
            (
                "a node in a tenant's namespace",
                "evil",
                json!({"kind": "Node", "namespace": "evil", "uid": "node-1"}),
                None,
            ),
            (
                "a node's name as UID of another kind",
                "evil",
                json!({"kind": "ConfigMap", "namespace": "evil", "uid": "node-1"}),
                None,
            ),
        ] {
            let event = json!({"metadata": {"namespace": namespace}, "involvedObject": involved});
            assert_eq!(Object::of_event(&event), expected, "{name}");
        }
    }
}
