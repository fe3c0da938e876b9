//! Records recent repairs, so that the controller does not repair the same pods again and
//! again on a node where the plugin is broken.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use super::stranded_pod::StrandedPod;

/// Time for which a repaired pod is not repaired again. The same holds for a pod that was created
/// after another pod of its owner was deleted; then the hold doubles with each deletion.
pub const HOLD: Duration = Duration::from_secs(60);

/// Longest hold after deletions that did not help.
const LONGEST_HOLD: Duration = Duration::from_secs(3600);

/// Time after which a deletion is forgotten, so that the next hold is [`HOLD`] again.
const DELETIONS_KEPT: Duration = Duration::from_secs(2 * 3600);

/// Maximum number of entries in a history, to bound memory.
const MAX_ENTRIES: usize = 1024;

/// Which pods share an entry of a [`History`]. Pods of two namespaces never do: a tenant may claim
/// the owner of another tenant's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryKey {
    /// Pods of one owner. For deletions, after which the owner creates another pod.
    Owner,
    /// One pod. For repairs that keep the pod.
    Pod,
}

/// The newest repair of each pod or owner.
///
/// After the deletion of a pod, other pods of the same owner may be stranded:
///
/// - A pod created before the deletion started during the same boot. It may be deleted at
///   once.
/// - A pod created after the deletion shows that the deletion did not help. It has to wait, longer
///   after each further deletion: perhaps no deletion helps.
///
/// The creation time is from the API server's clock, the deletion time from the node's
/// clock. If the clocks differ, a pod may wait without need, or may be deleted once more. A
/// node often boots with a wrong clock. So the creation times, which are all from the API
/// server's clock, are also compared with each other: a pod that is no younger than the
/// youngest deleted pod may be deleted at once.
pub struct History {
    key: HistoryKey,
    /// Time until a pod or owner in the history is allowed again, after its first repair.
    hold: Duration,
    /// The key is a namespace and an owner or UID.
    newest: HashMap<(String, String), LastRepair>,
}

struct LastRepair {
    at: Instant,
    /// `at` by the node's clock; RFC 3339 with whole seconds.
    date: String,
    /// Creation time of the youngest pod that was repaired; RFC 3339 with whole seconds.
    youngest: String,
    /// Time until the pod or owner is allowed again.
    hold: Duration,
    /// Whether it was reported that the next repair has to wait.
    hold_reported: bool,
}

impl LastRepair {
    /// Whether the pod, of the same owner, was created after the last repair.
    fn is_replacement(&self, pod: &StrandedPod) -> bool {
        pod.created >= self.date && pod.created > self.youngest
    }
}

impl History {
    pub fn new(key: HistoryKey, hold: Duration) -> Self {
        History { key, hold, newest: HashMap::new() }
    }

    /// Whether the pod may be repaired at `now`.
    pub fn allows(&self, pod: &StrandedPod, now: Instant) -> bool {
        self.held_until(pod, now).is_none()
    }

    /// Returns when the pod may be repaired; `None` if it may be repaired at `now`.
    pub fn held_until(&self, pod: &StrandedPod, now: Instant) -> Option<Instant> {
        let entry = self.newest.get(&self.key(pod))?;
        let end = entry.at + entry.hold;
        let is_held = self.key == HistoryKey::Pod || entry.is_replacement(pod);
        (is_held && now < end).then_some(end)
    }

    /// Whether the pod or owner is in the history, even if its hold is over.
    pub fn contains(&self, pod: &StrandedPod) -> bool {
        self.newest.contains_key(&self.key(pod))
    }

