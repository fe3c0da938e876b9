//! Whether the last reconcile pass found the node ready, and when a node that stays not ready is
//! reported as an Event. Pure.

use std::time::{Duration, Instant};

use crate::kube::event::{EventContent, EventType};

/// Time without readiness after which an Event is posted. A start, an upgrade and a restart of the
/// API server are shorter.
const REPORT_AFTER: Duration = Duration::from_secs(5 * 60);
/// Time after which the Event is repeated: the API server deletes an Event after an hour, and an
/// Event that could not be posted is not retried.
const REPEAT_AFTER: Duration = Duration::from_secs(3600);

/// Result of the last reconcile pass, and when it is reported.
#[derive(Debug)]
pub struct NodeReadiness {
    is_ready: bool,
    /// When an Event reports that the node is not ready.
    report_at: Instant,
}

impl NodeReadiness {
    pub fn at_start(now: Instant) -> NodeReadiness {
        NodeReadiness { is_ready: false, report_at: now + REPORT_AFTER }
    }

    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Records the result of a pass. Returns the Event to post, if one is due.
    pub fn pass_finished(&mut self, not_ready: Option<&str>, now: Instant) -> Option<EventContent> {
        let is_ready = not_ready.is_none();
        if is_ready != self.is_ready {
            self.is_ready = is_ready;
            self.report_at = now + REPORT_AFTER;
        }
        let why = not_ready?;
        if now < self.report_at {
            return None;
        }
        self.report_at = now + REPEAT_AFTER;
        let minutes = REPORT_AFTER.as_secs() / 60;
        Some(EventContent {
            kind: EventType::Warning,
            reason: "LinkerdCNINotReady",
            action: "Installing",
            note: format!(
                "The linkerd-cni agent has not been ready for {minutes} minutes or more: {why}"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unready_node_is_reported_after_five_minutes_and_then_each_hour() {
        let start = Instant::now();
        let mut readiness = NodeReadiness::at_start(start);
        assert!(!readiness.is_ready());
        for (seconds, is_ready, is_reported) in [
            (299, false, false),
            (300, false, true),
            (3899, false, false),
            (3900, false, true),
            (3901, true, false),
            (3902, false, false),
            (4201, false, false),
            (4202, false, true),
        ] {
            let not_ready = if is_ready { None } else { Some("binary: missing") };
            let now = start + Duration::from_secs(seconds);
            let report = readiness.pass_finished(not_ready, now);
            assert_eq!(report.is_some(), is_reported, "at {seconds} s");
            assert_eq!(readiness.is_ready(), is_ready, "at {seconds} s");
        }
    }
}
