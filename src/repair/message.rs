//! Text of the Events on repaired pods. Pure.

use super::mode::RepairMode;
use super::verdict::{Cause, LABEL};
use crate::kube::event::{EventContent, EventType};

/// What to report about a pod.
#[derive(Clone, Copy, Debug)]
pub enum PodEvent<'a> {
    /// The repair mode was applied. The missing rules; empty if the rules were not read.
    Repaired(RepairMode, &'a [String]),
    /// The pod is stranded again soon after a repair and is left for now.
    RepairedRecently,
    /// The pod was not repaired, for this reason.
    Skipped(&'a str),
}

/// Returns the Event. The texts about deleted pods with a failed validator are upstream's.
pub fn message(cause: Cause, event: PodEvent<'_>) -> EventContent {
    let reason = match cause {
        Cause::Validator => "LinkerdCNINotConfigured",
        Cause::Audit => "LinkerdCNIRulesMissing",
    };
    let (kind, action, note) = match event {
        PodEvent::Repaired(RepairMode::Delete, missing) => (
            EventType::Normal,
            "Deleting",
            format!(
                "Deleting pod to create a new one with proper CNI config{}",
                missing_suffix(missing)
            ),
        ),
        PodEvent::Repaired(RepairMode::InPlace, missing) => (
            EventType::Normal,
            "Repairing",
            format!(
                "Put the redirection rules into the pod's network namespace{}",
                missing_suffix(missing)
            ),
        ),
        PodEvent::Repaired(RepairMode::Label, missing) => (
            EventType::Normal,
            "Labelling",
            format!(
                "The pod's traffic does not reach its proxy; labelled {LABEL}=true{}",
                missing_suffix(missing)
            ),
        ),
        PodEvent::Repaired(RepairMode::Report, missing) => (
            EventType::Warning,
            "Reporting",
            format!(
                "The pod's traffic does not reach its proxy; delete the pod to have it made anew{}",
                missing_suffix(missing)
            ),
        ),
        PodEvent::RepairedRecently => (
            EventType::Warning,
            "Leaving",
            "The pod is without its redirection rules again within a minute of a repair; leaving it for now: \
             is the CNI plugin of this node working?"
                .to_owned(),
        ),
        PodEvent::Skipped(why) => (EventType::Warning, "Leaving", why.to_owned()),
    };
    EventContent { kind, reason, action, note }
}

/// Names the first missing rule and counts the others.
fn missing_suffix(missing: &[String]) -> String {
    match missing {
        [] => String::new(),
        [one] => format!("; missing was: {one}"),
        [first, others @ ..] => format!("; missing was: {first}, and {} more", others.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_name_the_missing_rules_and_match_upstream_for_deletions() {
        let event = message(Cause::Validator, PodEvent::Repaired(RepairMode::Delete, &[]));
        assert_eq!(event.kind, EventType::Normal);
        assert_eq!(event.reason, "LinkerdCNINotConfigured");
        assert_eq!(event.note, "Deleting pod to create a new one with proper CNI config");
        let missing = ["-A a".to_owned(), "-A b".to_owned()];
        let event = message(Cause::Audit, PodEvent::Repaired(RepairMode::InPlace, &missing));
        assert_eq!(event.reason, "LinkerdCNIRulesMissing");
        assert!(event.note.ends_with("; missing was: -A a, and 1 more"));
    }
}
