//! Waits between the requests of the watch and of the audit. A restart of the API server
//! ends the watches of all nodes at once. Without jitter and back-off all nodes would list
//! their pods in the same second, again and again.

use std::time::{Duration, Instant};

use crate::kube::backoff::jitter;

/// The first retries of all nodes are spread over this time.
const SPREAD: Duration = Duration::from_secs(5);

/// Longest wait between two attempts while the pods are not watched.
const RETRY_CAP: Duration = Duration::from_secs(30);

/// Longest time, before jitter, from one list to the next for pods that were missed.
const RELIST_CAP: Duration = Duration::from_secs(300);

/// Time without a list after which the back-off is reset.
const CALM: Duration = Duration::from_secs(600);

/// Back-off: the first wait is random, up to 5 s. Later waits start at 5 s, double up to a
/// cap, and are shortened by up to half at random.
pub struct Pace {
    cap: Duration,
    failures: u32,
}

impl Pace {
    /// For retries of a failed list, watch or audit: up to 30 s.
    pub fn retries() -> Self {
        Pace { cap: RETRY_CAP, failures: 0 }
    }

    /// Returns the wait after one more failure.
    pub fn lengthen(&mut self) -> Duration {
        let failures = self.failures;
        self.failures = failures.saturating_add(1).min(16);
        let Some(doublings) = failures.checked_sub(1) else {
            return jitter(SPREAD);
        };
        let full_wait = SPREAD.saturating_mul(1 << doublings).min(self.cap);
        full_wait - jitter(full_wait / 2)
    }

    /// Starts again with the first wait.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Limits how often the pods are listed again because some were missed: a pod whose
/// repair always fails must not cause an endless series of lists.
pub struct Relist {
    pace: Pace,
    last_list: Option<Instant>,
    not_before: Instant,
}

impl Relist {
    pub fn new(now: Instant) -> Self {
        Relist { pace: Pace { cap: RELIST_CAP, failures: 0 }, last_list: None, not_before: now }
    }

    /// Records a list at `now`.
    pub fn listed(&mut self, now: Instant) {
        if self.last_list.is_none_or(|last| now - last >= CALM) {
            self.pace.reset();
        }
        self.last_list = Some(now);
        self.not_before = now + self.pace.lengthen();
    }

    /// Whether another list is allowed at `now`.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.not_before
    }
}

/// Returns a random `timeoutSeconds` for a watch, from 300 to 600 s, so that watches of
/// many nodes that begin together do not end together.
pub fn watch_time() -> Duration {
    let extra = jitter(Duration::from_secs(300));
    Duration::from_secs(300 + extra.as_secs())
}

/// Returns `period`, shortened or lengthened by up to a tenth at random.
pub fn vary(period: Duration) -> Duration {
    period - period / 10 + jitter(period / 5)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_retries_are_spread_over_5_s_and_later_ones_back_off_to_30_s() {
        let firsts: Vec<Duration> = (0..500).map(|_| Pace::retries().lengthen()).collect();
        assert!(firsts.iter().all(|first| *first <= 5 * SECOND));
        for second in 0..5 {
            let part = SECOND * second..SECOND * (second + 1);
            let nodes = firsts.iter().filter(|first| part.contains(first)).count();
            assert!((50..200).contains(&nodes), "{nodes} of 500 in {part:?}");
        }
        let mut pace = Pace::retries();
        pace.lengthen();
        for whole in [5, 10, 20, 30, 30] {
            let wait = pace.lengthen();
            let whole = SECOND * whole;
            assert!(whole / 2 <= wait && wait <= whole, "{wait:?} of {whole:?}");
        }
        for _ in 0..100 {
            assert!(pace.lengthen() <= 30 * SECOND);
        }
        pace.reset();
        assert!(pace.lengthen() <= 5 * SECOND);
    }

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
    fn watches_end_after_five_to_ten_minutes_and_not_together() {
        let times: BTreeSet<u64> = (0..1000).map(|_| watch_time().as_secs()).collect();
        assert!(*times.first().unwrap() >= 300 && *times.last().unwrap() <= 600);
        assert!(times.len() > 200, "{} different times", times.len());
    }

    #[test]
    fn a_period_varies_by_a_tenth() {
        for _ in 0..1000 {
            let period = vary(100 * SECOND);
            assert!((90 * SECOND..=110 * SECOND).contains(&period), "{period:?}");
        }
    }
}
