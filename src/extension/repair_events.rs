//! The pods and nodes on which repair controllers reported a problem in an Event, and have not
//! reported its end since.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::objects::{event_time, text};
use super::requests::{Api, Error, get_list};
use crate::kube::object_reader::namespace_path;

/// Reason of Events on running pods with missing or changed rules.
const RULES_MISSING: &str = "LinkerdCNIRulesMissing";
/// Reasons of Events on running pods whose rules are unknown, and on nodes where audits fail or
/// their evictions are suspended.
const RULES_UNKNOWN: [&str; 2] = ["LinkerdCNIRulesUnknown", "LinkerdCNIRepairsSuspended"];

/// Notes of the Events that no later Event has ended.
#[derive(Debug, Default)]
pub struct RepairReports {
    /// Why rules are missing or changed, by the pod's UID.
    pub missing: BTreeMap<String, String>,
    /// Why rules are unknown, by the pod's UID or the node's name.
    pub unknown: BTreeMap<String, String>,
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

/// Returns the note of this reason's newest Event on each object, by UID. Leaves out objects whose
/// newest Event is not a Warning, and so ends the report. The UID of a node is its name, see
/// `Regarding::node`.
fn active_notes(
    api: &dyn Api,
    parent: &str,
    reason: &str,
) -> Result<BTreeMap<String, String>, Error> {
    let query = format!("fieldSelector=reason%3D{reason}");
    let mut events: Vec<Value> = get_list(api, &format!("{parent}/events"), &query)?;
    events.sort_by(|a, b| event_time(a).cmp(event_time(b)));
    let mut notes = BTreeMap::new();
    for event in &events {
        let uid = text(&event["involvedObject"]["uid"]).to_owned();
        if event["type"] == "Warning" {
            notes.insert(uid, text(&event["message"]).to_owned());
        } else {
            notes.remove(&uid);
        }
    }
    Ok(notes)
}
