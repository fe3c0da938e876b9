//! Remembers whether the last reconcile pass found the node ready, and decides when an Event
//! reports that the node stays not ready. Pure but for the jitter, which spreads the Events: a
//! faulty value of the chart or an outage makes all nodes of a cluster unready at the same time.

use std::time::{Duration, Instant};

use crate::backoff::between;
use crate::kube::event::{EventContent, EventType};

/// Shortest and longest time without readiness after which an Event is posted. The time is long
/// enough for a start, an upgrade and a restart of the API server, which are not reported.
const REPORT_AFTER: [Duration; 2] = [Duration::from_secs(5 * 60), Duration::from_secs(10 * 60)];
/// Shortest and longest time after which the Event is repeated. It is repeated because the API
/// server deletes an Event after an hour, and because the agent drops an Event that it cannot post.
const REPEAT_AFTER: [Duration; 2] = [Duration::from_secs(45 * 60), Duration::from_secs(60 * 60)];

/// Whether the node was ready in the last reconcile pass, and when an Event is due.
#[derive(Debug)]
pub struct NodeReadiness {
    is_ready: bool,
    /// When an Event reports that the node is not ready.
    report_at: Instant,
}

impl NodeReadiness {
    pub fn at_start(now: Instant) -> NodeReadiness {
        NodeReadiness {
            is_ready: false,
            report_at: now + between(REPORT_AFTER[0], REPORT_AFTER[1]),
        }
    }

    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Records the result of a pass: why the node is not ready, or `None` if it is. Returns the
    /// Event to post, if one is due.
    pub fn record_pass(&mut self, not_ready: Option<&str>, now: Instant) -> Option<EventContent> {
        let is_ready = not_ready.is_none();
        if is_ready != self.is_ready {
            self.is_ready = is_ready;
            self.report_at = now + between(REPORT_AFTER[0], REPORT_AFTER[1]);
        }
        let why = not_ready?;
        if now < self.report_at {
            return None;
        }
        self.report_at = now + between(REPEAT_AFTER[0], REPEAT_AFTER[1]);
        let minutes = REPORT_AFTER[0].as_secs() / 60;
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
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the second after `start` in which an Event is due, from the second `from` on, if the
    /// node is not ready in any pass.
    fn reported_at(readiness: &mut NodeReadiness, start: Instant, from: u64) -> u64 {
        for second in from.. {
            let now = start + Duration::from_secs(second);
            if readiness.record_pass(Some("binary: missing"), now).is_some() {
                return second;
            }
        }
        unreachable!("an unready node is reported")
    }

    #[test]
    fn unready_node_is_reported_after_five_to_ten_minutes_and_within_each_hour() {
        let start = Instant::now();
        let mut readiness = NodeReadiness::at_start(start);
        assert!(!readiness.is_ready());
        let first = reported_at(&mut readiness, start, 0);
        assert!((300..=600).contains(&first), "{first}");
        let second = reported_at(&mut readiness, start, first + 1);
        assert!((2700..=3601).contains(&(second - first)), "{first}, {second}");
        // Then a pass finds the node ready, and the time without readiness starts anew.
        let ready = second + 1;
        assert!(readiness.record_pass(None, start + Duration::from_secs(ready)).is_none());
        assert!(readiness.is_ready());
        let third = reported_at(&mut readiness, start, ready + 1);
        assert!((300..=601).contains(&(third - ready - 1)), "{ready}, {third}");
        assert!(!readiness.is_ready());
    }

    /// A faulty value of the chart: all nodes become unready within seconds.
    #[test]
    fn nodes_that_become_unready_together_are_reported_at_different_times() {
        let start = Instant::now();
        let mut seconds = BTreeSet::new();
        for _ in 0..100 {
            let mut readiness = NodeReadiness::at_start(start);
            let first = reported_at(&mut readiness, start, 0);
            seconds.insert((first, reported_at(&mut readiness, start, first + 1) - first));
        }
        let (firsts, repeats): (BTreeSet<_>, BTreeSet<_>) = seconds.into_iter().unzip();
        assert!(firsts.len() > 50 && repeats.len() > 50, "{firsts:?} {repeats:?}");
    }
}
