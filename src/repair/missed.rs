//! Remembers that stranded pods were left without a repair (full queue, error, hold), so
//! that the watch lists the pods again. Without a new list such a pod would wait for its
//! next event.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Earliest time at which a new list helps one of the missed pods; `None` if there is none.
#[derive(Default)]
pub struct Missed(Mutex<Option<Instant>>);

impl Missed {
    /// Records a pod that cannot be repaired before `not_before`.
    pub fn add(&self, not_before: Instant) {
        self.with(|missed| {
            *missed = Some(missed.map_or(not_before, |earlier| earlier.min(not_before)));
        });
    }

    /// Whether a new list at `now` helps.
    pub fn is_due(&self, now: Instant) -> bool {
        self.with(|missed| missed.is_some_and(|not_before| now >= not_before))
    }

    /// Forgets all missed pods. Call this before a list, which finds each of them again.
    pub fn clear(&self) {
        self.with(|missed| *missed = None);
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
    fn a_list_is_due_at_the_earliest_time_of_all_missed_pods() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let missed = Missed::default();
        assert!(!missed.is_due(after(999)), "nothing is missed");
        missed.add(after(60));
        missed.add(after(20));
        missed.add(after(40));
        assert!(!missed.is_due(after(19)));
        assert!(missed.is_due(after(20)));
        missed.clear();
        assert!(!missed.is_due(after(999)));
    }
}
