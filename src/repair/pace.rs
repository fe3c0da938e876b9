//! Waits between the requests of the watch and of the audit. A restart of the API server
//! hits all nodes at once: without jitter and back-off all of them would list their pods
//! in the same second, again and again.

use std::time::{Duration, Instant};

use crate::kube::backoff::jitter;

/// The first retries of all nodes are spread over this time.
const SPREAD: Duration = Duration::from_secs(5);

/// Longest wait between two attempts while the pods are not watched.
const RETRY_CAP: Duration = Duration::from_secs(30);

/// Longest time, before jitter, from one list to the next for pods that were missed.
const RELIST_CAP: Duration = Duration::from_secs(300);

/// Lists further apart than this are unrelated, so that the back-off starts anew.
const CALM: Duration = Duration::from_secs(600);

/// Waits that start with a random part of 5 s and double up to a cap. Jitter takes away
/// up to half of each.
pub struct Pace {
    cap: Duration,
    failures: u32,
}

impl Pace {
    pub fn retries() -> Self {
        Pace {
            cap: RETRY_CAP,
            failures: 0,
        }
    }

    /// Returns the wait after one more failure.
    pub fn lengthen(&mut self) -> Duration {
        let failures = self.failures;
        self.failures = failures.saturating_add(1).min(16);
        let Some(doublings) = failures.checked_sub(1) else {
            return jitter(SPREAD);
        };
        let whole = SPREAD.saturating_mul(1 << doublings).min(self.cap);
        whole - jitter(whole / 2)
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Limits how often the pods are listed again because some were missed: a pod whose
/// repair always fails must not cause one list after the other.
pub struct Relist {
    pace: Pace,
    listed: Option<Instant>,
    not_before: Instant,
}

impl Relist {
    pub fn new(now: Instant) -> Self {
        Relist {
            pace: Pace {
                cap: RELIST_CAP,
                failures: 0,
            },
            listed: None,
            not_before: now,
        }
    }

    /// Records a list at `now`.
    pub fn listed(&mut self, now: Instant) {
        if self.listed.is_none_or(|last| now - last >= CALM) {
            self.pace.reset();
        }
        self.listed = Some(now);
        self.not_before = now + self.pace.lengthen();
    }

    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.not_before
    }
}

/// Returns a random `timeoutSeconds` for a watch, so that the watches of all nodes, once
/// begun together, do not end together.
pub fn watch_time() -> Duration {
    let extra = jitter(Duration::from_secs(300));
    Duration::from_secs(300 + extra.as_secs())
}

/// Returns `period`, up to a tenth shorter or longer.
pub fn vary(period: Duration) -> Duration {
    period - period / 10 + jitter(period / 5)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn retries_are_spread_first_and_then_back_off_to_half_a_minute() {
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
    fn lists_for_missed_pods_back_off_and_start_anew_after_a_calm_time() {
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
