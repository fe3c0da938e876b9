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
/// kubelet restarts the validator after at most 5 minutes, and then it succeeds.
const COMPLETE_HOLD: Duration = Duration::from_secs(600);

/// Time between two reports of a pod that is left unchanged.
const REPORT_INTERVAL: Duration = Duration::from_secs(3600);

/// Earlier attempts to repair one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempts {
    not_before: Instant,
    /// Number of attempts since the last repair.
    failures: u32,
    /// The last report of why the pod was left unchanged.
    last_report: Option<Report>,
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
        Attempts { not_before: now, failures: 0, last_report: None, had_all_rules: false }
    }

    /// Returns how long the pod has to wait from `now` on.
    pub fn wait(&self, now: Instant) -> Duration {
        self.not_before.saturating_duration_since(now)
    }

    /// Records a failed attempt. The pod waits at least for `wait`, and longer after each failure.
    pub fn record_failure(&mut self, now: Instant, wait: Duration) {
        self.not_before = now + wait.max(delay(RETRIES, self.failures));
        self.failures += 1;
    }

    pub fn record_repair(&mut self) {
        self.failures = 0;
        self.had_all_rules = false;
    }

    /// Records that the pod was only reported. It stays stranded, and its validator fails again
    /// every few seconds.
    pub fn record_report_only(&mut self, now: Instant) {
        self.record_repair();
        self.not_before = now + REPORT_INTERVAL;
    }

    /// Records that the pod has all its rules, although its validator failed. Returns whether
    /// that was so some minutes before, too: then the validator has run again since, and fails in
    /// spite of the rules.
    pub fn record_complete(&mut self, now: Instant) -> bool {
        let was_complete = self.had_all_rules && now < self.not_before + COMPLETE_HOLD;
        self.had_all_rules = true;
        self.not_before = now + COMPLETE_HOLD;
        was_complete
    }

    /// Returns whether to report `why` the pod is left unchanged: a new reason at once, the same
    /// reason once in [`REPORT_INTERVAL`]. Records the report.
    pub fn is_report_due(&mut self, why: &str, now: Instant) -> bool {
        if let Some(last) = &self.last_report
            && last.why == why
            && now < last.at + REPORT_INTERVAL
        {
            return false;
        }
        self.last_report = Some(Report { why: why.to_owned(), at: now });
        true
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
            attempts.record_failure(now, Duration::from_secs(wait));
            let seconds = attempts.wait(now).as_secs_f64();
            assert!((shortest.into()..=longest.into()).contains(&seconds), "{name}: {seconds}");
        }
        attempts.record_repair();
        attempts.record_failure(now, Duration::ZERO);
        assert!(attempts.wait(now) <= RETRIES[0], "a repair forgets the failures");
    }

    #[test]
    fn a_new_reason_is_reported_at_once_and_repeated_hourly() {
        let begin = Instant::now();
        let mut attempts = Attempts::none(begin);
        for (name, why, at, is_due) in [
            ("a first reason", "a", 0, true),
            ("the same within an hour", "a", 30, false),
            ("the same after an hour", "a", 60, true),
            ("the same within the next hour", "a", 90, false),
            ("another reason", "b", 91, true),
        ] {
            assert_eq!(attempts.is_report_due(why, begin + minutes(at)), is_due, "{name}");
        }
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
    fn a_pod_that_is_only_reported_waits_for_an_hour() {
        let begin = Instant::now();
        let mut attempts = Attempts::none(begin);
        attempts.record_report_only(begin);
        assert_eq!(attempts.wait(begin + minutes(59)), minutes(1));
    }
}
