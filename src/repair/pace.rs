//! Waits between the requests of the watch and of the audit. A restart of the API server
//! ends the watches of all nodes at once. Without jitter and backoff all nodes would list
//! their pods in the same second, again and again.

use std::time::{Duration, Instant};

use crate::backoff::{Backoff, between};

/// The first retries of all nodes are spread over this time.
const SPREAD: Duration = Duration::from_secs(5);

/// Maximum delay between two attempts to list, watch or audit.
const RETRY_CAP: Duration = Duration::from_secs(30);

/// Maximum delay, before jitter, between two lists for unrepaired pods.
const RELIST_CAP: Duration = Duration::from_secs(300);

/// Shortest `timeoutSeconds` of a watch; the longest is twice as long. The API server uses the same
/// times for watches without `timeoutSeconds`.
///
/// An idle node sends less than one request in 5 minutes, the agent's requests included. With
/// watches of 5 to 10 minutes, as client-go has them, it would send 1.3.
const WATCH_TIME: Duration = Duration::from_secs(1800);

/// Time without a list after which the backoff is reset.
const CALM: Duration = Duration::from_secs(600);

/// Waits between retries of a failed list, watch or audit.
pub fn retries() -> Backoff {
    Backoff::spread([SPREAD, RETRY_CAP])
}

/// Limits how often the pods are listed again because some were not repaired: a pod whose
/// repair always fails must not cause an endless series of lists.
pub struct Relist {
    backoff: Backoff,
    last_list: Option<Instant>,
    not_before: Instant,
}

impl Relist {
    pub fn new(now: Instant) -> Self {
        let backoff = Backoff::spread([SPREAD, RELIST_CAP]);
        Relist { backoff, last_list: None, not_before: now }
    }

    /// Records a list at `now`.
    pub fn listed(&mut self, now: Instant) {
        if self.last_list.is_none_or(|last| now - last >= CALM) {
            self.backoff.reset();
        }
        self.last_list = Some(now);
        self.not_before = now + self.backoff.next_delay();
    }

    /// Whether another list is allowed at `now`.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.not_before
    }
}

/// Returns a random `timeoutSeconds` for a watch, from 30 to 60 minutes, so that watches of
/// many nodes that begin together do not end together.
pub fn watch_time() -> Duration {
    Duration::from_secs(between(WATCH_TIME, 2 * WATCH_TIME).as_secs())
}

/// Returns `period`, shortened or lengthened by up to a tenth at random.
pub fn vary(period: Duration) -> Duration {
    between(period * 9 / 10, period * 11 / 10)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn lists_for_missed_pods_back_off_until_a_calm_time_resets_them() {
        let mut now = Instant::now();
        let mut relist = Relist::new(now);
        assert!(relist.is_due(now), "nothing was listed yet");
        for whole in [5, 5, 10, 20, 40, 80, 160, 300, 300] {
            relist.listed(now);
            let whole = SECOND * whole;
            assert!(relist.is_due(now + whole), "after {whole:?}");
            if whole > 5 * SECOND {
                assert!(!relist.is_due(now + whole / 2 - SECOND), "{whole:?}");
            }
            now += whole;
        }
        now += CALM;
        relist.listed(now);
        assert!(relist.is_due(now + 5 * SECOND));
    }

    #[test]
    fn watches_end_after_thirty_to_sixty_minutes_and_not_together() {
        let times: BTreeSet<u64> = (0..1000).map(|_| watch_time().as_secs()).collect();
        assert!(*times.first().unwrap() >= 1800 && *times.last().unwrap() <= 3600);
        assert!(times.len() > 600, "{} different times", times.len());
    }

    #[test]
    fn the_watch_sends_an_eighth_of_the_requests_that_an_idle_node_may_send() {
        let span: Duration = (0..10_000).map(|_| watch_time()).sum();
        let in_five_minutes = 300.0 * 10_000.0 / span.as_secs_f64();
        assert!(in_five_minutes < 0.125, "{in_five_minutes} in 5 minutes");
    }

    #[test]
    fn a_period_varies_by_a_tenth() {
        for _ in 0..1000 {
            let period = vary(100 * SECOND);
            assert!((90 * SECOND..=110 * SECOND).contains(&period), "{period:?}");
        }
    }
}
