//! How fast records are read: a whole node's pods may start at once, but nobody may
//! keep the agent busy, or fill its log. Pure.

use std::time::{Duration, Instant};

/// What may come at once,
const BURST: u32 = 256;
/// and then one in this time.
const EACH: Duration = Duration::from_millis(100);

pub struct Pace {
    /// When everything read so far is paid for.
    paid: Instant,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Pace { paid: now }
    }

    /// Counts one record at `now`, and says how long to wait before the next.
    pub fn spend(&mut self, now: Instant) -> Duration {
        self.paid = self.paid.max(now) + EACH;
        self.paid.saturating_duration_since(now + EACH * BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_through_at_once_and_a_flood_at_a_steady_pace() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        for _ in 0..BURST {
            assert_eq!(pace.spend(now), Duration::ZERO);
        }
        for _ in 0..10 {
            let wait = pace.spend(now);
            assert_eq!(wait, EACH);
            now += wait;
        }
        now += EACH * BURST;
        assert_eq!(pace.spend(now), Duration::ZERO);
    }
}
