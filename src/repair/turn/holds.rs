//! Holds pods that were repaired a short time ago, and pods that replace deleted pods. Pure.
//!
//! On a node where the plugin is broken, no repair helps. Without holds, the controller would
//! delete every replacement as soon as it is stranded.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use crate::repair::find::stranded::StrandedPod;
use crate::repair::settings::RepairMode;

/// Time for which a repaired pod is not repaired again. In mode `delete`, the first hold of a pod
/// that was created after another pod of its owner was deleted; this hold doubles with each
/// deletion of such a replacement.
const HOLD: Duration = Duration::from_secs(60);

/// Longest hold after deletions that did not help.
const LONGEST_HOLD: Duration = Duration::from_secs(3600);

/// Time after which a repair is forgotten, so that the next hold is [`HOLD`] again. The repair
/// budget limits the repairs in this time, and so bounds the memory.
const REMEMBERED: Duration = Duration::from_secs(2 * 3600);

/// Remembers the repairs of the last hours, and decides from them which pods are held.
///
/// After the deletion of a pod, other pods of the same owner may be stranded:
///
/// - A pod created before the deletion started during the same boot, so it may be deleted at once.
/// - A pod created after the deletion shows that the deletion did not help, so the pod has to wait,
///   and longer after each further deletion.
///
/// The creation time is from the API server's clock, the deletion time from the node's
/// clock. If the clocks differ, a pod may wait without need, or may be deleted once more. A
/// node often boots with a wrong clock. So the creation times, which are all from the API
/// server's clock, are also compared with each other: a pod that is no younger than the
/// youngest deleted pod may be deleted at once.
pub struct Holds {
    /// Whether a repair deletes the pod, so that its owner creates another one.
    deletes_pods: bool,
    repairs: HashMap<Key, Repair>,
}

/// The namespace, and the pod's UID or the key of its owner. The namespace keeps tenants apart: a
/// tenant may claim that its pods have the owner of another tenant's pods.
type Key = (String, String);

struct Repair {
    since: Instant,
    /// Time until the pod, or a replacement of the deleted pod, is no longer held.
    hold: Duration,
    /// `since` by the node's clock; RFC 3339 with whole seconds.
    date: String,
    /// Creation time of the youngest deleted pod of this owner; RFC 3339 with whole seconds.
    youngest: String,
}

impl Repair {
    /// Whether the pod, of the same owner, was created after the last deletion, so that it replaces
    /// the deleted pod.
    fn is_replaced_by(&self, pod: &StrandedPod) -> bool {
        let created = &pod.facts.created;
        *created >= self.date && *created > self.youngest
    }

    /// Returns how long pods are held after the pod, of the same owner, was deleted, too: twice as
    /// long if the pod shows that the last deletion did not help.
    fn hold_after_deletion(&self, pod: &StrandedPod) -> Duration {
        if !self.is_replaced_by(pod) {
            return self.hold;
        }
        (2 * self.hold).min(LONGEST_HOLD)
    }
}

impl Holds {
    pub fn new(mode: RepairMode) -> Self {
        Holds { deletes_pods: mode == RepairMode::Delete, repairs: HashMap::new() }
    }

    /// Returns how long the pod is still held at `now`. `None` if it is not held.
    pub fn wait(&self, pod: &StrandedPod, now: Instant) -> Option<Duration> {
        let repair = self.repairs.get(&self.key(pod))?;
        if self.deletes_pods && !repair.is_replaced_by(pod) {
            return None;
        }
        let end = repair.since + repair.hold;
        if now >= end {
            return None;
        }
        Some(end - now)
    }

    /// Records a repair at `now`, which is `date` by the node's clock. From then on, the pod is
    /// held, or in mode `delete` the replacements of the deleted pod.
    pub fn record(&mut self, pod: &StrandedPod, now: Instant, date: SystemTime) {
        self.repairs.retain(|_, repair| now.duration_since(repair.since) < REMEMBERED);
        let key = self.key(pod);
        let mut hold = HOLD;
        let mut youngest = pod.facts.created.clone();
        if let Some(last) = self.repairs.remove(&key) {
            hold = if self.deletes_pods { last.hold_after_deletion(pod) } else { last.hold };
            youngest = youngest.max(last.youngest);
        }
        let date = humantime::format_rfc3339_seconds(date).to_string();
        self.repairs.insert(key, Repair { since: now, hold, date, youngest });
    }

