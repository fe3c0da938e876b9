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

/// What happened to a pod.
#[derive(Clone, Copy, Debug)]
pub enum PodEvent<'a> {
    /// The repair mode was applied. The number of missing rules; 0 if the rules were not read.
    Repaired(RepairMode, usize),
    Skipped(&'a str),
    /// The pod may be repaired later. Why not now.
    SkippedForNow(&'a str),
}

impl PodEvent<'_> {
    /// Returns the content of the Event. The texts about deleted pods with a failed validator
    /// are upstream's.
    pub fn content(self, found_by: FoundBy) -> EventContent {
        let reason = match found_by {
            FoundBy::Validator => "LinkerdCNINotConfigured",
            FoundBy::Audit => "LinkerdCNIRulesMissing",
        };
        let (kind, action) = match self {
            PodEvent::Repaired(RepairMode::Delete, _) => (EventType::Normal, "Deleting"),
            PodEvent::Repaired(RepairMode::InPlace, _) => (EventType::Normal, "Repairing"),
            // After these two the pod's traffic is still not redirected.
            PodEvent::Repaired(RepairMode::Label, _) => (EventType::Warning, "Labelling"),
            PodEvent::Repaired(RepairMode::Report, _) => (EventType::Warning, "Reporting"),
            PodEvent::Skipped(_) | PodEvent::SkippedForNow(_) => (EventType::Warning, "Skipping"),
        };
        EventContent { kind, reason, action, note: self.note() }
    }

    /// Returns the note of the Event, which is also the log line of a skipped pod. Counts the missing
    /// rules: their text depends on the backend, and is in the log.
    pub fn note(self) -> String {
        let not_redirected = "The pod's traffic is not redirected to its proxy";
        let (mode, missing) = match self {
            PodEvent::Repaired(mode, missing) => (mode, missing),
            PodEvent::Skipped(why) => return format!("Pod skipped: {why}"),
            PodEvent::SkippedForNow(why) => return format!("Pod skipped for now: {why}"),
        };
        let repair = match mode {
            RepairMode::Delete => {
                "Deleting pod to create a new one with proper CNI config".to_owned()
            }
            RepairMode::InPlace => {
                "Installed the redirect rules in the pod's network namespace".to_owned()
            }
            RepairMode::Label => format!("{not_redirected}; labelled {LABEL}=true"),
            RepairMode::Report => format!("{not_redirected}; delete the pod to replace it"),
        };
        match missing {
            0 => repair,
            1 => format!("{repair}; 1 redirect rule was missing"),
            count => format!("{repair}; {count} redirect rules were missing"),
        }
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
