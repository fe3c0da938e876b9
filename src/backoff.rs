//! Delays between retries, rate limits, and random times that keep the nodes of a cluster from
//! sending requests together. Pure but for the random numbers.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// First and longest delay of a backoff.
pub type Limits = [Duration; 2];

/// Delays that grow with each failure, as [`delay`] returns them.
#[derive(Debug)]
pub struct Backoff {
    limits: Limits,
    /// Whether the first delay is random, see [`Backoff::spread`].
    is_first_random: bool,
    failures: u32,
}

impl Backoff {
    pub fn new(limits: Limits) -> Self {
        Backoff { limits, is_first_random: false, failures: 0 }
    }

    /// Makes a backoff for failures that hit all nodes at the same moment, such as a restart of the
    /// API server. Its first delay is a random time from zero to the first limit, so that the nodes
    /// do not retry together. The delays of [`Backoff::new`] follow.
    pub fn spread(limits: Limits) -> Self {
        Backoff { is_first_random: true, ..Backoff::new(limits) }
    }

    /// Counts a failure, and returns the delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        let earlier_failures = self.failures;
        self.failures = earlier_failures.saturating_add(1);
        if !self.is_first_random {
            return delay(self.limits, earlier_failures);
        }
        if earlier_failures == 0 {
            let [first, _] = self.limits;
            return jitter(first);
        }
        delay(self.limits, earlier_failures - 1)
    }

    /// Starts again with the first delay, after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Allows a burst at once, then one action in each interval.
#[derive(Debug)]
pub struct RateLimit {
    interval: Duration,
    /// How long before [`RateLimit::recovered_at`] the first single action is allowed.
    burst_time: Duration,
    /// When a full burst is allowed again.
    recovered_at: Instant,
}

impl RateLimit {
    pub fn new(interval: Duration, burst: u32, now: Instant) -> Self {
        RateLimit { interval, burst_time: interval * (burst - 1), recovered_at: now }
    }

    /// Returns when the next action is allowed.
    pub fn due(&self) -> Instant {
        self.recovered_at.checked_sub(self.burst_time).unwrap_or(self.recovered_at)
    }

    /// Counts an action that is done now.
    pub fn count(&mut self, now: Instant) {
        self.recovered_at = self.recovered_at.max(now) + self.interval;
    }

    /// Allows no action before `end`, and at `end` only one action instead of a burst.
    pub fn exhaust_until(&mut self, end: Instant) {
        self.recovered_at = self.recovered_at.max(end + self.burst_time);
    }
}

/// Returns the delay after a failure that follows `earlier_failures` other failures. The delay
/// doubles with each failure from the first to the longest one, and is shortened by up to two
/// fifths at random.
pub fn delay([first, longest]: Limits, earlier_failures: u32) -> Duration {
    let full_delay = first.saturating_mul(1 << earlier_failures.min(16)).min(longest);
    between(full_delay * 3 / 5, full_delay)
}

/// Returns a random time from zero to `longest`.
pub fn jitter(longest: Duration) -> Duration {
    between(Duration::ZERO, longest)
}

/// Returns a random time from `low` to `high`.
pub fn between(low: Duration, high: Duration) -> Duration {
    // The keys of a new hasher are random, and the standard library has no other source of random
    // numbers. All 32 bits are used, because with fewer values many nodes would choose the same
    // time.
    let random = RandomState::new().hash_one(0) as u32;
    low + high.saturating_sub(low).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = [Duration::from_millis(500), Duration::from_secs(30)];

    #[test]
    fn delays_double_up_to_the_longest_and_restart_after_success() {
        let mut backoff = Backoff::new(LIMITS);
        for full_delay in [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000] {
            let delay = backoff.next_delay().as_millis();
            assert!((full_delay * 3 / 5..=full_delay).contains(&delay), "{delay} of {full_delay}");
        }
        for _ in 0..1000 {
            assert!(backoff.next_delay() <= LIMITS[1]);
        }
        backoff.reset();
        assert!(backoff.next_delay() <= LIMITS[0]);
    }

    #[test]
    fn first_retries_spread_over_5_s_and_later_ones_back_off() {
        const SECOND: Duration = Duration::from_secs(1);
        const LIMITS: Limits = [Duration::from_secs(5), Duration::from_secs(30)];
        for _ in 0..500 {
            assert!(Backoff::spread(LIMITS).next_delay() <= 5 * SECOND);
        }
        let mut backoff = Backoff::spread(LIMITS);
        backoff.next_delay();
        for seconds in [5, 10, 20, 30, 30] {
            let delay = backoff.next_delay();
            let full_delay = SECOND * seconds;
            assert!(full_delay / 2 <= delay && delay <= full_delay, "{delay:?} of {full_delay:?}");
        }
        for _ in 0..100 {
            assert!(backoff.next_delay() <= 30 * SECOND);
        }
        backoff.reset();
        assert!(backoff.next_delay() <= 5 * SECOND);
    }

    #[test]
    fn jitter_covers_the_whole_range_and_never_exceeds_it() {
        let longest = Duration::from_secs(1024);
        let waits: Vec<Duration> = (0..1000).map(|_| jitter(longest)).collect();
        assert!(waits.iter().all(|wait| *wait <= longest));
        for quarter in 0..4 {
            let part = longest / 4 * quarter..longest / 4 * (quarter + 1);
            let hits = waits.iter().filter(|wait| part.contains(*wait)).count();
            assert!(hits > 100, "{hits} of 1000 in quarter {quarter}");
        }
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_rate_limit_allows_a_burst_and_then_one_action_an_interval() {
        const INTERVAL: Duration = Duration::from_millis(100);
        let now = Instant::now();
        let mut limit = RateLimit::new(INTERVAL, 256, now);
        for _ in 0..256 {
            assert!(limit.due() <= now);
            limit.count(now);
        }
        assert_eq!(limit.due(), now + INTERVAL);
        let recovered = now + INTERVAL * 256;
        limit.count(recovered);
        assert!(limit.due() <= recovered);
        limit.exhaust_until(recovered + INTERVAL);
        assert_eq!(limit.due(), recovered + INTERVAL);
    }
}
