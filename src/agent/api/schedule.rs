//! Decides when the agent sends requests to the API server. Pure but for the jitter, so that
//! tests can run it through simulated days.
//!
//! An idle node sends less than one request in 5 minutes: at 5,000 nodes that is less than 17 a
//! second.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use super::token::Fallback;

/// Longest time between two checks of a token that the API server accepts. Jitter takes up to
/// two fifths off, so that the checks come 6 to 10 minutes apart.
const CHECK_PERIOD: Duration = Duration::from_secs(600);
/// Shortest time between two checks that plugin records ask for. The API server caches a token
/// review for 10 s, so an earlier check could still see a revoked token accepted.
const RECORD_GAP: Duration = Duration::from_secs(12);
/// The gap doubles with each such check that finds nothing new, at most this often.
const RECORD_GAP_DOUBLINGS: u32 = 3;
/// Shortest time between two checks of changed kubeconfigs.
const CHANGE_GAP: Duration = Duration::from_millis(500);
/// First and longest wait after a check without a usable response.
const NO_RESPONSE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];
/// First and longest wait after a check that found the token refused: the agent is not ready
/// until it is accepted.
const REFUSED: [Duration; 2] = [RECORD_GAP, Duration::from_secs(120)];
/// First and longest wait after a failed TokenRequest, while the agent's token serves.
const RENEWAL: [Duration; 2] = [Duration::from_secs(1), CHECK_PERIOD];
/// The same while the plugin's last token serves, which is checked as well.
const EARLY_RENEWAL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30 * 60)];
/// The same while no token serves.
const URGENT_RENEWAL: [Duration; 2] = NO_RESPONSE;
/// Longest time over which nodes that start together spread renewals that are overdue.
const START_SPREAD: Duration = Duration::from_secs(60);

/// What the API server says about a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    Accepted,
    /// 401 or 403.
    Refused,
    /// No response, or one that says nothing about the token.
    Unknown,
}

/// When the next requests are due.
pub struct Schedule {
    /// The next TokenRequest; none if no account is configured.
    renewal: Option<Instant>,
    check: Instant,
    /// When the last check was sent.
    checked: Option<Instant>,
    /// The last check's result.
    result: Option<CheckResult>,
    /// Whether a plugin record asked for the next check.
    by_record: bool,
    /// Checks in a row that records asked for and that found nothing new.
    in_vain: u32,
    check_failures: u32,
    renewal_failures: u32,
    /// Issued tokens in a row that the API server refused.
    revocations: u32,
}

impl Schedule {
    /// `renewal` is the time until the first TokenRequest. The first check waits for
    /// [`Schedule::kubeconfig_changed`].
    pub fn new(now: Instant, renewal: Option<Duration>) -> Schedule {
        Schedule {
            renewal: renewal.map(|wait| now + wait),
            check: now + period(),
            checked: None,
            result: None,
            by_record: false,
            in_vain: 0,
            check_failures: 0,
            renewal_failures: 0,
            revocations: 0,
        }
    }

    /// When the first request is due.
    pub fn next(&self) -> Instant {
        self.renewal
            .map_or(self.check, |renewal| renewal.min(self.check))
    }

    pub fn is_renewal_due(&self, now: Instant) -> bool {
        self.renewal.is_some_and(|due| due <= now)
    }

    pub fn is_check_due(&self, now: Instant) -> bool {
        self.check <= now
    }

    /// No check has seen this kubeconfig yet.
    pub fn kubeconfig_changed(&mut self, now: Instant) {
        self.in_vain = 0;
        self.result = None;
        self.by_record = false;
        self.check_after(now, CHANGE_GAP);
    }

    /// A plugin record says that the API server refused the plugin. Any process that can write
    /// to the socket can say so, as often as it likes.
    pub fn record_refused(&mut self, now: Instant) {
        let whole = RECORD_GAP * (1 << self.in_vain.min(RECORD_GAP_DOUBLINGS));
        let before = self.check;
        self.check_after(now, whole);
        self.by_record |= self.check < before;
    }

    /// Moves the check forward to `gap` after the last one, or to `now` if that is over.
    fn check_after(&mut self, now: Instant, gap: Duration) {
        let allowed = self.checked.map_or(now, |last| now.max(last + gap));
        self.check = self.check.min(allowed);
    }

