//! Delays between retries of API requests.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Longest delay after the first failure.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// Longest delay after any failure.
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// Exponential backoff from 0.5 s to 30 s. Each delay is shortened by up to half at random, so that
/// not all nodes send requests to a restarted API server at the same time.
#[derive(Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the delay after one more failure.
    pub fn next_delay(&mut self) -> Duration {
        let doublings = self.failures.min(16);
        self.failures = doublings + 1;
        let whole = FIRST_DELAY.saturating_mul(1 << doublings).min(LONGEST_DELAY);
        whole - jitter(whole / 2)
    }

    /// Starts again with the shortest delay, after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Returns a random time from zero to `longest`, so that nodes that wait for the same reason do
/// not all stop waiting at once.
pub fn jitter(longest: Duration) -> Duration {
    // The keys of a new hasher are random. The standard library has no other source.
    let random = RandomState::new().hash_one(0);
    longest.mul_f64((random % 1025) as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_restart_after_success() {
        let mut backoff = Backoff::default();
        for whole in [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000] {
            let wait = backoff.next_delay().as_millis();
            assert!((whole / 2..=whole).contains(&wait), "{wait} of {whole}");
        }
        for _ in 0..1000 {
            assert!(backoff.next_delay() <= LONGEST_DELAY);
        }
        backoff.reset();
        assert!(backoff.next_delay() <= FIRST_DELAY);
    }

    #[test]
    fn jitter_covers_the_whole_range_and_never_exceeds_it() {
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
