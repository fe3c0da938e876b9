//! Resolves the API server's name for the plugin's kubeconfig, if the settings name the API server by a
//! host name. The plugin resolves no names.
//!
//! The address is kept as long as the name resolves to it and the API server is reachable there, so
//! that a DNS server that changes the order of its addresses causes no writes. If the name cannot
//! be resolved, the last address stays in use.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::schedule::{RECORD_GAP, RETRY, period};
use crate::agent::settings::Settings;
use crate::backoff::Backoff;
use crate::kube::kubeconfig;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerAddress {
    /// The address that belongs in the kubeconfig. `None`: the name was never resolved.
    pub address: Option<IpAddr>,
    pub error: Option<String>,
}

impl ServerAddress {
    /// Returns the address in the kubeconfig on the host, if that has the API server's name.
    pub fn adopted(settings: &Settings) -> ServerAddress {
        let name = settings.api_name();
        let access = kubeconfig::read(&settings.node.kubeconfig()).ok();
        let access =
            access.filter(|access| name.is_some() && access.tls_server_name.as_deref() == name);
        ServerAddress { address: access.and_then(|access| access.address()), error: None }
    }
}

/// Resolves the name, and knows when to resolve it next.
pub struct Resolution {
    host: String,
    port: u16,
    pub due: Instant,
    /// Earliest time of the next resolution that an unreachable API server causes.
    earliest: Instant,
    /// The API server was unreachable at the address since the last resolution.
    is_unreachable: bool,
    /// Resolutions in a row that failed, or that followed an unreachable API server.
    failures: Backoff,
}

impl Resolution {
    /// The first resolution is due at `now`. `None` if the settings have an IP address.
    pub fn of(settings: &Settings, now: Instant) -> Option<Resolution> {
        let port = settings.api_port.as_ref()?.parse().ok()?;
        Some(Resolution::new(settings.api_name()?, port, now))
    }

    fn new(host: &str, port: u16, now: Instant) -> Resolution {
        let host = host.to_owned();
        let failures = Backoff::new(RETRY);
        Resolution { host, port, due: now, earliest: now, is_unreachable: false, failures }
    }

    /// Schedules the next resolution earlier, because the API server did not respond at the
    /// address. Any process that can write to the record socket can report that, and an outage of the
    /// API server lasts at each address, so the rate is limited.
    pub fn unreachable_reported(&mut self, now: Instant) {
        self.due = self.due.min(self.earliest.max(now));
        self.is_unreachable = true;
    }

    /// Resolves the name. Returns the next resolution, and the address that replaces `current`: after
    /// a failure the same address, with the error.
    pub fn run(mut self, current: &ServerAddress) -> (Resolution, ServerAddress) {
        let found = (&*self.host, self.port).to_socket_addrs();
        let found = found.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>());
        let chosen = match found {
            Ok(found) => choose(current.address, &found, self.is_unreachable)
                .ok_or_else(|| "the name has no address".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        self.done(Instant::now(), chosen.is_ok());
        let address = chosen.as_ref().ok().copied().or(current.address);
        (self, ServerAddress { address, error: chosen.err() })
    }

    /// Schedules the next resolution after one that succeeded, or failed.
    fn done(&mut self, now: Instant, succeeded: bool) {
        let mut wait = Duration::ZERO;
        match succeeded && !self.is_unreachable {
            true => self.failures.reset(),
            false => wait = self.failures.next_delay(),
        }
        self.due = now + if succeeded { period() } else { wait };
        self.earliest = now + wait.max(RECORD_GAP);
        self.is_unreachable &= !succeeded;
    }
}

/// Chooses one of the addresses `found`, which may have an address more than once: the `current` one, or
/// the next other one if the API server `is_unreachable` there. Otherwise the first.
fn choose(current: Option<IpAddr>, found: &[IpAddr], is_unreachable: bool) -> Option<IpAddr> {
    let Some(position) = found.iter().position(|address| Some(*address) == current) else {
        return found.first().copied();
    };
    let mut next = found.iter().copied().cycle().skip(position).take(found.len());
    next.find(|address| !is_unreachable || Some(*address) != current).or(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_current_address_stays_until_it_is_gone_or_unreachable() {
        let all = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        let [first, second, third] = all.map(Some);
        for (current, found, is_unreachable, chosen) in [
            (None, &all[..], false, first),
            (None, &all, true, first),
            (third, &all, false, third),
            (third, &all[..2], false, first),
            (second, &all, true, third),
            (third, &all, true, first),
            (first, &all[..1], true, first),
            (first, &[all[0], all[0], all[1]], true, second),
            (first, &[], false, None),
        ] {
            assert_eq!(choose(current, found, is_unreachable), chosen, "{current:?} of {found:?}");
        }
    }

    #[test]
    fn a_name_is_resolved_every_6_to_10_minutes_and_failed_calls_cause_few_resolutions() {
        let start = Instant::now();
        let mut schedule = Resolution::new("api", 443, start);
        assert_eq!(schedule.due, start);
        for failures in 0..12 {
            schedule.done(start, false);
            let wait = schedule.due - start;
            assert!(wait <= MINUTE && (failures < 8 || wait >= MINUTE * 3 / 5), "{wait:?}");
        }
        schedule.done(start, true);
        assert!((6 * MINUTE..=10 * MINUTE).contains(&(schedule.due - start)));
        let (mut now, mut resolutions) = (start, 0);
        while now < start + 10 * MINUTE {
            schedule.unreachable_reported(now);
            if schedule.due <= now {
                resolutions += 1;
                schedule.done(now, true);
            }
            now += Duration::from_millis(100);
        }
        assert!((14..=25).contains(&resolutions), "{resolutions}");
    }
}