    /// A check was due, but the kubeconfig cannot be read. The reconciler asks for a check once
    /// it has written another.
    pub fn nothing_to_check(&mut self, now: Instant) {
        self.by_record = false;
        self.check = now + period();
    }

    /// A check was sent and came to `result`. The next one is not sooner than `retry_after`.
    pub fn checked(&mut self, now: Instant, result: CheckResult, retry_after: Duration) {
        let by_record = std::mem::take(&mut self.by_record);
        let changed = self.result.replace(result) != Some(result);
        if changed {
            self.check_failures = 0;
        }
        self.in_vain = match result {
            _ if changed => 0,
            _ if by_record => self.in_vain.saturating_add(1),
            CheckResult::Accepted => 0,
            CheckResult::Refused | CheckResult::Unknown => self.in_vain,
        };
        let wait = match result {
            CheckResult::Accepted => {
                self.revocations = 0;
                period()
            }
            CheckResult::Refused => backoff(REFUSED, self.check_failures),
            CheckResult::Unknown => backoff(NO_RESPONSE, self.check_failures),
        };
        self.check_failures = self.check_failures.saturating_add(1);
        self.checked = Some(now);
        self.check = now + wait.max(retry_after);
    }

    /// A TokenRequest brought a token that lives for `life`.
    pub fn renewed(&mut self, now: Instant, life: Duration) {
        self.renewal_failures = 0;
        self.renewal = Some(now + between(life * 2 / 5, life / 2));
    }

    /// A TokenRequest failed, and the plugin has the `fallback`. The next one is not sooner than
    /// `retry_after`.
    pub fn not_renewed(&mut self, now: Instant, fallback: Fallback, retry_after: Duration) {
        let limits = match fallback {
            Fallback::AgentsToken => RENEWAL,
            Fallback::LastToken => EARLY_RENEWAL,
            Fallback::NoToken => URGENT_RENEWAL,
        };
        let wait = backoff(limits, self.renewal_failures).max(retry_after);
        self.renewal_failures = self.renewal_failures.saturating_add(1);
        self.renewal = Some(now + wait);
    }

    /// The token in the kubeconfig is the agent's, and a denied TokenRequest has just shown that
    /// the API server knows it. So the requests that go on stand for the periodic check.
    pub fn token_known(&mut self, now: Instant) {
        if self.result == Some(CheckResult::Accepted) && !self.by_record {
            self.check = self.check.max(now + 2 * CHECK_PERIOD);
        }
    }

    /// The API server refuses the token that it issued: asks for another at once, and ever later
    /// if it refuses that one too.
    pub fn revoked(&mut self, now: Instant) {
        let wait = match self.revocations.checked_sub(1) {
            None => Duration::ZERO,
            Some(earlier) => backoff(RENEWAL, earlier),
        };
        self.revocations = self.revocations.saturating_add(1);
        self.renewal = self.renewal.map(|_| now + wait);
    }
}

/// Time until a token is renewed that the agent found on the host: `until_half_life`, and with
/// `left` until its end.
pub fn first_renewal(until_half_life: Duration, left: Duration) -> Duration {
    match until_half_life.is_zero() {
        true => between(Duration::ZERO, START_SPREAD.min(left / 4)),
        false => between(until_half_life * 4 / 5, until_half_life),
    }
}

fn period() -> Duration {
    between(CHECK_PERIOD * 3 / 5, CHECK_PERIOD)
}

/// Wait after some `failures`: doubles from the first to the longest, less up to two fifths.
fn backoff([first, longest]: [Duration; 2], failures: u32) -> Duration {
    let whole = first.saturating_mul(1 << failures.min(16)).min(longest);
    between(whole * 3 / 5, whole)
}

/// A random time from `low` to `high`, so that nodes that start together do not ask together.
pub fn between(low: Duration, high: Duration) -> Duration {
    // The hasher's keys are the standard library's randomness. As fine as a u32, since coarse
    // steps of a long time would be points where many nodes meet.
    let random = RandomState::new().hash_one(0) as u32;
    low + high
        .saturating_sub(low)
        .mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests;
