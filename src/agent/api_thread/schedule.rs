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

/// Limits of the wait between two checks of an accepted token. Both are equal, so that the wait
/// does not grow.
const ACCEPTED: Limits = [CHECK_PERIOD; 2];
/// First and longest wait after a check without a usable response or of a rejected token, and after
/// a failed TokenRequest while the plugin has no valid token.
const RETRY: Limits = [Duration::from_millis(500), Duration::from_secs(60)];
/// First and longest wait before the next TokenRequest if the last one failed while the plugin's
/// token is valid, or if the API server keeps rejecting the tokens that it issues. The wait is
/// longer than [`RETRY`], because the token is also checked, and the checks are requests too.
const RENEWAL_RETRY: Limits = [Duration::from_secs(1), Duration::from_secs(30 * 60)];
/// Longest time by which a retry is delayed at random after the time that an overloaded API server
/// asks clients to wait. Without the delay all nodes would retry together, because the API server
/// asks all of them to wait for the same time.
const OVERLOAD_SPREAD: Duration = Duration::from_secs(10);
/// Longest time over which the first checks of adopted tokens are spread. Shorter than
/// [`OVERLOAD_SPREAD`], because the agent is not ready before its check.
const FIRST_CHECK_SPREAD: Duration = Duration::from_secs(2);

pub struct Schedule {
    /// When the next TokenRequest is due. `None` if the plugin has no ServiceAccount of its own.
    pub renewal_due: Option<Instant>,
    /// When the next check of the token is due.
    pub check_due: Instant,
    /// Earliest time of the first check. Later than the start only if the plugin has a token
    /// already. Without a token, pods wait for the agent, so the first check is not delayed.
    first_check: Instant,
    last_check: Option<Instant>,
    /// Result of the last check. `None` if the kubeconfig has changed since.
    last_result: Option<TokenCheckResult>,
    /// Number of consecutive checks with `last_result`.
    equal_results: u32,
    /// Number of consecutive TokenRequests that failed.
    renewal_failures: u32,
    /// Number of consecutive issued tokens that the API server rejected.
    revocations: u32,
}

impl Schedule {
    /// Starts a schedule. `until_renewal` is the time until the first TokenRequest. It is zero
    /// unless the agent has found a valid token on the host, and `None` if the plugin has no
    /// ServiceAccount of its own. The first check is due after the check period, or earlier after a
    /// call of [`Schedule::check_changed_kubeconfig`].
    pub fn new(now: Instant, until_renewal: Option<Duration>) -> Schedule {
        let spread = match until_renewal {
            None | Some(Duration::ZERO) => Duration::ZERO,
            Some(_) => FIRST_CHECK_SPREAD,
        };
        Schedule {
            first_check: now + jitter(spread),
            renewal_due: until_renewal.map(|wait| now + wait),
            check_due: now + delay(ACCEPTED, 0),
            last_check: None,
            last_result: None,
            equal_results: 0,
            renewal_failures: 0,
            revocations: 0,
        }
    }

    /// Returns when the next request is due.
    pub fn next_due(&self) -> Instant {
        match self.renewal_due {
            Some(renewal_due) => renewal_due.min(self.check_due),
            None => self.check_due,
        }
    }

    /// Schedules an earlier check, because the kubeconfig has another token.
    pub fn check_changed_kubeconfig(&mut self, now: Instant) {
        self.last_result = None;
        self.check_earlier(now, KUBECONFIG_CHANGE_GAP);
    }

    /// Schedules an earlier check, because a plugin record reports that the API server is
    /// unreachable or rejected the plugin's token. Does nothing if the last check has shown the
    /// rejection already. Any process that can write to the socket can send many such records, so
    /// the rate of these checks is limited.
    pub fn check_after_plugin_failure(&mut self, now: Instant) {
        if self.last_result != Some(TokenCheckResult::Rejected) {
            self.check_earlier(now, PLUGIN_FAILURE_GAP);
        }
    }

    /// Schedules the next check `gap` after the last one, or for now if that time has passed. Never
    /// postpones the check.
    fn check_earlier(&mut self, now: Instant, gap: Duration) {
        let earliest = match self.last_check {
            Some(last) => last + gap,
            None => self.first_check,
        };
        self.check_due = self.check_due.min(earliest.max(now));
    }

    /// Schedules the next check after a check with this `result`, not before `retry_after` has
    /// passed.
    pub fn schedule_next_check(
        &mut self,
        now: Instant,
        result: TokenCheckResult,
        retry_after: Duration,
    ) {
        if self.last_result != Some(result) {
            self.equal_results = 0;
        }
        self.last_result = Some(result);
        let limits = match result {
            TokenCheckResult::Accepted => {
                self.revocations = 0;
                ACCEPTED
            }
            TokenCheckResult::Rejected | TokenCheckResult::Unknown => RETRY,
        };
        self.last_check = Some(now);
        self.check_due = now + retry_wait(limits, self.equal_results, retry_after);
        self.equal_results = self.equal_results.saturating_add(1);
    }

    /// Schedules the TokenRequest that renews a new token, which is valid for `lifetime`.
    pub fn schedule_renewal(&mut self, now: Instant, lifetime: Duration) {
        self.renewal_failures = 0;
        self.renewal_due = Some(now + renewal_wait(lifetime));
    }

    /// Schedules the next TokenRequest after a failed one, not before `retry_after` has passed.
    /// `has_valid_token` says whether the plugin still has a token that was issued before and that
    /// the last check found valid.
    pub fn retry_renewal(&mut self, now: Instant, has_valid_token: bool, retry_after: Duration) {
        let limits = if has_valid_token { RENEWAL_RETRY } else { RETRY };
        self.renewal_due = Some(now + retry_wait(limits, self.renewal_failures, retry_after));
        self.renewal_failures = self.renewal_failures.saturating_add(1);
    }

    /// Schedules a TokenRequest because the API server rejects the token that it issued last. The
    /// request is due at once. If the API server rejects the following tokens too, the wait grows.
    pub fn replace_revoked_token(&mut self, now: Instant) {
        let mut wait = Duration::ZERO;
        if self.revocations > 0 {
            wait = delay(RENEWAL_RETRY, self.revocations - 1);
        }
        self.revocations = self.revocations.saturating_add(1);
        if self.renewal_due.is_some() {
            self.renewal_due = Some(now + wait);
        }
    }
}

/// Returns the wait after a failure that follows `failures` others. The wait is not shorter than
/// `retry_after`, the time that an overloaded API server asks clients to wait.
fn retry_wait(limits: Limits, failures: u32, retry_after: Duration) -> Duration {
    let wait = delay(limits, failures);
    if retry_after.is_zero() {
        return wait;
    }
    wait.max(retry_after + jitter(OVERLOAD_SPREAD))
}

#[cfg(test)]
mod tests;
