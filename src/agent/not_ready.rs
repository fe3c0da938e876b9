//! Decides when a node that stays not ready is reported as an Event. Pure.

use std::time::{Duration, Instant};

use crate::kube::event::{EventContent, EventType};

/// Time without readiness after which an Event is posted. A start, an upgrade and a restart of the
/// API server are shorter.
const REPORT_AFTER: Duration = Duration::from_secs(5 * 60);
/// Time after which the Event is repeated: the API server deletes an Event after an hour, and an
/// Event that could not be posted is not retried.
const REPEAT_AFTER: Duration = Duration::from_secs(3600);

/// How long the node has not been ready.
#[derive(Debug, Default)]
pub struct NotReadyReport {
    /// When the node is reported next. `None` while it is ready.
    due: Option<Instant>,
}

impl NotReadyReport {
    /// Records the result of a pass at `now`. Returns the Event to post, if one is due.
    pub fn update(&mut self, not_ready: Option<&str>, now: Instant) -> Option<EventContent> {
        let Some(why) = not_ready else {
            self.due = None;
            return None;
        };
        let due = *self.due.get_or_insert(now + REPORT_AFTER);
        if now < due {
            return None;
        }
        self.due = Some(now + REPEAT_AFTER);
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
    fn a_node_is_reported_after_five_minutes_and_then_once_an_hour_until_it_is_ready() {
        let start = Instant::now();
        let mut report = NotReadyReport::default();
        let bad = Some("binary: missing");
        let mut posted = |seconds: u64, not_ready: Option<&str>| {
            report.update(not_ready, start + Duration::from_secs(seconds)).is_some()
        };
        assert!(!posted(0, bad));
        assert!(!posted(299, bad));
        assert!(posted(300, bad));
        assert!(!posted(3899, bad));
        assert!(posted(3900, bad));
        assert!(!posted(3901, None));
        assert!(!posted(3902, bad));
        assert!(!posted(4201, bad));
        assert!(posted(4202, bad));
    }
}
