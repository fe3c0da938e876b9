//! The Events that report to operators what happened to a pod, and what an audit found on the node.

use std::time::Instant;

use super::find::stranded::FoundBy;
use super::settings::RepairMode;
use super::{CONTROLLER, Shared};
use crate::kube::connection::Connection;
use crate::kube::event::{self, EventContent, EventType, Regarding, Reporter};

pub const REPAIRED_RECENTLY: &str = "stranded again soon after the repair of this pod or \
                                     of its owner's last pod; check that the CNI plugin works on \
                                     this node";

/// Returns the Event on a pod to which the mode was applied. Counts the missing rules, if they were read:
/// their text depends on the backend, and is in the log. The texts about deleted pods with a failed
/// validator are upstream's.
pub fn repaired(mode: RepairMode, found_by: FoundBy, missing: usize) -> EventContent {
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
    EventContent { kind, reason: reason(found_by), action, note: note + &missing }
}

pub fn skipped(found_by: FoundBy, why: &str) -> EventContent {
    let note = format!("Pod skipped for now: {why}");
    EventContent { kind: EventType::Warning, reason: reason(found_by), action: "Skipping", note }
}

fn reason(found_by: FoundBy) -> &'static str {
    match found_by {
        FoundBy::Validator => "LinkerdCNINotConfigured",
        FoundBy::Audit => "LinkerdCNIRulesMissing",
    }
}

impl Shared {
    /// Publishes an Event. A failure is only counted and logged.
    pub fn publish(
        &self,
        connection: &mut Connection,
        regarding: Regarding<'_>,
        content: &EventContent,
    ) {
        let began = Instant::now();
        let reporter = Reporter { controller: CONTROLLER, instance: &self.settings.pod_name };
        let result = match connection.client() {
            Ok(client) => event::publish(&client, reporter, regarding, content)
                .map_err(|error| (error.is_timeout(), error.to_string())),
            Err(error) => Err((false, error.to_string())),
        };
        let metrics = &self.metrics;
        let Err((is_timeout, error)) = result else {
            return metrics.events_publish_latency_seconds.observe(began.elapsed().as_secs_f64());
        };
        let counter = match is_timeout {
            true => &metrics.events_publish_timeouts,
            false => &metrics.events_publish_errors,
        };
        counter.inc();
        let Regarding { namespace, name, .. } = regarding;
        tracing::warn!(err = error, namespace, name, "Error publishing event");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_of_a_repair_has_upstreams_words_the_missing_rules_and_a_type() {
        let repairs = [(RepairMode::Delete, 0), (RepairMode::InPlace, 8), (RepairMode::Report, 1)];
        let events = repairs.map(|(mode, missing)| {
            let event = repaired(mode, FoundBy::Validator, missing);
            format!("{:?} {}: {}", event.kind, event.reason, event.note)
        });
        insta::assert_snapshot!(events.join("\n"), @"
        Normal LinkerdCNINotConfigured: Deleting pod to create a new one with proper CNI config
        Normal LinkerdCNINotConfigured: Installed the redirect rules in the pod's network namespace; 8 redirect rules were missing
        Warning LinkerdCNINotConfigured: The pod's traffic is not redirected to its proxy; delete the pod to replace it; 1 redirect rule was missing
        ");
    }
}
