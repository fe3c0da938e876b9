//! Limits the rate at which records are read. Pure.
//!
//! All pods of a node may start at once, so a burst passes. A process that floods the socket must
//! neither keep the agent busy nor fill its log.

use std::time::{Duration, Instant};

/// Records that are read without a pause between them.
const BURST: u32 = 256;
/// Time between two records after such a burst.
const INTERVAL: Duration = Duration::from_millis(100);

/// Rate limit: [`BURST`] records at once, then one per [`INTERVAL`].
pub struct RateLimit {
    /// When a full burst is allowed again.
    recovered_at: Instant,
}

impl RateLimit {
    pub fn new(now: Instant) -> Self {
        RateLimit { recovered_at: now }
    }

    /// Counts one record. Returns how long to wait before reading the next.
    pub fn count(&mut self, now: Instant) -> Duration {
        self.recovered_at = self.recovered_at.max(now) + INTERVAL;
        self.recovered_at.saturating_duration_since(now + INTERVAL * BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_read_at_once_and_a_flood_at_a_steady_rate() {
        let mut now = Instant::now();
        let mut limit = RateLimit::new(now);
        for _ in 0..BURST {
            assert_eq!(limit.count(now), Duration::ZERO);
        }
        for _ in 0..10 {
            let wait = limit.count(now);
            assert_eq!(wait, INTERVAL);
            now += wait;
        }
        now += INTERVAL * BURST;
        assert_eq!(limit.count(now), Duration::ZERO);
    }
}
