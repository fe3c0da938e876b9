//! Decides how long the plugin's token is valid, and when it is renewed. Pure but for the random
//! numbers.

use std::time::Duration;

use crate::backoff::between;

/// Lifetime in seconds that is requested for the plugin's token. The API server may grant a shorter
/// one.
pub const LIFETIME_SECONDS: u64 = 24 * 3600;
/// Earliest and latest time at which a token is renewed, in percent of its lifetime. The time is
/// random, so that nodes that start together do not renew their tokens together. The rest of the
/// lifetime bridges an outage of the API server.
///
/// docs/cli.md, docs/maintainers/fleet.md, decision 0009 and the dashboard name this time, and the
/// alert on a token that expires soon depends on it.
pub const RENEWAL_PERCENT: [u32; 2] = [40, 50];
/// Longest time over which overdue renewals are spread, so that nodes that start together do not
/// send them together.
const OVERDUE_SPREAD: Duration = Duration::from_secs(60);

/// Returns the time from the issue of a token to its renewal.
pub fn renewal_wait(lifetime: Duration) -> Duration {
    let [earliest, latest] = RENEWAL_PERCENT.map(|percent| lifetime * percent / 100);
    between(earliest, latest)
}

/// Returns the time until the renewal of a token that the agent has found on the host.
/// `until_latest` is the time until the latest renewal that [`RENEWAL_PERCENT`] allows, and zero if
/// that has passed.
pub fn adopted_renewal_wait(until_latest: Duration, until_expiry: Duration) -> Duration {
    if until_latest.is_zero() {
        return between(Duration::ZERO, OVERDUE_SPREAD.min(until_expiry / 4));
    }
    let [earliest, latest] = RENEWAL_PERCENT;
    between(until_latest * earliest / latest, until_latest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn a_token_is_renewed_before_its_half_life() {
        for _ in 0..100 {
            assert!((DAY * 2 / 5..=DAY / 2).contains(&renewal_wait(DAY)));
        }
    }

    #[test]
    fn an_adopted_token_is_renewed_in_time_or_within_a_minute() {
        for _ in 0..100 {
            let wait = adopted_renewal_wait(HOUR, 12 * HOUR);
            assert!((HOUR * 4 / 5..=HOUR).contains(&wait));
            let overdue = adopted_renewal_wait(Duration::ZERO, 12 * HOUR);
            assert!(overdue <= OVERDUE_SPREAD);
            let ending = adopted_renewal_wait(Duration::ZERO, Duration::from_secs(4));
            assert!(ending <= Duration::from_secs(1));
        }
    }
}
