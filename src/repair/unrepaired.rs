//! Records that stranded pods were not repaired (full queue, error, hold), so that the watch
//! lists the pods again. Without a new list such a pod would wait for its next event.
//!
//! A list finds pods by their validator. The next audit, not a list, finds the pods of an audit.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::stranded_pod::FoundBy;

/// Earliest time at which a new list helps one of the unrepaired pods. `None`: no pod is
/// unrepaired.
#[derive(Default)]
pub struct Unrepaired(Mutex<Option<Instant>>);

impl Unrepaired {
    /// Records a pod that cannot be repaired before `not_before`. Ignores the pods of an audit.
    pub fn add(&self, found_by: FoundBy, not_before: Instant) {
        if found_by == FoundBy::Audit {
            return;
        }
        self.with(|earliest| {
            *earliest = Some(earliest.map_or(not_before, |earlier| earlier.min(not_before)));
        });
    }

    /// Whether a list at `now` would find a pod that can be repaired.
    pub fn needs_list(&self, now: Instant) -> bool {
        self.with(|earliest| earliest.is_some_and(|not_before| now >= not_before))
    }

    /// Forgets all pods. Call this before a list, which finds each of them again.
    pub fn clear(&self) {
        self.with(|earliest| *earliest = None);
    }

    fn with<T>(&self, access: impl FnOnce(&mut Option<Instant>) -> T) -> T {
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_list_is_needed_at_the_earliest_time_of_all_unrepaired_pods() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let unrepaired = Unrepaired::default();
        assert!(!unrepaired.needs_list(after(999)), "no pod is unrepaired");
        unrepaired.add(FoundBy::Audit, after(10));
        unrepaired.add(FoundBy::Validator, after(60));
        unrepaired.add(FoundBy::Validator, after(20));
        unrepaired.add(FoundBy::Validator, after(40));
        assert!(!unrepaired.needs_list(after(19)));
        assert!(unrepaired.needs_list(after(20)));
        unrepaired.clear();
        assert!(!unrepaired.needs_list(after(999)));
    }
}
