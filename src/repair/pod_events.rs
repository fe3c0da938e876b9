//! The Events that report to operators what happened to a pod. Pure.

use std::fmt::Display;

use crate::kube::event::{EventContent, EventType, Regarding};
use crate::repair::find::stranded::{FoundBy, FoundPod};
use crate::repair::settings::RepairMode;

/// Reason of Events on a pod whose validator failed.
pub const NOT_CONFIGURED: &str = "LinkerdCNINotConfigured";

/// Reason of Events on a running pod that lacks rules. After an Event of type Warning, the pod
/// lacks rules until an Event of type Normal says that it has them.
pub const RULES_MISSING: &str = "LinkerdCNIRulesMissing";

/// Reason of Events on a running pod whose rules are unknown, and on a node whose pods cannot be
/// audited. An Event of type Warning applies until one of type Normal on the same object.
pub const RULES_UNKNOWN: &str = "LinkerdCNIRulesUnknown";

/// Reason of Events on a node where evictions by audits are suspended. An Event of type Warning
/// applies until one of type Normal.
pub const REPAIRS_SUSPENDED: &str = "LinkerdCNIRepairsSuspended";

/// Action of the Event on a node that ends all reports from before the controller's start, on the
/// node and on its pods. Its time is that of the start. Its type is Normal and its reason is
/// [`RULES_UNKNOWN`]. `linkerd cni` reads this (`extension::repair_events`).
pub const AUDITED: &str = "Audited";

/// Action of Events on a pod that is left unchanged for now.
pub const SKIPPING: &str = "Skipping";

pub const REPLACE: &str = "delete the pod to replace it";

/// Why a damaged pod is left unchanged while evictions by audits are suspended.
pub const HELD_BACK: &str = "it lacks redirect rules, and so do most audited pods of this node, so \
                             audits evict none of them; check that the CNI plugin works on this \
                             node, then delete the pod to replace it";

pub const REPAIRED_RECENTLY: &str = "stranded again soon after the repair of this pod or \
                                     of its owner's last pod; check that the CNI plugin works on \
                                     this node";

/// Returns the Event on a pod to which the mode was applied. `missing` is the number of missing
/// rules, 0 if unknown. The Event does not name the rules, whose text depends on the backend: the
/// log has them. The note about a deleted pod has upstream's words.
pub fn repair_event(mode: RepairMode, found_by: FoundBy, missing: usize) -> EventContent {
    let (kind, action, what) = match mode {
        RepairMode::Delete => (
            EventType::Normal,
            "Deleting",
            "Deleting pod to create a new one with proper CNI config",
        ),
        RepairMode::InPlace => (
            EventType::Normal,
            "Repairing",
            "Installed the redirect rules in the pod's network namespace",
        ),
        RepairMode::Report => (
            EventType::Warning,
            "Reporting",
            "The pod's traffic is not redirected to its proxy; delete the pod to replace it",
        ),
    };
    let note = format!("{what}{}", describe_missing_count(missing));
    EventContent { kind, reason: event_reason(found_by), action, note }
}

/// Returns the end of a note, which says how many rules were missing. Empty if that is unknown.
fn describe_missing_count(missing: usize) -> String {
    match missing {
        0 => String::new(),
        1 => "; 1 redirect rule was missing".to_owned(),
        count => format!("; {count} redirect rules were missing"),
    }
}

/// Returns the Event on a pod that is left unchanged.
pub fn skip_event(found_by: FoundBy, why: &str) -> EventContent {
    let note = format!("Pod skipped for now: {why}");
    EventContent {
        kind: EventType::Warning,
        reason: event_reason(found_by),
        action: SKIPPING,
        note,
    }
}

/// Returns the Event on a running pod whose rules an audit cannot read, or compare.
pub fn unknown_event(why: &str) -> EventContent {
    EventContent {
        kind: EventType::Warning,
        reason: RULES_UNKNOWN,
        action: SKIPPING,
        note: format!("Pod skipped for now: its redirect rules are unknown: {why}"),
    }
}

/// Returns the Event that ends the report of an [`unknown_event`].
pub fn known_event() -> EventContent {
    ending_event(RULES_UNKNOWN, "The pod's redirect rules are known again")
}

/// Returns the Event that ends the reports that the pod lacks rules.
pub fn complete_event() -> EventContent {
    ending_event(RULES_MISSING, "The pod has all its redirect rules")
}

/// Returns the Event that ends the reports of earlier controllers on the node and on its pods, of
/// which this controller knows nothing.
pub fn audited_event() -> EventContent {
    EventContent {
        kind: EventType::Normal,
        reason: RULES_UNKNOWN,
        action: AUDITED,
        note:
            "The pods of this node were audited. What was reported before this repair controller \
               started has ended, or was reported again"
                .to_owned(),
    }
}

fn ending_event(reason: &'static str, note: &str) -> EventContent {
    EventContent { kind: EventType::Normal, reason, action: "Auditing", note: note.to_owned() }
}

/// Says that the repair of a pod keeps failing, although it is tried again.
pub fn failing(error: &impl Display) -> String {
    format!("its repair has failed for more than a minute, and is tried again: {error}")
}

impl<'a> From<&'a FoundPod> for Regarding<'a> {
    fn from(pod: &'a FoundPod) -> Self {
        Regarding { kind: "Pod", namespace: &pod.namespace, name: &pod.name, uid: &pod.uid }
    }
}

fn event_reason(found_by: FoundBy) -> &'static str {
    match found_by {
        FoundBy::Validator => NOT_CONFIGURED,
        FoundBy::Audit => RULES_MISSING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_of_a_repair_counts_the_missing_rules() {
        let repairs = [(RepairMode::Delete, 0), (RepairMode::InPlace, 8), (RepairMode::Report, 1)];
        let events = repairs.map(|(mode, missing)| {
            let event = repair_event(mode, FoundBy::Validator, missing);
            format!("{:?} {}: {}", event.kind, event.reason, event.note)
        });
        insta::assert_snapshot!(events.join("\n"), @"
        Normal LinkerdCNINotConfigured: Deleting pod to create a new one with proper CNI config
        Normal LinkerdCNINotConfigured: Installed the redirect rules in the pod's network namespace; 8 redirect rules were missing
        Warning LinkerdCNINotConfigured: The pod's traffic is not redirected to its proxy; delete the pod to replace it; 1 redirect rule was missing
        ");
    }
}
