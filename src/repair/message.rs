//! What pods' owners are told, as Events. Pure.

use super::mode::Mode;
use super::verdict::{Cause, LABEL};
use crate::kube::event::{EventType, Message};

/// What has become of a pod.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// It was dealt with as the mode says. The rules that were missing, if known.
    Done(Mode, &'a [String]),
    /// It was dealt with a moment ago and is stranded again.
    Held,
    /// It is left as it is, for this reason.
    Left(&'a str),
}

/// The event's words. Those on deleting a stranded pod are upstream's.
pub fn message(cause: Cause, told: Told<'_>) -> Message {
    let reason = match cause {
        Cause::Validator => "LinkerdCNINotConfigured",
        Cause::Audit => "LinkerdCNIRulesMissing",
    };
    let (kind, action, note) = match told {
        Told::Done(Mode::Delete, missing) => (
            EventType::Normal,
            "Deleting",
            format!(
                "Deleting pod to create a new one with proper CNI config{}",
                listed(missing)
            ),
        ),
        Told::Done(Mode::InPlace, missing) => (
            EventType::Normal,
            "Repairing",
            format!(
                "Put the redirection rules into the pod's network namespace{}",
                listed(missing)
            ),
        ),
        Told::Done(Mode::Label, missing) => (
            EventType::Normal,
            "Labelling",
            format!(
                "The pod's traffic does not reach its proxy; labelled {LABEL}=true{}",
                listed(missing)
            ),
        ),
        Told::Done(Mode::Report, missing) => (
            EventType::Warning,
            "Reporting",
            format!(
                "The pod's traffic does not reach its proxy; delete the pod to have it made anew{}",
                listed(missing)
            ),
        ),
        Told::Held => (
            EventType::Warning,
            "Leaving",
            "The pod is without its redirection rules again within a minute of a repair; leaving it for now: \
             is the CNI plugin of this node working?"
                .to_owned(),
        ),
        Told::Left(why) => (EventType::Warning, "Leaving", why.to_owned()),
    };
    Message {
        kind,
        reason,
        action,
        note,
    }
}

fn listed(missing: &[String]) -> String {
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
    fn events_name_what_was_missing_and_stay_upstreams_for_its_mode() {
        let told = message(Cause::Validator, Told::Done(Mode::Delete, &[]));
        assert_eq!(told.kind, EventType::Normal);
        assert_eq!(told.reason, "LinkerdCNINotConfigured");
        assert_eq!(
            told.note,
            "Deleting pod to create a new one with proper CNI config"
        );
        let missing = ["-A a".to_owned(), "-A b".to_owned()];
        let told = message(Cause::Audit, Told::Done(Mode::InPlace, &missing));
        assert_eq!(told.reason, "LinkerdCNIRulesMissing");
        assert!(told.note.ends_with("; missing was: -A a, and 1 more"));
    }
}
