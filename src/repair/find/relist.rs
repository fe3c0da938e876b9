//! When the watch lists the pods again because stranded pods were not repaired (full queue, error, hold).
//! Without a new list such a pod would wait for its next event. Pure.

use std::time::{Duration, Instant};

use crate::backoff::{Backoff, Limits};
use crate::repair::stranded::FoundBy;

/// Delays between two lists for unrepaired pods: a pod whose repair always fails must not cause an
/// endless series of lists. The first lists of all nodes are spread over the first of these times.
const DELAYS: Limits = [Duration::from_secs(5), Duration::from_secs(300)];

/// Time without a list after which the delays begin again with the first.
const CALM: Duration = Duration::from_secs(600);

pub struct Relist {
    /// Earliest time at which a list helps one of the unrepaired pods. `None`: no pod is unrepaired.
    wanted: Option<Instant>,
    /// When the last list ended, and the earliest time of the next.
    last_list: Option<(Instant, Instant)>,
    delays: Backoff,
}

impl Default for Relist {
    fn default() -> Self {
        Relist { wanted: None, last_list: None, delays: Backoff::spread(DELAYS) }
    }
}

impl Relist {
    /// Records a pod that cannot be repaired before `not_before`. Ignores the pods of an audit: the
    /// next audit finds them, not a list, which finds pods by their validator.
    pub fn want(&mut self, found_by: FoundBy, not_before: Instant) {
        if found_by == FoundBy::Validator {
            self.wanted = Some(self.wanted.map_or(not_before, |wanted| wanted.min(not_before)));
        }
    }

    /// Records a list at `now`, which has each pod that was unrepaired until now.
    pub fn record_list(&mut self, now: Instant) {
        if self.last_list.is_none_or(|(last, _)| now - last >= CALM) {
            self.delays.reset();
        }
        self.last_list = Some((now, now + self.delays.next_delay()));
        self.wanted = None;
    }

    /// Whether a list at `now` would find a pod that can be repaired, and is allowed.
    pub fn is_due(&self, now: Instant) -> bool {
        self.wanted.is_some_and(|wanted| wanted <= now)
            && self.last_list.is_none_or(|(_, next)| next <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_list_is_due_at_the_earliest_time_of_all_unrepaired_pods() {
        let now = Instant::now();
        let after = |seconds| now + SECOND * seconds;
        let mut relist = Relist::default();
        assert!(!relist.is_due(after(999)), "no pod is unrepaired");
        relist.want(FoundBy::Audit, after(10));
        relist.want(FoundBy::Validator, after(60));
        relist.want(FoundBy::Validator, after(20));
        relist.want(FoundBy::Validator, after(40));
        assert!(!relist.is_due(after(19)));
        assert!(relist.is_due(after(20)));
        relist.record_list(after(20));
        assert!(!relist.is_due(after(999)), "the list has all pods");
    }

    #[test]
    fn lists_for_unrepaired_pods_back_off_until_a_calm_time_resets_them() {
        let mut now = Instant::now();
        let mut relist = Relist::default();
        for whole in [5, 5, 10, 20, 40, 80, 160, 300, 300] {
            relist.record_list(now);
            relist.want(FoundBy::Validator, now);
            let whole = SECOND * whole;
            assert!(relist.is_due(now + whole), "after {whole:?}");
            if whole > 5 * SECOND {
                assert!(!relist.is_due(now + whole / 2 - SECOND), "{whole:?}");
            }
            now += whole;
        }
        now += CALM;
        relist.record_list(now);
        relist.want(FoundBy::Validator, now);
        assert!(relist.is_due(now + 5 * SECOND));
    }
}
