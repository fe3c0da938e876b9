//! The repair budget: limits the repairs per minute, so that the controller does not delete
//! all pods of a node at once after a boot that stranded them. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time in which the repairs are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// Allows a fixed number of repairs in any period of 60 s.
pub struct RepairBudget {
    repairs_per_minute: usize,
    /// Times of the newest repairs, oldest first.
    spent: VecDeque<Instant>,
}

impl RepairBudget {
    /// Creates a budget; 0 counts as 1. Stores at most `repairs_per_minute` timestamps.
    pub fn new(repairs_per_minute: u16) -> Self {
        RepairBudget {
            repairs_per_minute: usize::from(repairs_per_minute.max(1)),
            spent: VecDeque::new(),
        }
    }

    /// Returns how long the next repair has to wait from `now` on.
    pub fn wait(&mut self, now: Instant) -> Duration {
        while self.spent.front().is_some_and(|&at| at + WINDOW <= now) {
            self.spent.pop_front();
        }
        match self.spent.front() {
            Some(&oldest) if self.spent.len() >= self.repairs_per_minute => (oldest + WINDOW) - now,
            _ => Duration::ZERO,
        }
    }

    /// Records a repair at `now`.
    pub fn spend(&mut self, now: Instant) {
        self.spent.push_back(now);
        if self.spent.len() > self.repairs_per_minute {
            self.spent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_period_of_60_s_has_more_repairs_than_the_budget() {
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        let mut budget = RepairBudget::new(2);
        for (now, wait) in [(0, 0), (10, 0), (20, 40), (60, 0), (61, 9), (70, 0)] {
            let expected = Duration::from_secs(wait);
            assert_eq!(budget.wait(second(now)), expected, "at {now}");
            if wait == 0 {
                budget.spend(second(now));
            }
        }
    }

    #[test]
    fn memory_is_bounded_by_the_budget() {
        let mut budget = RepairBudget::new(3);
        for _ in 0..100 {
            budget.spend(Instant::now());
        }
        assert_eq!(budget.spent.len(), 3);
    }
}
