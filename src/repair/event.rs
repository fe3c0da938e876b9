//! The Events that report to operators what happened to a pod. Pure.

use super::RepairMode;
use super::stranded_pod::{FoundBy, LABEL};
use crate::kube::event::{EventContent, EventType};

/// Why a pod that is stranded again is skipped for now, for Event and log line.
pub const REPAIRED_RECENTLY: &str = "stranded again within a minute of the repair of this \
                                     pod or of its owner's last pod; check that the CNI plugin \
                                     works on this node";

/// What happened to a pod.
#[derive(Clone, Copy, Debug)]
pub enum RepairEvent<'a> {
    /// The repair mode was applied. The missing rules; empty if the rules were not read.
    Repaired(RepairMode, &'a [String]),
    /// The pod is stranded again soon after a repair and is skipped for now.
    RepairedRecently,
    /// The pod was not repaired, for this reason.
    Skipped(&'a str),
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
            RepairEvent::Repaired(RepairMode::Label, _) => (EventType::Normal, "Labelling"),
            RepairEvent::Repaired(RepairMode::Report, _) => (EventType::Warning, "Reporting"),
            RepairEvent::RepairedRecently | RepairEvent::Skipped(_) => {
                (EventType::Warning, "Skipping")
            }
        };
        EventContent { kind, reason, action, note: self.note() }
    }

    fn note(self) -> String {
        match self {
            RepairEvent::Repaired(mode, missing) => {
                format!("{}{}", repair_note(mode), missing_suffix(missing))
            }
            RepairEvent::RepairedRecently => format!("Pod skipped for now: {REPAIRED_RECENTLY}"),
            RepairEvent::Skipped(why) => why.to_owned(),
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

/// Names the first missing rule and counts the others.
fn missing_suffix(missing: &[String]) -> String {
    match missing {
        [] => String::new(),
        [one] => format!("; missing rule: {one}"),
        [first, others @ ..] => format!("; missing rules: {first}, and {} more", others.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_name_the_first_missing_rule_and_use_upstreams_words_for_deletions() {
        let event = RepairEvent::Repaired(RepairMode::Delete, &[]).message(FoundBy::Validator);
        assert_eq!(event.kind, EventType::Normal);
        assert_eq!(event.reason, "LinkerdCNINotConfigured");
        assert_eq!(event.note, "Deleting pod to create a new one with proper CNI config");
        let missing = ["-A a".to_owned(), "-A b".to_owned()];
        let event = RepairEvent::Repaired(RepairMode::InPlace, &missing).message(FoundBy::Audit);
        assert_eq!(event.reason, "LinkerdCNIRulesMissing");
        assert!(event.note.ends_with("; missing rules: -A a, and 1 more"));
    }
}
