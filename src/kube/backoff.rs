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
        // The hasher's keys are the standard library's randomness.
        let random = RandomState::new().hash_one(doublings);
        whole - whole / 2 * (random % 1024) as u32 / 1024
    }

    /// All is well again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
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
}