    /// Marks the hold of the pod or owner as reported. Returns `true` the first time after
    /// each repair.
    pub fn mark_hold_reported(&mut self, pod: &StrandedPod) -> bool {
        let entry = self.newest.get_mut(&self.key(pod));
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.hold_reported, true))
    }

    /// Records a repair at `now`, which is `date` by the node's clock. Drops expired entries. A full
    /// history drops the oldest entry of the namespace with the most entries, so that a tenant with
    /// many owners does not end the holds of others.
    pub fn record(&mut self, pod: &StrandedPod, now: Instant, date: SystemTime) {
        let kept = match self.key {
            HistoryKey::Owner => DELETIONS_KEPT,
            HistoryKey::Pod => 2 * self.hold,
        };
        self.newest.retain(|_, entry| now.duration_since(entry.at) < kept);
        if self.newest.len() >= MAX_ENTRIES {
            let mut counts: HashMap<&str, usize> = HashMap::new();
            for (namespace, _) in self.newest.keys() {
                *counts.entry(namespace).or_default() += 1;
            }
            let all = self.newest.iter();
            let oldest = all.max_by_key(|((namespace, _), entry)| {
                (counts.get(&**namespace).copied(), Reverse(entry.at))
            });
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.newest.remove(&key);
            }
        }
        let key = self.key(pod);
        let last = self.newest.remove(&key);
        let hold = match &last {
            Some(last) if self.key == HistoryKey::Owner && last.is_replacement(pod) => {
                (2 * last.hold).min(LONGEST_HOLD)
            }
            Some(last) => last.hold,
            None => self.hold,
        };
        let entry = LastRepair {
            at: now,
            youngest: last.map(|last| last.youngest).unwrap_or_default().max(pod.created.clone()),
            hold,
            date: humantime::format_rfc3339_seconds(date).to_string(),
            hold_reported: false,
        };
        self.newest.insert(key, entry);
    }

    fn key(&self, pod: &StrandedPod) -> (String, String) {
        let id = match self.key {
            HistoryKey::Owner => &pod.owner_key,
            HistoryKey::Pod => &pod.uid,
        };
        (pod.namespace.clone(), id.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn pod(owner: &str, created_at: u64) -> StrandedPod {
        let created = UNIX_EPOCH + Duration::from_secs(created_at);
        StrandedPod {
            uid: "c".into(),
            owner_key: owner.into(),
            created: humantime::format_rfc3339_seconds(created).to_string(),
            ..StrandedPod::default()
        }
    }

    #[test]
    fn siblings_created_before_a_deletion_are_repaired_at_once_and_replacements_wait() {
        let now = Instant::now();
        let mut history = History::new(HistoryKey::Owner, HOLD);
        history.record(&pod("web", 50), now, UNIX_EPOCH + Duration::from_secs(100));
        for (name, pod, after, expected) in [
            ("a sibling created before", pod("web", 60), 1, true),
            ("the replacement", pod("web", 101), 12, false),
            ("created in the same second", pod("web", 100), 1, false),
            ("the replacement after the hold", pod("web", 101), 60, true),
            ("another owner's pod", pod("voting", 101), 1, true),
        ] {
            let then = now + Duration::from_secs(after);
            assert_eq!(history.allows(&pod, then), expected, "{name}");
        }
    }

    #[test]
    fn the_hold_doubles_up_to_an_hour_while_replacements_are_stranded_again() {
        let mut history = History::new(HistoryKey::Owner, HOLD);
        let start = Instant::now();
        let mut elapsed = 0;
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            let (at, date) =
                (Duration::from_secs(elapsed), UNIX_EPOCH + Duration::from_secs(elapsed));
            history.record(&pod("web", elapsed), start + at, date);
            // An older sibling is deleted at once, and does not lengthen the hold.
            let sibling = pod("web", elapsed);
            assert!(history.allows(&sibling, start + at));
            history.record(&sibling, start + at, date);
            elapsed += minutes * 60;
            let replacement = pod("web", elapsed);
            let end = start + Duration::from_secs(elapsed);
            assert!(!history.allows(&replacement, end - Duration::from_secs(1)), "{minutes}");
            assert!(history.allows(&replacement, end), "{minutes}");
        }
        let later = elapsed + 2 * 3600;
        let (at, date) = (Duration::from_secs(later), UNIX_EPOCH + Duration::from_secs(later));
        history.record(&pod("web", later), start + at, date);
        assert!(history.allows(&pod("web", later + 60), start + at + HOLD), "long ago");
    }

    #[test]
    fn siblings_and_replacements_are_distinguished_when_the_nodes_clock_is_behind() {
        let now = Instant::now();
        let mut history = History::new(HistoryKey::Owner, HOLD);
        let behind = UNIX_EPOCH + Duration::from_secs(10);
        history.record(&pod("web", 61), now, behind);
        history.record(&pod("web", 60), now, behind);
        for (name, created, expected) in [
            ("created in the same second as a deleted pod", 61, true),
            ("created before", 59, true),
            ("the replacement", 62, false),
        ] {
            assert_eq!(history.allows(&pod("web", created), now), expected, "{name}");
        }
    }

    #[test]
    fn entries_are_bounded_and_expire() {
        let now = Instant::now();
        let mut history = History::new(HistoryKey::Owner, HOLD);
        for owner in 0..2 * MAX_ENTRIES {
            let later = now + Duration::from_micros(owner as u64);
            history.record(&pod(&owner.to_string(), 0), later, UNIX_EPOCH);
        }
        assert_eq!(history.newest.len(), MAX_ENTRIES);
        assert!(history.contains(&pod(&(2 * MAX_ENTRIES - 1).to_string(), 0)));
        history.record(&pod("new", 0), now + DELETIONS_KEPT + HOLD, UNIX_EPOCH);
        assert_eq!(history.newest.len(), 1);
    }

    #[test]
    fn a_namespace_with_many_owners_does_not_end_the_holds_of_others() {
        let start = Instant::now();
        let mut history = History::new(HistoryKey::Owner, HOLD);
        let few = StrandedPod { namespace: "few".into(), ..pod("web", 0) };
        history.record(&few, start, UNIX_EPOCH);
        for owner in 0..2 * MAX_ENTRIES {
            let later = start + Duration::from_micros(1 + owner as u64);
            history.record(&pod(&owner.to_string(), 0), later, UNIX_EPOCH);
        }
        assert_eq!(history.newest.len(), MAX_ENTRIES);
        assert!(history.contains(&few));
    }

    #[test]
    fn a_pod_that_claims_the_owner_of_another_namespaces_pods_does_not_hold_them() {
        let now = Instant::now();
        let mut history = History::new(HistoryKey::Owner, HOLD);
        let claiming = StrandedPod { namespace: "tenant".into(), ..pod("web", 0) };
        history.record(&claiming, now, UNIX_EPOCH);
        assert!(history.allows(&pod("web", 100), now));
    }

    #[test]
    fn a_repaired_pod_is_held_and_the_hold_is_reported_once() {
        let now = Instant::now();
        let mut history = History::new(HistoryKey::Pod, HOLD);
        let pod = pod("web", 0);
        assert!(!history.mark_hold_reported(&pod), "the pod was not repaired yet");
        history.record(&pod, now, UNIX_EPOCH + Duration::from_secs(100));
        assert!(!history.allows(&pod, now + HOLD / 2));
        assert!(history.mark_hold_reported(&pod));
        assert!(!history.mark_hold_reported(&pod));
        assert!(history.allows(&pod, now + HOLD));
    }
}
