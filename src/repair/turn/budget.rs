//! The repair budget: limits the repairs per minute. Pure.
//!
//! The budget of the node keeps the controller from deleting all pods at once after a boot that
//! stranded them. The limit for each namespace keeps a tenant with many stranded pods from delaying
//! the repairs of other namespaces.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Length of the period in which repairs are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// Allows a fixed number of repairs in any period of 60 s, and half of them, rounded up, in one
/// namespace.
pub struct RepairBudget {
    repairs_per_minute: usize,
    /// The newest repairs, oldest first, at most `repairs_per_minute` of them.
    repairs: VecDeque<Repair>,
}

struct Repair {
    at: Instant,
    namespace: String,
}

impl RepairBudget {
    pub fn new(repairs_per_minute: u16) -> Self {
        RepairBudget { repairs_per_minute: repairs_per_minute.into(), repairs: VecDeque::new() }
    }

    /// Returns how long the next repair in `namespace` has to wait from `now` on.
    pub fn wait(&self, namespace: &str, now: Instant) -> Duration {
        let mut of_node = Vec::new();
        let mut of_namespace = Vec::new();
        for repair in self.recent(now) {
            of_node.push(repair.at);
            if repair.namespace == namespace {
                of_namespace.push(repair.at);
            }
        }
        let share_of_namespace = self.repairs_per_minute.div_ceil(2);
        let wait_for_node = wait_below(&of_node, self.repairs_per_minute, now);
        let wait_for_namespace = wait_below(&of_namespace, share_of_namespace, now);
        wait_for_node.max(wait_for_namespace)
    }

    /// Returns the number of repairs in `namespace` in the last 60 s.
    pub fn repairs_in(&self, namespace: &str, now: Instant) -> usize {
        self.recent(now).filter(|repair| repair.namespace == namespace).count()
    }

    /// Records a repair.
    pub fn spend(&mut self, namespace: &str, now: Instant) {
        self.repairs.push_back(Repair { at: now, namespace: namespace.to_owned() });
        if self.repairs.len() > self.repairs_per_minute {
            self.repairs.pop_front();
        }
    }

    fn recent(&self, now: Instant) -> impl Iterator<Item = &Repair> {
        self.repairs.iter().filter(move |repair| repair.at + WINDOW > now)
    }
}

/// Returns the time until fewer than `limit` of these repairs, oldest first, are in the window.
fn wait_below(repairs: &[Instant], limit: usize, now: Instant) -> Duration {
    if repairs.len() < limit {
        return Duration::ZERO;
    }
    let last_to_leave = repairs[repairs.len() - limit];
    (last_to_leave + WINDOW) - now
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
            assert_eq!(budget.wait(namespace, second(now)), expected, "at {now}");
            if wait == 0 {
                budget.spend(namespace, second(now));
            }
        }
    }

    #[test]
    fn a_namespace_gets_half_of_the_budget_and_counts_its_repairs() {
        let now = Instant::now();
        let mut budget = RepairBudget::new(5);
        for _ in 0..3 {
            assert_eq!(budget.wait("many", now), Duration::ZERO);
            budget.spend("many", now);
        }
        assert_eq!((budget.wait("many", now), budget.repairs_in("many", now)), (WINDOW, 3));
        assert_eq!((budget.wait("few", now), budget.repairs_in("few", now)), (Duration::ZERO, 0));
        budget.spend("few", now);
        assert_eq!((budget.wait("few", now), budget.repairs_in("few", now)), (Duration::ZERO, 1));
        let later = now + WINDOW;
        assert_eq!(budget.wait("many", later), Duration::ZERO);
        assert_eq!(budget.repairs_in("many", later), 0);
    }

    #[test]
    fn memory_is_bounded_by_the_budget() {
        let mut budget = RepairBudget::new(3);
        for _ in 0..100 {
            budget.spend("a", Instant::now());
        }
        assert_eq!(budget.repairs.len(), 3);
    }
}
