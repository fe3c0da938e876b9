//! Remembers which pods the worker repaired, reported or skipped, and how long it leaves them alone, so
//! that it does not repair the same pods again and again on a node where the plugin is broken. Pure.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use super::settings::RepairMode;
use super::stranded::{FoundBy, StrandedPod};

/// Time for which a repaired pod, or one whose eviction was rejected, is not repaired again. The same
/// holds for a pod that was created after another pod of its owner was deleted; then the hold doubles
/// with each deletion.
pub const HOLD: Duration = Duration::from_secs(60);

/// Longest hold after deletions that did not help.
const LONGEST_HOLD: Duration = Duration::from_secs(3600);

/// How long to ignore a pod after it was reported or skipped.
const REPORT_HOLD: Duration = Duration::from_secs(3600);

/// How long to ignore a pod that has all its rules although its validator failed. The kubelet
/// restarts the validator after at most 5 minutes, which then succeeds.
const COMPLETE_HOLD: Duration = Duration::from_secs(600);

/// Time after which an entry is forgotten, so that the next hold after a deletion is [`HOLD`] again.
const REMEMBERED: Duration = Duration::from_secs(2 * 3600);

/// Maximum number of entries, to bound memory.
const MAX_ENTRIES: usize = 2048;

/// Why a pod is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldReason {
    /// The pod was repaired, or another pod of its owner was deleted.
    Repaired,
    /// The pod was only reported, or cannot be repaired.
    Reported,
    EvictionRejected,
    Complete,
    /// It was reported that the pod is left unchanged for now.
    ReportedUnchanged,
}

impl HoldReason {
    fn hold(self) -> Duration {
        match self {
            HoldReason::Repaired | HoldReason::EvictionRejected => HOLD,
            HoldReason::Reported | HoldReason::ReportedUnchanged => REPORT_HOLD,
            HoldReason::Complete => COMPLETE_HOLD,
        }
    }
}

/// Whether it is a pod's turn.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    Now,
    /// The pod is ignored, for this reason.
    Ignored(&'static str),
    /// The pod's eviction was rejected; it may be evicted from this time on.
    AfterRejection(Instant),
    /// The pod, or the one that it replaces, was repaired. If it needs another repair, it may be
    /// repaired from this time on.
    AfterRepair(Instant),
}

/// The pods that are left alone.
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
pub struct Holds {
    mode: RepairMode,
    entries: HashMap<Key, Entry>,
}

/// The ID is the pod's UID. Only deletions by mode `delete`, after which the owner creates another pod, are
/// remembered by the owner. Pods of two namespaces never share an entry: a tenant may claim the owner of
/// another tenant's pods.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    reason: HoldReason,
    namespace: String,
    id: String,
}

struct Entry {
    since: Instant,
    /// Time until the pod, or a replacement of the deleted pod, is no longer held.
    hold: Duration,
    /// `since` by the node's clock; RFC 3339 with whole seconds.
    date: String,
    /// Creation time of the youngest pod of this entry; RFC 3339 with whole seconds.
    youngest: String,
}

impl Entry {
    /// Whether the pod, of the same owner, was created after the last deletion.
    fn is_replaced_by(&self, pod: &StrandedPod) -> bool {
        pod.created >= self.date && pod.created > self.youngest
    }
}

impl Holds {
    pub fn new(mode: RepairMode) -> Self {
        Holds { mode, entries: HashMap::new() }
    }

    /// Returns whether it is the pod's turn at `now`.
    pub fn turn(&self, pod: &StrandedPod, now: Instant) -> Turn {
        let held_until = |reason| self.held_until(reason, pod, now);
        if held_until(HoldReason::Reported).is_some() {
            return Turn::Ignored("reported or skipped less than an hour ago");
        }
        // A pod that an audit found has lost rules since.
        if pod.found_by == FoundBy::Validator && held_until(HoldReason::Complete).is_some() {
            return Turn::Ignored("it had all its redirect rules");
        }
        match held_until(HoldReason::EvictionRejected) {
            Some(end) => Turn::AfterRejection(end),
            None => held_until(HoldReason::Repaired).map_or(Turn::Now, Turn::AfterRepair),
        }
    }

    /// Marks the pod as reported because it is left unchanged. Returns `true` at most once in
    /// [`REPORT_HOLD`].
    pub fn mark_unchanged_reported(&mut self, pod: &StrandedPod, now: Instant) -> bool {
        let reason = HoldReason::ReportedUnchanged;
        let is_first = self.held_until(reason, pod, now).is_none();
        if is_first {
            self.hold(reason, pod, now, SystemTime::now());
        }
        is_first
    }

