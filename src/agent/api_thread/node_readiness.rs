//! Whether the last reconcile pass found the node ready, and when a node that stays not ready is
//! reported as an Event. Pure but for the jitter: a faulty value or an outage makes all nodes of a
//! cluster unready at the same time.

use std::time::{Duration, Instant};

use crate::backoff::between;
use crate::kube::event::{EventContent, EventType};

/// Shortest and longest time without readiness after which an Event is posted. A start, an upgrade
/// and a restart of the API server are shorter.
const REPORT_AFTER: [Duration; 2] = [Duration::from_secs(5 * 60), Duration::from_secs(10 * 60)];
/// Shortest and longest time after which the Event is repeated: the API server deletes an Event
/// after an hour, and an Event that could not be posted is not retried.
const REPEAT_AFTER: [Duration; 2] = [Duration::from_secs(45 * 60), Duration::from_secs(60 * 60)];

/// Result of the last reconcile pass, and when it is reported.
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

    /// Records the result of a pass. Returns the Event to post, if one is due.
    pub fn pass_finished(&mut self, not_ready: Option<&str>, now: Instant) -> Option<EventContent> {
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

    /// Returns the second at which a node that stays not ready is reported, from the second `from`.
    fn reported_at(readiness: &mut NodeReadiness, start: Instant, from: u64) -> u64 {
        for second in from.. {
            let now = start + Duration::from_secs(second);
            if readiness.pass_finished(Some("binary: missing"), now).is_some() {
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
        // A pass between them finds the node ready.
        let ready = second + 1;
        assert!(readiness.pass_finished(None, start + Duration::from_secs(ready)).is_none());
        assert!(readiness.is_ready());
        let third = reported_at(&mut readiness, start, ready + 1);
        assert!((300..=601).contains(&(third - ready - 1)), "{ready}, {third}");
        assert!(!readiness.is_ready());
    }

    /// A faulty value of the chart: all nodes become unready within seconds.
    #[test]
    fn the_nodes_of_a_cluster_are_not_reported_at_the_same_time() {
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