    fn key(&self, pod: &StrandedPod) -> Key {
        let pod_or_owner = if self.deletes_pods { &pod.facts.owner_key } else { &pod.found.uid };
        (pod.found.namespace.clone(), pod_or_owner.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn date(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn pod(owner: &str, created: u64) -> StrandedPod {
        let mut pod = StrandedPod::default();
        pod.found.uid = "c".into();
        pod.facts.owner_key = owner.into();
        pod.facts.created = humantime::format_rfc3339_seconds(date(created)).to_string();
        pod
    }

    #[test]
    fn replacements_are_held_and_siblings_older_than_the_deletion_are_not() {
        let now = Instant::now();
        let mut holds = Holds::new(RepairMode::Delete);
        holds.record(&pod("web", 50), now, date(100));
        for (name, pod, after, is_held) in [
            ("a sibling created before", pod("web", 60), 1, false),
            ("the replacement", pod("web", 101), 12, true),
            ("created in the same second", pod("web", 100), 1, true),
            ("the replacement after the hold", pod("web", 101), 60, false),
            ("another owner's pod", pod("voting", 101), 1, false),
        ] {
            let after = Duration::from_secs(after);
            let expected = if is_held { Some(HOLD - after) } else { None };
            assert_eq!(holds.wait(&pod, now + after), expected, "{name}");
        }
        // A tenant claims the owner.
        let mut claiming = pod("web", 101);
        claiming.found.namespace = "tenant".into();
        assert_eq!(holds.wait(&claiming, now), None);
    }

    #[test]
    fn the_hold_doubles_up_to_an_hour_while_replacements_are_stranded_again() {
        let mut holds = Holds::new(RepairMode::Delete);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut elapsed = 0;
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            let deleted = pod("web", elapsed);
            holds.record(&deleted, at(elapsed), date(elapsed));
            // An older sibling is deleted at once, and does not lengthen the hold.
            assert_eq!(holds.wait(&deleted, at(elapsed)), None);
            holds.record(&deleted, at(elapsed), date(elapsed));
            elapsed += minutes * 60;
            let replacement = pod("web", elapsed);
            assert_ne!(holds.wait(&replacement, at(elapsed - 1)), None, "{minutes}");
            assert_eq!(holds.wait(&replacement, at(elapsed)), None, "{minutes}");
        }
        let later = elapsed + 2 * 3600;
        holds.record(&pod("web", later), at(later), date(later));
        assert_eq!(holds.wait(&pod("web", later + 60), at(later + 60)), None, "long ago");
    }

    #[test]
    fn siblings_and_replacements_are_distinguished_when_the_nodes_clock_is_behind() {
        let now = Instant::now();
        let mut holds = Holds::new(RepairMode::Delete);
        holds.record(&pod("web", 61), now, date(10));
        holds.record(&pod("web", 60), now, date(10));
        for (name, created, is_held) in [
            ("created in the same second as a deleted pod", 61, false),
            ("created before", 59, false),
            ("the replacement", 62, true),
        ] {
            assert_eq!(holds.wait(&pod("web", created), now).is_some(), is_held, "{name}");
        }
    }

    #[test]
    fn only_the_repaired_pod_is_held_and_only_for_a_minute() {
        let now = Instant::now();
        let repaired = pod("web", 0);
        let mut other = repaired.clone();
        other.found.uid = "d".into();
        let mut holds = Holds::new(RepairMode::InPlace);
        holds.record(&repaired, now, date(100));
        assert_eq!(holds.wait(&repaired, now + HOLD / 2), Some(HOLD / 2));
        assert_eq!(holds.wait(&repaired, now + HOLD), None);
        assert_eq!(holds.wait(&other, now), None);
        holds.record(&other, now + REMEMBERED, date(100));
        assert_eq!(holds.repairs.len(), 1, "the first repair is forgotten");
    }
}
