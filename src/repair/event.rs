//! The Events that report to operators what happened to a pod. Pure.

use super::RepairMode;
use super::stranded_pod::{FoundBy, LABEL};
use crate::kube::event::{EventContent, EventType};

/// Why a pod that is stranded again is skipped for now.
pub const REPAIRED_RECENTLY: &str = "stranded again soon after the repair of this pod or \
                                     of its owner's last pod; check that the CNI plugin works on \
                                     this node";

/// What happened to a pod.
#[derive(Clone, Copy, Debug)]
pub enum RepairEvent<'a> {
    /// The repair mode was applied. The number of missing rules; 0 if the rules were not read.
    Repaired(RepairMode, usize),
    /// The pod cannot be repaired, for this reason.
    Skipped(&'a str),
    /// The pod may be repaired later. Why not now.
    SkippedForNow(&'a str),
}

impl RepairEvent<'_> {
    /// Returns the content of the Event. The texts about deleted pods with a failed validator
    /// are upstream's.
    pub fn message(self, found_by: FoundBy) -> EventContent {
        let reason = match found_by {
            FoundBy::Validator => "LinkerdCNINotConfigured",
            FoundBy::Audit => "LinkerdCNIRulesMissing",
        };
        let (kind, action) = match self {
            RepairEvent::Repaired(RepairMode::Delete, _) => (EventType::Normal, "Deleting"),
            RepairEvent::Repaired(RepairMode::InPlace, _) => (EventType::Normal, "Repairing"),
            // After these two the pod's traffic is still not redirected.
            RepairEvent::Repaired(RepairMode::Label, _) => (EventType::Warning, "Labelling"),
            RepairEvent::Repaired(RepairMode::Report, _) => (EventType::Warning, "Reporting"),
            RepairEvent::Skipped(_) | RepairEvent::SkippedForNow(_) => {
                (EventType::Warning, "Skipping")
            }
        };
        EventContent { kind, reason, action, note: self.note() }
    }

    /// Returns the note of the Event, which is also the log line of a skipped pod.
    pub fn note(self) -> String {
        match self {
            RepairEvent::Repaired(mode, missing) => {
                format!("{}{}", repair_note(mode), missing_suffix(missing))
            }
            RepairEvent::Skipped(why) => format!("Pod skipped: {why}"),
            RepairEvent::SkippedForNow(why) => format!("Pod skipped for now: {why}"),
        }
    }
}

fn repair_note(mode: RepairMode) -> String {
    match mode {
        RepairMode::Delete => "Deleting pod to create a new one with proper CNI config".to_owned(),
        RepairMode::InPlace => {
            "Installed the redirect rules in the pod's network namespace".to_owned()
        }
        RepairMode::Label => {
            format!("The pod's traffic is not redirected to its proxy; labelled {LABEL}=true")
        }
        RepairMode::Report => "The pod's traffic is not redirected to its proxy; delete the pod \
                               to replace it"
            .to_owned(),
    }
}

/// Counts the missing rules. Their text depends on the backend, and is in the log.
fn missing_suffix(missing: usize) -> String {
    match missing {
        0 => String::new(),
        1 => "; 1 redirect rule was missing".to_owned(),
        count => format!("; {count} redirect rules were missing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_count_the_missing_rules_and_use_upstreams_words_for_deletions() {
        let event = RepairEvent::Repaired(RepairMode::Delete, 0).message(FoundBy::Validator);
        assert_eq!(event.kind, EventType::Normal);
        assert_eq!(event.reason, "LinkerdCNINotConfigured");
        assert_eq!(event.note, "Deleting pod to create a new one with proper CNI config");
        let event = RepairEvent::Repaired(RepairMode::InPlace, 8).message(FoundBy::Audit);
        assert_eq!(event.reason, "LinkerdCNIRulesMissing");
        assert_eq!(
            event.note,
            "Installed the redirect rules in the pod's network namespace; \
             8 redirect rules were missing"
        );
    }

    #[test]
    fn a_repair_is_a_normal_event_and_a_pod_that_stays_stranded_a_warning() {
        for (mode, kind) in [
            (RepairMode::Delete, EventType::Normal),
            (RepairMode::InPlace, EventType::Normal),
            (RepairMode::Label, EventType::Warning),
            (RepairMode::Report, EventType::Warning),
        ] {
            let event = RepairEvent::Repaired(mode, 0).message(FoundBy::Validator);
            assert_eq!(event.kind, kind, "{mode:?}");
        }
    }
}
