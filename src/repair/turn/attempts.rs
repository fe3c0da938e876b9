//! The outcomes of earlier attempts to repair a pod, and how long the pod waits because of them.
//! Pure.

use std::time::{Duration, Instant};

use crate::backoff::{Limits, delay};

/// First and longest wait before a failed repair is retried.
const RETRIES: Limits = [Duration::from_secs(5), Duration::from_secs(300)];

/// First wait before a rejected eviction is tried again: a disruption budget may allow it once
/// other pods of the workload are ready.
pub const EVICTION_RETRY: Duration = Duration::from_secs(60);

/// Time for which a pod is ignored that has all its rules although its validator failed. The
/// kubelet restarts the validator after at most 5 minutes, and then the validator succeeds.
const COMPLETE_HOLD: Duration = Duration::from_secs(600);

/// Time between two reports of a pod that is left unchanged. Shorter than the hour after which the
/// API server deletes an Event (`--event-ttl`): `linkerd cni check` and `linkerd cni bypass` read
/// the Events, and would report nothing in between.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(2400);

/// Time for which the repair of a pod may fail without a report. Most failures, such as a restart of
/// the API server, are over by then.
pub const FAILURE_GRACE: Duration = Duration::from_secs(60);

/// Reason under which [`Attempts`] remembers the report of a failing repair. All errors share it,
/// so that a new error is not reported as a new reason.
const REPAIR_FAILS: &str = "the repair fails";

/// Earlier attempts to repair one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// The pod's next turn does not come before this time.
    not_before: Instant,
    /// Number of attempts that did not repair the pod, since the last repair.
    failures: u32,
    /// Time of the first failed request or inspection since the last repair. `None` if a pod was
    /// only skipped.
    failing_since: Option<Instant>,
    /// The last report of why the pod was left unchanged.
    last_report: Option<Report>,
    /// Whether an Event of type Warning says that the pod is left unchanged, and no later Event has
    /// ended that.
    is_reported: bool,
    /// Whether the pod had all its rules, although its validator had failed.
    had_all_rules: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    why: String,
    at: Instant,
}

impl Attempts {
    /// Returns the state of a pod that was found at `now`, and may be repaired at once.
    pub fn none(now: Instant) -> Self {
        Attempts {
            not_before: now,
            failures: 0,
            failing_since: None,
            last_report: None,
            is_reported: false,
            had_all_rules: false,
        }
    }

    /// Returns how long the pod has to wait from `now` on.
    pub fn wait(&self, now: Instant) -> Duration {
        self.not_before.saturating_duration_since(now)
    }

    /// Records an attempt that did not repair the pod. The pod waits at least for `wait`, and
    /// longer after each such attempt.
    pub fn record_attempt(&mut self, now: Instant, wait: Duration) {
        self.not_before = now + wait.max(delay(RETRIES, self.failures));
        self.failures += 1;
    }

    /// Records a failed request or inspection. Returns whether to report the failure: once failures
    /// have lasted for [`FAILURE_GRACE`], and again after [`REPORT_INTERVAL`], even if the errors
    /// differ.
    pub fn record_failure(&mut self, now: Instant) -> bool {
        self.record_attempt(now, Duration::ZERO);
        let since = *self.failing_since.get_or_insert(now);
        if now < since + FAILURE_GRACE {
            return false;
        }
        self.record_report_if_due(REPAIR_FAILS, now)
    }

    pub fn record_repair(&mut self) {
        self.failures = 0;
        self.failing_since = None;
        self.is_reported = false;
        self.had_all_rules = false;
    }

    /// Records that the pod was only reported. The pod stays stranded, and its validator fails
    /// again every few seconds, so the pod waits until its next report is due.
    pub fn record_report_only(&mut self, now: Instant) {
        self.record_repair();
        self.is_reported = true;
        self.not_before = now + REPORT_INTERVAL;
    }

    /// Records that the pod has all its rules, although its validator failed. Returns whether an
    /// earlier attempt, some minutes ago, found the same. In between the validator has run again,
    /// so it fails in spite of the rules.
    pub fn record_complete(&mut self, now: Instant) -> bool {
        let was_complete = self.had_all_rules && now < self.not_before + COMPLETE_HOLD;
        self.failing_since = None;
        self.had_all_rules = true;
        self.not_before = now + COMPLETE_HOLD;
        was_complete
    }

    /// Records a report of `why` the pod is left unchanged, if the report is due: a new reason at
    /// once, the same reason once in [`REPORT_INTERVAL`]. Returns whether it is due.
    pub fn record_report_if_due(&mut self, why: &str, now: Instant) -> bool {
        if let Some(last) = &self.last_report
            && last.why == why
            && now < last.at + REPORT_INTERVAL
        {
            return false;
        }
        self.last_report = Some(Report { why: why.to_owned(), at: now });
        self.is_reported = true;
        true
    }

