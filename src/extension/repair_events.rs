//! The pods and nodes on which repair controllers reported a problem in an Event, and have not
//! reported its end since.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::objects::{event_time, text};
use super::requests::{Api, Error, get_list};
use crate::kube::object_reader::namespace_path;
use crate::kube::types::Pod;

/// Reason of Events on running pods with missing or changed rules.
const RULES_MISSING: &str = "LinkerdCNIRulesMissing";
/// Reasons of Events on running pods whose rules are unknown, and on nodes where audits fail or
/// their evictions are suspended.
const RULES_UNKNOWN: [&str; 2] = ["LinkerdCNIRulesUnknown", "LinkerdCNIRepairsSuspended"];

/// Notes of the Events that no later Event has ended, by [`Object`].
#[derive(Debug, Default)]
pub struct RepairReports {
    /// Why rules are missing or changed.
    missing: BTreeMap<Object, String>,
    /// Why rules are unknown.
    unknown: BTreeMap<Object, String>,
}

/// The object of a report.
///
/// The author of an Event may state any UID, so the UID alone would let a tenant end or forge the
/// report on a pod of another tenant. But the API server rejects an Event whose namespace is not
/// that of its object, and an Event without one outside of the namespace `default`
/// (`legacyValidateEvent` of Kubernetes).
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Pod { namespace: String, uid: String },
    Node { name: String },
}

impl RepairReports {
    /// Returns why rules of the pod are missing or changed, if that is reported.
    pub fn missing_in(&self, pod: &Pod) -> Option<&String> {
        self.missing.get(&Object::of_pod(pod))
    }

    /// Returns why the rules of the pod are unknown, if that is reported for the pod itself.
    pub fn unknown_in(&self, pod: &Pod) -> Option<&String> {
        self.unknown.get(&Object::of_pod(pod))
    }

    /// Returns why the rules of all pods of the node are unknown, if that is reported.
    pub fn unknown_on(&self, node: &str) -> Option<&String> {
        self.unknown.get(&Object::Node { name: node.to_owned() })
    }
}

impl Object {
    fn of_pod(pod: &Pod) -> Object {
        let metadata = &pod.metadata;
        Object::Pod { namespace: metadata.namespace.clone(), uid: metadata.uid.clone() }
    }

    /// Returns the object of an Event. `None`: the Event is on neither a pod nor a node.
    fn of_event(event: &Value) -> Option<Object> {
        let object = &event["involvedObject"];
        let (namespace, uid) = (text(&object["namespace"]), text(&object["uid"]));
        match text(&object["kind"]) {
            "Pod" => Some(Object::Pod { namespace: namespace.to_owned(), uid: uid.to_owned() }),
            // The UID of a node is its name, see `Regarding::node`.
            "Node" if namespace.is_empty() => Some(Object::Node { name: uid.to_owned() }),
            _ => None,
        }
    }
}

/// Reads the reports on nodes, and on pods. `parent` is the API path of one namespace or of all.
pub fn read_reports(api: &dyn Api, parent: &str) -> Result<RepairReports, Error> {
    let mut parents = BTreeSet::from([parent.to_owned()]);
    if parent != "/api/v1" {
        // Events on nodes are in namespace `default`, so it is read, too.
        parents.insert(namespace_path("default"));
    }
    let mut reports = RepairReports::default();
    for parent in &parents {
        reports.missing.extend(active_notes(api, parent, RULES_MISSING)?);
        for reason in RULES_UNKNOWN {
            reports.unknown.extend(active_notes(api, parent, reason)?);
        }
    }
    Ok(reports)
}

/// Returns the note of this reason's newest Event on each object. Leaves out objects whose newest
/// Event is not a Warning, and so ends the report.
fn active_notes(
    api: &dyn Api,
    parent: &str,
    reason: &str,
) -> Result<BTreeMap<Object, String>, Error> {
    let query = format!("fieldSelector=reason%3D{reason}");
    let mut events: Vec<Value> = get_list(api, &format!("{parent}/events"), &query)?;
    events.sort_by(|a, b| event_time(a).cmp(event_time(b)));
    let mut notes = BTreeMap::new();
    for event in &events {
        let Some(object) = Object::of_event(event) else { continue };
        if event["type"] == "Warning" {
            notes.insert(object, text(&event["message"]).to_owned());
        } else {
            notes.remove(&object);
        }
    }
    Ok(notes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_on_the_pod_or_node_that_the_events_namespace_permits() {
        let pod = |namespace: &str| Object::Pod { namespace: namespace.into(), uid: "1".into() };
        let node = Object::Node { name: "node-1".into() };
        for (name, involved, expected) in [
            ("a pod", json!({"kind": "Pod", "namespace": "shop", "uid": "1"}), Some(pod("shop"))),
            (
                "a pod's UID in a tenant's namespace",
                json!({"kind": "Pod", "namespace": "evil", "uid": "1"}),
                Some(pod("evil")),
            ),
            ("a node", json!({"kind": "Node", "name": "node-1", "uid": "node-1"}), Some(node)),
            (
                "a node in a tenant's namespace",
                json!({"kind": "Node", "namespace": "evil", "uid": "node-1"}),
                None,
            ),
            (
                "a node's name as UID of another kind",
                json!({"kind": "ConfigMap", "namespace": "evil", "uid": "node-1"}),
                None,
            ),
        ] {
            let event = json!({"involvedObject": involved});
            assert_eq!(Object::of_event(&event), expected, "{name}");
        }
    }
}