    /// Records that the pod has all its rules. Returns `true` if it already had them before the
    /// hold, so that its validator has failed in spite of them.
    pub fn record_complete(&mut self, pod: &StrandedPod, now: Instant) -> bool {
        let earlier = self.entries.get(&self.key(HoldReason::Complete, pod));
        let is_again = earlier.is_some_and(|entry| now - entry.since < 2 * COMPLETE_HOLD);
        self.hold(HoldReason::Complete, pod, now, SystemTime::now());
        is_again
    }

    /// Holds the pod, or the replacements of the deleted pod, from `now` on, which is `date` by the node's
    /// clock. Drops expired entries. If there are too many, drops the oldest entry of the namespace with
    /// the most entries, so that a tenant with many owners does not end the holds of others.
    pub fn hold(&mut self, reason: HoldReason, pod: &StrandedPod, now: Instant, date: SystemTime) {
        self.entries.retain(|_, entry| now.duration_since(entry.since) < REMEMBERED);
        let key = self.key(reason, pod);
        let last = self.entries.remove(&key);
        if self.entries.len() >= MAX_ENTRIES {
            self.drop_oldest();
        }
        let hold = match &last {
            Some(last) if self.is_by_owner(reason) && last.is_replaced_by(pod) => {
                (2 * last.hold).min(LONGEST_HOLD)
            }
            Some(last) => last.hold,
            None => reason.hold(),
        };
        let entry = Entry {
            since: now,
            hold,
            date: humantime::format_rfc3339_seconds(date).to_string(),
            youngest: last.map(|last| last.youngest).unwrap_or_default().max(pod.created.clone()),
        };
        self.entries.insert(key, entry);
    }