    /// Records that an audit found the pod with all its rules at `now`, and forgets the earlier
    /// attempts: if the pod loses rules again, that is repaired and reported at once. Returns
    /// whether a report has to be ended, because no repair has ended it.
    pub fn end(&mut self, now: Instant) -> bool {
        let was_reported = self.is_reported;
        *self = Attempts::none(now);
        was_reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    #[test]
    fn a_failed_repair_waits_longer_after_each_failure() {
        let now = Instant::now();
        let mut attempts = Attempts::none(now);
        assert_eq!(attempts.wait(now), Duration::ZERO);
        // The delay is shortened by up to two fifths at random.
        for (name, wait, shortest, longest) in [
            ("first failure", 0, 3, 5),
            ("second failure", 0, 6, 10),
            ("third failure", 0, 12, 20),
            ("a rejection with a wait of its own", 60, 60, 60),
            ("fifth failure", 0, 48, 80),
        ] {
            attempts.record_attempt(now, Duration::from_secs(wait));
            let seconds = attempts.wait(now).as_secs_f64();
            assert!((shortest.into()..=longest.into()).contains(&seconds), "{name}: {seconds}");
        }
        attempts.record_repair();
        attempts.record_attempt(now, Duration::ZERO);
        assert!(attempts.wait(now) <= RETRIES[0], "a repair forgets the failures");
    }

    #[test]
    fn a_new_reason_is_reported_at_once_and_repeated_before_its_event_expires() {
        let begin = Instant::now();
        let mut attempts = Attempts::none(begin);
        for (name, why, at, is_due) in [
            ("a first reason", "a", 0, true),
            ("the same soon after", "a", 39, false),
            ("the same before the Event expires", "a", 40, true),
            ("the same soon after the second report", "a", 79, false),
            ("another reason", "b", 79, true),
        ] {
            assert_eq!(attempts.record_report_if_due(why, begin + minutes(at)), is_due, "{name}");
        }
    }

    #[test]
    fn only_a_report_that_no_repair_has_ended_is_ended() {
        let begin = Instant::now();
        let mut attempts = Attempts::none(begin);
        assert!(!attempts.end(begin), "nothing was reported");
        assert!(attempts.record_report_if_due("a", begin));
        assert!(attempts.end(begin));
        assert!(!attempts.end(begin), "only once");
        assert!(attempts.record_report_if_due("a", begin), "the pod lacks rules again");
        attempts.record_repair();
        assert!(!attempts.end(begin), "the Event of the repair has ended the report");
        attempts.record_report_only(begin);
        assert!(attempts.end(begin));
        assert_eq!(attempts.wait(begin), Duration::ZERO, "the pod may lose rules again");
    }

    #[test]
    fn failures_are_reported_after_a_minute_and_then_as_often_as_other_reasons() {
        let begin = Instant::now();
        let mut attempts = Attempts::none(begin);
        for (name, seconds, is_due) in [
            ("first failure", 0, false),
            ("within the minute", 59, false),
            ("after a minute", 60, true),
            ("soon after the report", 120, false),
            ("before the Event expires", 60 + 2400, true),
        ] {
            let now = begin + Duration::from_secs(seconds);
            assert_eq!(attempts.record_failure(now), is_due, "{name}");
        }
        attempts.record_repair();
        let later = begin + minutes(600);
        assert!(!attempts.record_failure(later), "the first failure after a repair");
        assert!(!attempts.record_complete(later));
        assert!(!attempts.record_failure(later + minutes(2)), "the first since it had its rules");
    }

    #[test]
    fn a_refused_eviction_is_not_tried_again_within_a_minute() {
        let now = Instant::now();
        let mut attempts = Attempts::none(now);
        attempts.record_attempt(now, EVICTION_RETRY);
        assert_eq!(attempts.wait(now + Duration::from_secs(59)), Duration::from_secs(1));
        assert_eq!(attempts.wait(now + minutes(1)), Duration::ZERO);
    }

    #[test]
    fn a_skipped_pod_does_not_count_as_failing() {
        let begin = Instant::now();
        let mut attempts = Attempts::none(begin);
        attempts.record_attempt(begin, EVICTION_RETRY);
        assert!(!attempts.record_failure(begin + minutes(5)), "its first failure");
    }

    #[test]
    fn a_pod_with_all_rules_is_reported_if_its_validator_fails_again() {
        let begin = Instant::now();
        let mut attempts = Attempts::none(begin);
        assert!(!attempts.record_complete(begin), "its validator has to run again first");
        assert_eq!(attempts.wait(begin), COMPLETE_HOLD);
        assert!(attempts.record_complete(begin + minutes(15)), "it has run since");
        assert!(!attempts.record_complete(begin + minutes(60)), "long after");
        attempts.record_repair();
        assert!(!attempts.record_complete(begin + minutes(61)), "it lost rules since");
    }

    #[test]
    fn a_pod_that_is_only_reported_waits_for_its_next_report() {
        let begin = Instant::now();
        let mut attempts = Attempts::none(begin);
        attempts.record_report_only(begin);
        assert_eq!(attempts.wait(begin + minutes(39)), minutes(1));
    }
}
