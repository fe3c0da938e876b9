//! Remembers which pods the worker repaired, reported or skipped recently.

use std::time::{Duration, Instant, SystemTime};

use super::RepairMode;
use super::history::{HOLD, History, HistoryKey};
use super::stranded_pod::{FoundBy, StrandedPod};

/// How long to ignore a pod after it was reported or skipped.
pub const REPORT_HOLD: Duration = Duration::from_secs(3600);

/// How long to ignore a pod that has all its rules although its validator failed. The kubelet
/// restarts the validator after at most 5 minutes, which then succeeds.
const COMPLETE_HOLD: Duration = Duration::from_secs(600);

/// Pods that were repaired, reported or skipped recently.
pub struct Histories {
    /// Repaired pods, or owners of deleted pods: not repaired again for [`HOLD`] or longer.
    pub repaired: History,
    /// Reported or skipped pods: ignored for [`REPORT_HOLD`].
    pub ignored: History,
    /// Pods whose eviction was rejected: not evicted again for [`HOLD`].
    pub evictions_rejected: History,
    /// Pods that had all their rules: ignored for [`COMPLETE_HOLD`].
    complete: History,
    /// Pods that were reported because of a rejected eviction, a missing controller or a failure
    /// in spite of all rules: not reported again for [`REPORT_HOLD`].
    pub left_unchanged_reported: History,
}

impl Histories {
    /// Returns empty histories. For mode `delete`, all pods of an owner share an entry.
    pub fn new(mode: RepairMode) -> Self {
        let repaired_key = match mode {
            RepairMode::Delete => HistoryKey::Owner,
            RepairMode::InPlace | RepairMode::Label | RepairMode::Report => HistoryKey::Pod,
        };
        Histories {
            repaired: History::new(repaired_key, HOLD),
            ignored: History::new(HistoryKey::Pod, REPORT_HOLD),
            evictions_rejected: History::new(HistoryKey::Pod, HOLD),
            complete: History::new(HistoryKey::Pod, COMPLETE_HOLD),
            left_unchanged_reported: History::new(HistoryKey::Pod, REPORT_HOLD),
        }
    }

    /// Whether the pod of a failed validator had all its rules a short time ago. A pod of an audit
    /// has lost rules since.
    pub fn was_complete(&self, pod: &StrandedPod, now: Instant) -> bool {
        pod.found_by == FoundBy::Validator && !self.complete.allows(pod, now)
    }

    /// Records that the pod has all its rules. Returns `true` if it already had them before the
    /// hold, so that its validator has failed in spite of them.
    pub fn record_complete(&mut self, pod: &StrandedPod, now: Instant) -> bool {
        let again = self.complete.contains(pod);
        self.complete.record(pod, now, SystemTime::now());
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_has_all_its_rules_is_ignored_and_reported_if_its_validator_still_fails() {
        let now = Instant::now();
        let mut histories = Histories::new(RepairMode::InPlace);
        let pod = StrandedPod { uid: "a".into(), ..StrandedPod::default() };
        let other = StrandedPod { uid: "b".into(), ..StrandedPod::default() };
        assert!(!histories.record_complete(&pod, now), "its validator has to run again first");
        assert!(histories.was_complete(&pod, now + COMPLETE_HOLD / 2));
        assert!(!histories.was_complete(&pod, now + COMPLETE_HOLD));
        let audited = StrandedPod { found_by: FoundBy::Audit, ..pod.clone() };
        assert!(!histories.was_complete(&audited, now), "it lost rules since");
        assert!(!histories.record_complete(&other, now + COMPLETE_HOLD));
        // The validator fails every 5 minutes.
        assert!(histories.record_complete(&pod, now + COMPLETE_HOLD * 3 / 2));
    }
}
