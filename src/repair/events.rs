//! The Events that report to operators what happened to a pod, and what an audit found on the node.

use std::time::Instant;

use super::settings::RepairMode;
use super::stranded::{FoundBy, LABEL};
use super::{CONTROLLER, Shared};
use crate::kube::connection::Connection;
use crate::kube::event::{self, EventContent, EventType, Regarding, Reporter};

/// Why a pod that is stranded again is skipped for now.
pub const REPAIRED_RECENTLY: &str = "stranded again soon after the repair of this pod or \
                                     of its owner's last pod; check that the CNI plugin works on \
                                     this node";

#[derive(Clone, Copy, Debug)]
pub enum PodEvent<'a> {
    /// The repair mode was applied. The number of missing rules; 0 if the rules were not read.
    Repaired(RepairMode, usize),
    Skipped(&'a str),
    /// The pod may be repaired later. Why not now.
    SkippedForNow(&'a str),
}

impl PodEvent<'_> {
    /// Returns the content of the Event. The texts about deleted pods with a failed validator are upstream's.
    /// Counts the missing rules: their text depends on the backend, and is in the log.
    pub fn content(self, found_by: FoundBy) -> EventContent {
        let reason = match found_by {
            FoundBy::Validator => "LinkerdCNINotConfigured",
            FoundBy::Audit => "LinkerdCNIRulesMissing",
        };
        let not_redirected = "The pod's traffic is not redirected to its proxy";
        let (kind, action, note) = match self {
            PodEvent::Skipped(why) => {
                (EventType::Warning, "Skipping", format!("Pod skipped: {why}"))
            }
            PodEvent::SkippedForNow(why) => {
                (EventType::Warning, "Skipping", format!("Pod skipped for now: {why}"))
            }
            PodEvent::Repaired(RepairMode::Delete, _) => {
                let note = "Deleting pod to create a new one with proper CNI config";
                (EventType::Normal, "Deleting", note.to_owned())
            }
            PodEvent::Repaired(RepairMode::InPlace, _) => {
                let note = "Installed the redirect rules in the pod's network namespace";
                (EventType::Normal, "Repairing", note.to_owned())
            }
            PodEvent::Repaired(RepairMode::Label, _) => {
                let note = format!("{not_redirected}; labelled {LABEL}=true");
                (EventType::Warning, "Labelling", note)
            }
            PodEvent::Repaired(RepairMode::Report, _) => {
                let note = format!("{not_redirected}; delete the pod to replace it");
                (EventType::Warning, "Reporting", note)
            }
        };
        let missing = match self {
            PodEvent::Repaired(_, 1) => "; 1 redirect rule was missing".to_owned(),
            PodEvent::Repaired(_, count @ 2..) => format!("; {count} redirect rules were missing"),
            _ => String::new(),
        };
        EventContent { kind, reason, action, note: note + &missing }
    }
}

impl Shared {
    /// Publishes an Event, or one in all of this `id`. A failure is only counted and logged. Returns
    /// whether the Event exists.
    pub fn publish(
        &self,
        connection: &mut Connection,
        regarding: Regarding<'_>,
        content: &EventContent,
        id: Option<&str>,
    ) -> bool {
        let began = Instant::now();
        let reporter = Reporter { controller: CONTROLLER, instance: &self.settings.pod_name };
        let result = match connection.client() {
            Ok(client) => event::publish(&client, reporter, regarding, content, id)
                .map_err(|error| (error.is_timeout(), error.to_string())),
            Err(error) => Err((false, error.to_string())),
        };
        let metrics = &self.metrics;
        let Err((is_timeout, error)) = result else {
            metrics.events_publish_latency.observe(began.elapsed().as_secs_f64());
            return true;
        };
        match is_timeout {
            true => metrics.events_publish_timeouts.inc(),
            false => metrics.events_publish_errors.inc(),
        };
        let Regarding { namespace, name, .. } = regarding;
        tracing::warn!(err = %error, namespace, name, "Error publishing event");
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_of_a_repair_has_upstreams_words_the_missing_rules_and_a_type() {
        let repairs = [
            (RepairMode::Delete, 0),
            (RepairMode::InPlace, 8),
            (RepairMode::Label, 1),
            (RepairMode::Report, 0),
        ];
        let events = repairs.map(|(mode, missing)| {
            let event = PodEvent::Repaired(mode, missing).content(FoundBy::Validator);
            format!("{:?} {}: {}", event.kind, event.reason, event.note)
        });
        insta::assert_snapshot!(events.join("\n"), @"
        Normal LinkerdCNINotConfigured: Deleting pod to create a new one with proper CNI config
        Normal LinkerdCNINotConfigured: Installed the redirect rules in the pod's network namespace; 8 redirect rules were missing
        Warning LinkerdCNINotConfigured: The pod's traffic is not redirected to its proxy; labelled linkerd.io/cni-stranded=true; 1 redirect rule was missing
        Warning LinkerdCNINotConfigured: The pod's traffic is not redirected to its proxy; delete the pod to replace it
        ");
    }
}
