//! Decides when the agent sends token requests and token checks to the API server. Pure but for
//! the jitter, so that tests can simulate days.
//!
//! An idle node sends less than one request in 5 minutes, the repair controller's included. In a
//! cluster of 5,000 nodes that is less than 17 requests a second.

use std::time::{Duration, Instant};

use super::token_check::{
    CHECK_PERIOD, KUBECONFIG_CHANGE_GAP, PLUGIN_FAILURE_GAP, TokenCheckResult,
};
use super::token_renewal::renewal_wait;
use crate::backoff::{Limits, delay, jitter};

const PERIOD: Limits = [CHECK_PERIOD; 2];
/// First and longest wait after a check without a usable response or of a rejected token, and after
/// a failed TokenRequest while the plugin has no valid token.
const RETRY: Limits = [Duration::from_millis(500), Duration::from_secs(60)];
/// First and longest wait before a TokenRequest that follows a failed one while the plugin's last
/// token is valid, or repeated revocations. Longer, because the checks of that token are requests
/// too.
const RENEWAL_RETRY: Limits = [Duration::from_secs(1), Duration::from_secs(30 * 60)];
/// Longest time over which retries are spread after the time that an overloaded API server asks to
/// wait, which is the same for all nodes.
const OVERLOAD_SPREAD: Duration = Duration::from_secs(10);
/// Longest time over which the first checks of adopted tokens are spread. Shorter than
/// [`OVERLOAD_SPREAD`], because the agent is not ready before its check.
const FIRST_CHECK_SPREAD: Duration = Duration::from_secs(2);

pub struct Schedule {
    /// When the next TokenRequest is due; `None` if the plugin has no ServiceAccount of its own.
    pub renewal: Option<Instant>,
    pub check: Instant,
    /// Earliest time of the first check. Later than the start only if the plugin has a token:
    /// without a token, pods wait for the agent.
    first_check: Instant,
    last_check: Option<Instant>,
    /// Result of the last check of this kubeconfig.
    result: Option<TokenCheckResult>,
    /// Consecutive checks with the current result.
    check_failures: u32,
    renewal_failures: u32,
    /// Consecutive issued tokens that the API server rejected.
    revocations: u32,
}

impl Schedule {
    /// Starts a schedule. `renewal` is the time until the first TokenRequest; not zero if the agent
    /// found a valid token on the host. Without a call of
    /// [`Schedule::kubeconfig_changed`], the first check is due only after the check period.
    pub fn new(now: Instant, renewal: Option<Duration>) -> Schedule {
        let spread = match renewal {
            None | Some(Duration::ZERO) => Duration::ZERO,
            Some(_) => FIRST_CHECK_SPREAD,
        };
        Schedule {
            first_check: now + jitter(spread),
            renewal: renewal.map(|wait| now + wait),
            check: now + delay(PERIOD, 0),
            last_check: None,
            result: None,
            check_failures: 0,
            renewal_failures: 0,
            revocations: 0,
        }
    }

    /// Returns when the next request is due.
    pub fn next_due(&self) -> Instant {
        match self.renewal {
            Some(renewal) => renewal.min(self.check),
            None => self.check,
        }
    }

    /// Schedules the next check earlier, because the kubeconfig has another token.
    pub fn kubeconfig_changed(&mut self, now: Instant) {
        self.result = None;
        self.check_after(now, KUBECONFIG_CHANGE_GAP);
    }

    /// Schedules the next check earlier, because a plugin record reports that the API server is
    /// unreachable or rejected the plugin's token, unless the last check found it rejected. Any
    /// process that can write to the socket can send such records, at any rate, so the rate of
    /// these checks is limited.
    pub fn failure_reported(&mut self, now: Instant) {
        if self.result != Some(TokenCheckResult::Rejected) {
            self.check_after(now, PLUGIN_FAILURE_GAP);
        }
    }

    /// Schedules the next check `gap` after the last one, or now. Never postpones the check.
    fn check_after(&mut self, now: Instant, gap: Duration) {
        let earliest = match self.last_check {
            Some(last) => last + gap,
            None => self.first_check,
        };
        self.check = self.check.min(earliest.max(now));
    }

    /// Schedules the next check after a check with this `result`, not before `retry_after`.
    pub fn check_done(&mut self, now: Instant, result: TokenCheckResult, retry_after: Duration) {
        if self.result != Some(result) {
            self.check_failures = 0;
        }
        self.result = Some(result);
        let limits = match result {
            TokenCheckResult::Accepted => {
                self.revocations = 0;
                PERIOD
            }
            TokenCheckResult::Rejected | TokenCheckResult::Unknown => RETRY,
        };
        self.last_check = Some(now);
        self.check = now + retry_wait(limits, self.check_failures, retry_after);
        self.check_failures = self.check_failures.saturating_add(1);
    }

    /// Schedules the next TokenRequest after one that returned a token valid for `lifetime`.
    pub fn renewed(&mut self, now: Instant, lifetime: Duration) {
        self.renewal_failures = 0;
        self.renewal = Some(now + renewal_wait(lifetime));
    }

    /// Schedules the next TokenRequest after a failed one, not before `retry_after`.
    /// `is_accepted` says that the plugin has a token of its account, which the last check found
    /// valid.
    pub fn not_renewed(&mut self, now: Instant, is_accepted: bool, retry_after: Duration) {
        let limits = if is_accepted { RENEWAL_RETRY } else { RETRY };
        self.renewal = Some(now + retry_wait(limits, self.renewal_failures, retry_after));
        self.renewal_failures = self.renewal_failures.saturating_add(1);
    }

    /// Schedules a TokenRequest because the API server rejects the token that it issued: at once,
    /// and with a growing wait if it rejects the new token too.
    pub fn revoked(&mut self, now: Instant) {
        let wait = match self.revocations.checked_sub(1) {
            Some(earlier) => delay(RENEWAL_RETRY, earlier),
            None => Duration::ZERO,
        };
        self.revocations = self.revocations.saturating_add(1);
        if self.renewal.is_some() {
            self.renewal = Some(now + wait);
        }
    }
}

/// Returns the wait after a failure that follows `failures` others. An overloaded API server asks
/// to wait for `retry_after`.
fn retry_wait(limits: Limits, failures: u32, retry_after: Duration) -> Duration {
    let wait = delay(limits, failures);
    if retry_after.is_zero() {
        return wait;
    }
    wait.max(retry_after + jitter(OVERLOAD_SPREAD))
}

#[cfg(test)]
mod tests;
