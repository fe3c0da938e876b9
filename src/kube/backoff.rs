//! How long to wait before the API server is asked again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
const CAP: Duration = Duration::from_secs(30);

/// Doubles from half a second to half a minute. Jitter takes up to half of it, so
/// that a restarted API server is not asked by all nodes at once.
#[derive(Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure.
    pub fn lengthen(&mut self) -> Duration {
        let doublings = self.failures.min(16);
        self.failures = doublings + 1;
        let whole = FIRST.saturating_mul(1 << doublings).min(CAP);
        whole - jitter(whole / 2)
    }

    /// All is well again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A random time from zero to `longest`, so that nodes that wait for the same reason do
/// not all end their waits at once.
pub fn jitter(longest: Duration) -> Duration {
    // The hasher's keys are the standard library's randomness.
    let random = RandomState::new().hash_one(0);
    longest.mul_f64((random % 1025) as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_start_again_after_success() {
        let mut backoff = Backoff::default();
        for whole in [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000] {
            let wait = backoff.lengthen().as_millis();
            assert!((whole / 2..=whole).contains(&wait), "{wait} of {whole}");
        }
        for _ in 0..1000 {
            assert!(backoff.lengthen() <= CAP);
        }
        backoff.reset();
        assert!(backoff.lengthen() <= FIRST);
    }

    #[test]
    fn jitter_covers_the_whole_time_and_never_exceeds_it() {
        let whole = Duration::from_secs(1024);
        let waits: Vec<Duration> = (0..1000).map(|_| jitter(whole)).collect();
        assert!(waits.iter().all(|wait| *wait <= whole));
        for quarter in 0..4 {
            let part = whole / 4 * quarter..whole / 4 * (quarter + 1);
            let hits = waits.iter().filter(|wait| part.contains(wait)).count();
            assert!(hits > 100, "{hits} of 1000 in quarter {quarter}");
        }
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
    }
}
