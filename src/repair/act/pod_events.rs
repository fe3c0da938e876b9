//! The Events that report to operators what happened to a pod. Pure.

use crate::kube::event::{EventContent, EventType};
use crate::repair::find::stranded::FoundBy;
use crate::repair::settings::RepairMode;

pub const REPAIRED_RECENTLY: &str = "stranded again soon after the repair of this pod or \
                                     of its owner's last pod; check that the CNI plugin works on \
                                     this node";

/// Returns the Event on a pod to which the mode was applied. `missing` is the number of missing
/// rules, 0 if unknown. The rules are only in the log, as their text depends on the backend. The
/// note about a deleted pod has upstream's words.
pub fn repair_event(mode: RepairMode, found_by: FoundBy, missing: usize) -> EventContent {
    let (kind, action, note) = match mode {
        RepairMode::Delete => {
            let note = "Deleting pod to create a new one with proper CNI config";
            (EventType::Normal, "Deleting", note.to_owned())
        }
        RepairMode::InPlace => {
            let note = "Installed the redirect rules in the pod's network namespace";
            (EventType::Normal, "Repairing", note.to_owned())
        }
        RepairMode::Report => {
            let note =
                "The pod's traffic is not redirected to its proxy; delete the pod to replace it";
            (EventType::Warning, "Reporting", note.to_owned())
        }
    };
    let missing = match missing {
        0 => String::new(),
        1 => "; 1 redirect rule was missing".to_owned(),
        count => format!("; {count} redirect rules were missing"),
    };
    EventContent { kind, reason: event_reason(found_by), action, note: note + &missing }
}

/// Returns the Event on a pod that is left unchanged.
pub fn skip_event(found_by: FoundBy, why: &str) -> EventContent {
    let note = format!("Pod skipped for now: {why}");
    EventContent {
        kind: EventType::Warning,
        reason: event_reason(found_by),
        action: "Skipping",
        note,
    }
}

fn event_reason(found_by: FoundBy) -> &'static str {
    match found_by {
        FoundBy::Validator => "LinkerdCNINotConfigured",
        FoundBy::Audit => "LinkerdCNIRulesMissing",
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
