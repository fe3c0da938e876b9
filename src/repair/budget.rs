//! The repair budget: limits the repairs per minute, so that the controller does not delete
//! all pods of a node at once after a boot that stranded them, and the share of each namespace, so
//! that a tenant with many stranded pods does not delay the repairs of others. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time in which the repairs are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// Allows a fixed number of repairs in any period of 60 s, and half of them in one namespace.
pub struct RepairBudget {
    repairs_per_minute: usize,
    /// Time and namespace of the newest repairs, at most those of a minute, oldest first.
    spent: VecDeque<(Instant, String)>,
}

impl RepairBudget {
    pub fn new(repairs_per_minute: u16) -> Self {
        RepairBudget { repairs_per_minute: repairs_per_minute.into(), spent: VecDeque::new() }
    }

    /// Returns how long the next repair in `namespace` has to wait from `now` on, and the number of
    /// repairs there in the last 60 s. The pod with the lowest result is next.
    pub fn turn(&self, namespace: &str, now: Instant) -> (Duration, usize) {
        let mut recent: Vec<_> = self.spent.iter().filter(|(at, _)| *at + WINDOW > now).collect();
        let wait = |spent: &[&(Instant, String)], limit| match spent.len().checked_sub(limit) {
            Some(first) => (spent[first].0 + WINDOW) - now,
            None => Duration::ZERO,
        };
        let share = self.repairs_per_minute.div_ceil(2);
        let for_all = wait(&recent, self.repairs_per_minute);
        recent.retain(|(_, spent_in)| spent_in == namespace);
        (for_all.max(wait(&recent, share)), recent.len())
    }

    pub fn spend(&mut self, namespace: &str, now: Instant) {
        self.spent.push_back((now, namespace.to_owned()));
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
        for (now, namespace, wait) in
            [(0, "a", 0), (10, "b", 0), (20, "c", 40), (60, "c", 0), (61, "d", 9), (70, "d", 0)]
        {
            let expected = Duration::from_secs(wait);
            assert_eq!(budget.turn(namespace, second(now)).0, expected, "at {now}");
            if wait == 0 {
                budget.spend(namespace, second(now));
            }
        }
    }

    #[test]
    fn a_namespace_gets_half_of_the_budget_and_its_turn_after_those_with_fewer_repairs() {
        let now = Instant::now();
        let mut budget = RepairBudget::new(5);
        for _ in 0..3 {
            assert_eq!(budget.turn("many", now).0, Duration::ZERO);
            budget.spend("many", now);
        }
        assert_eq!(budget.turn("many", now), (WINDOW, 3));
        assert_eq!(budget.turn("few", now), (Duration::ZERO, 0));
        budget.spend("few", now);
        assert_eq!(budget.turn("few", now), (Duration::ZERO, 1));
        assert_eq!(budget.turn("many", now + WINDOW), (Duration::ZERO, 0));
    }

    #[test]
    fn memory_is_bounded_by_the_budget() {
        let mut budget = RepairBudget::new(3);
        for _ in 0..100 {
            budget.spend("a", Instant::now());
        }
        assert_eq!(budget.spent.len(), 3);
    }
}