    fn drop_oldest(&mut self) {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for key in self.entries.keys() {
            *counts.entry(&key.namespace).or_default() += 1;
        }
        let oldest = self.entries.iter().max_by_key(|(key, entry)| {
            (counts.get(&*key.namespace).copied(), Reverse(entry.since))
        });
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.entries.remove(&key);
        }
    }

    /// Returns when the hold of the pod for this reason ends; `None` if it is not held at `now`.
    fn held_until(&self, reason: HoldReason, pod: &StrandedPod, now: Instant) -> Option<Instant> {
        let entry = self.entries.get(&self.key(reason, pod))?;
        let end = entry.since + entry.hold;
        let is_held = !self.is_by_owner(reason) || entry.is_replaced_by(pod);
        (is_held && now < end).then_some(end)
    }

    fn is_by_owner(&self, reason: HoldReason) -> bool {
        reason == HoldReason::Repaired && self.mode == RepairMode::Delete
    }

    fn key(&self, reason: HoldReason, pod: &StrandedPod) -> Key {
        let id = match self.is_by_owner(reason) {
            true => &pod.owner_key,
            false => &pod.uid,
        };
        Key { reason, namespace: pod.namespace.clone(), id: id.clone() }
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
        StrandedPod {
            uid: "c".into(),
            owner_key: owner.into(),
            created: humantime::format_rfc3339_seconds(date(created)).to_string(),
            ..StrandedPod::default()
        }
    }

    fn repaired(holds: &mut Holds, pod: &StrandedPod, now: Instant, date: SystemTime) {
        holds.hold(HoldReason::Repaired, pod, now, date);
    }

    #[test]
    fn siblings_created_before_a_deletion_are_repaired_at_once_and_replacements_wait() {
        let now = Instant::now();
        let mut holds = Holds::new(RepairMode::Delete);
        repaired(&mut holds, &pod("web", 50), now, date(100));
        for (name, pod, after, is_held) in [
            ("a sibling created before", pod("web", 60), 1, false),
            ("the replacement", pod("web", 101), 12, true),
            ("created in the same second", pod("web", 100), 1, true),
            ("the replacement after the hold", pod("web", 101), 60, false),
            ("another owner's pod", pod("voting", 101), 1, false),
        ] {
            let expected = match is_held {
                true => Turn::AfterRepair(now + HOLD),
                false => Turn::Now,
            };
            assert_eq!(holds.turn(&pod, now + Duration::from_secs(after)), expected, "{name}");
        }
        // A tenant claims the owner.
        let claiming = StrandedPod { namespace: "tenant".into(), ..pod("web", 101) };
        assert_eq!(holds.turn(&claiming, now), Turn::Now);
    }

    #[test]
    fn the_hold_doubles_up_to_an_hour_while_replacements_are_stranded_again() {
        let mut holds = Holds::new(RepairMode::Delete);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut elapsed = 0;
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            let deleted = pod("web", elapsed);
            repaired(&mut holds, &deleted, at(elapsed), date(elapsed));
            // An older sibling is deleted at once, and does not lengthen the hold.
            assert_eq!(holds.turn(&deleted, at(elapsed)), Turn::Now);
            repaired(&mut holds, &deleted, at(elapsed), date(elapsed));
            elapsed += minutes * 60;
            let replacement = pod("web", elapsed);
            assert_ne!(holds.turn(&replacement, at(elapsed - 1)), Turn::Now, "{minutes}");
            assert_eq!(holds.turn(&replacement, at(elapsed)), Turn::Now, "{minutes}");
        }
        let later = elapsed + 2 * 3600;
        repaired(&mut holds, &pod("web", later), at(later), date(later));
        assert_eq!(holds.turn(&pod("web", later + 60), at(later + 60)), Turn::Now, "long ago");
    }

    #[test]
    fn siblings_and_replacements_are_distinguished_when_the_nodes_clock_is_behind() {
        let now = Instant::now();
        let mut holds = Holds::new(RepairMode::Delete);
        repaired(&mut holds, &pod("web", 61), now, date(10));
        repaired(&mut holds, &pod("web", 60), now, date(10));
        for (name, created, is_held) in [
            ("created in the same second as a deleted pod", 61, false),
            ("created before", 59, false),
            ("the replacement", 62, true),
        ] {
            assert_eq!(holds.turn(&pod("web", created), now) != Turn::Now, is_held, "{name}");
        }
    }

    #[test]
    fn entries_expire_and_a_namespace_with_many_owners_does_not_end_the_holds_of_others() {
        let start = Instant::now();
        let mut holds = Holds::new(RepairMode::Delete);
        let few = StrandedPod { namespace: "few".into(), ..pod("web", 0) };
        repaired(&mut holds, &few, start, date(0));
        for owner in 0..MAX_ENTRIES as u64 + 100 {
            let now = start + Duration::from_micros(1 + owner);
            repaired(&mut holds, &pod(&owner.to_string(), 0), now, date(0));
        }
        assert_eq!(holds.entries.len(), MAX_ENTRIES);
        let replacement = |pod: StrandedPod| StrandedPod { created: "2".into(), ..pod };
        let newest = (MAX_ENTRIES + 99).to_string();
        for pod in [few, pod(&newest, 0)] {
            assert_ne!(holds.turn(&replacement(pod), start), Turn::Now);
        }
        assert_eq!(holds.turn(&replacement(pod("0", 0)), start), Turn::Now, "the oldest");
        repaired(&mut holds, &pod("new", 0), start + REMEMBERED + HOLD, date(0));
        assert_eq!(holds.entries.len(), 1);
    }

    #[test]
    fn each_reason_holds_a_pod_for_its_time_and_no_other_pod() {
        let now = Instant::now();
        let pod = pod("web", 0);
        let other = StrandedPod { uid: "d".into(), ..pod.clone() };
        for (reason, hold) in [
            (HoldReason::Repaired, HOLD),
            (HoldReason::EvictionRejected, HOLD),
            (HoldReason::Complete, COMPLETE_HOLD),
            (HoldReason::Reported, REPORT_HOLD),
        ] {
            let mut holds = Holds::new(RepairMode::InPlace);
            holds.hold(reason, &pod, now, date(100));
            assert_ne!(holds.turn(&pod, now + hold / 2), Turn::Now, "{reason:?}");
            assert_eq!(holds.turn(&pod, now + hold), Turn::Now, "{reason:?}");
            assert_eq!(holds.turn(&other, now), Turn::Now, "{reason:?}");
        }
    }

    #[test]
    fn a_pod_that_is_left_unchanged_is_reported_once_an_hour() {
        let now = Instant::now();
        let mut holds = Holds::new(RepairMode::InPlace);
        let pod = pod("web", 0);
        assert!(holds.mark_unchanged_reported(&pod, now));
        assert!(!holds.mark_unchanged_reported(&pod, now + REPORT_HOLD / 2));
        assert!(holds.mark_unchanged_reported(&pod, now + REPORT_HOLD));
    }

    #[test]
    fn a_pod_that_has_all_its_rules_is_ignored_and_reported_if_its_validator_still_fails() {
        let now = Instant::now();
        let mut holds = Holds::new(RepairMode::InPlace);
        let pod = pod("web", 0);
        assert!(!holds.record_complete(&pod, now), "its validator has to run again first");
        let audited = StrandedPod { found_by: FoundBy::Audit, ..pod.clone() };
        assert_eq!(holds.turn(&audited, now), Turn::Now, "it lost rules since");
        // The validator fails every 5 minutes.
        assert!(holds.record_complete(&pod, now + COMPLETE_HOLD * 3 / 2));
        assert!(!holds.record_complete(&pod, now + COMPLETE_HOLD * 4), "it had recovered");
    }
}
