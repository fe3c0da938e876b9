//! How many acts a minute may have: a boot that strands a whole node must not become a
//! burst of deletions that its owners cannot follow. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(60);

/// At most so many acts in any minute.
pub struct Rate {
    most: usize,
    acts: VecDeque<Instant>,
}

impl Rate {
    /// `most` is also the number of acts that are remembered.
    pub fn new(most: u16) -> Self {
        Rate {
            most: usize::from(most.max(1)),
            acts: VecDeque::new(),
        }
    }

    /// How long the next act has to wait at `now`.
    pub fn wait(&mut self, now: Instant) -> Duration {
        while self.acts.front().is_some_and(|&act| act + WINDOW <= now) {
            self.acts.pop_front();
        }
        match self.acts.front() {
            Some(&oldest) if self.acts.len() >= self.most => (oldest + WINDOW) - now,
            _ => Duration::ZERO,
        }
    }

    /// Counts an act at `now`.
    pub fn spend(&mut self, now: Instant) {
        self.acts.push_back(now);
        if self.acts.len() > self.most {
            self.acts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_minute_has_more_acts_than_allowed() {
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        let mut rate = Rate::new(2);
        for (now, wait) in [(0, 0), (10, 0), (20, 40), (60, 0), (61, 9), (70, 0)] {
            let expected = Duration::from_secs(wait);
            assert_eq!(rate.wait(second(now)), expected, "at {now}");
            if wait == 0 {
                rate.spend(second(now));
            }
        }
    }

    #[test]
    fn memory_is_bounded_by_the_rate() {
        let mut rate = Rate::new(3);
        for _ in 0..100 {
            rate.spend(Instant::now());
        }
        assert_eq!(rate.acts.len(), 3);
    }
}
