//! Resolves the API server's name for the plugin's kubeconfig, if the settings name the API server by a
//! host name. The plugin resolves no names.
//!
//! The address is kept as long as the name resolves to it and the API server answers there, so
//! that a DNS server that changes the order of its addresses causes no writes. If the name cannot
//! be resolved, the last address stays in use.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::schedule::{NO_RESPONSE, RECORD_GAP, period};
use crate::agent::settings::Settings;
use crate::backoff::Backoff;
use crate::kube::kubeconfig;

/// Most addresses of a name that are used.
const MAX_ADDRESSES: usize = 8;
/// Longest time to connect to one of several addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// What is known about the address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerAddress {
    /// The address that belongs in the kubeconfig. `None`: the name was never resolved.
    pub address: Option<IpAddr>,
    /// Why the last resolution failed, if it did.
    pub error: Option<String>,
}

impl ServerAddress {
    /// Returns the address in the kubeconfig on the host, if it is of the API server that the settings
    /// name.
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
    due: Instant,
    /// Earliest time of the next resolution that an unreachable API server causes.
    earliest: Instant,
    failures: Backoff,
}

impl Resolution {
    /// The first resolution is due at `now`. `None` if the settings have the IP address of the API
    /// server.
    pub fn of(settings: &Settings, now: Instant) -> Option<Resolution> {
        let port = settings.api_port.as_ref()?.parse().ok()?;
        Some(Resolution::new(settings.api_name()?, port, now))
    }

    fn new(host: &str, port: u16, now: Instant) -> Resolution {
        Resolution {
            host: host.to_owned(),
            port,
            due: now,
            earliest: now,
            failures: Backoff::new(NO_RESPONSE),
        }
    }

    pub fn due(&self) -> Instant {
        self.due
    }

    /// Schedules the next resolution earlier, because the API server did not respond at the
    /// address. Any process that can write to the record socket can report that, so the rate is
    /// limited.
    pub fn unreachable_reported(&mut self, now: Instant) {
        self.due = self.due.min(self.earliest.max(now));
    }

    /// Resolves the name. Returns the next resolution, and the address that replaces `current`: after
    /// a failure the same address, with the error.
    pub fn run(mut self, current: &ServerAddress) -> (Resolution, ServerAddress) {
        let found = addresses(&self.host, self.port);
        self.done(Instant::now(), found.is_ok());
        let answers = |address| {
            let address = SocketAddr::new(address, self.port);
            TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok()
        };
        let known = match found {
            Ok(found) => {
                ServerAddress { address: choose(current.address, &found, answers), error: None }
            }
            Err(error) => {
                ServerAddress { address: current.address, error: Some(error.to_string()) }
            }
        };
        (self, known)
    }

    /// Schedules the next resolution after one that succeeded, or failed.
    fn done(&mut self, now: Instant, succeeded: bool) {
        self.due = now + if succeeded { period() } else { self.failures.next_delay() };
        self.earliest = now + RECORD_GAP;
        if succeeded {
            self.failures.reset();
        }
    }
}

/// Returns the addresses of `host`, each once.
fn addresses(host: &str, port: u16) -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    for address in (host, port).to_socket_addrs()? {
        if !found.contains(&address.ip()) && found.len() < MAX_ADDRESSES {
            found.push(address.ip());
        }
    }
    match found.is_empty() {
        true => Err(io::Error::other("the name has no address")),
        false => Ok(found),
    }
}

/// Chooses among the addresses `found` of the name the first that `answers`, the `current` one first. If
/// no address answers, the current one stays, as long as it was found. `None`: no address was found.
fn choose(
    current: Option<IpAddr>,
    found: &[IpAddr],
    answers: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    let current = current.filter(|address| found.contains(address));
    let fallback = current.or(found.first().copied());
    match found {
        [] | [_] => fallback,
        _ => current
            .into_iter()
            .chain(found.iter().copied())
            .find(|address| answers(*address))
            .or(fallback),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn the_current_address_stays_until_it_is_gone_or_does_not_answer() {
        let all = [address(1), address(2), address(3)];
        let current = Some(address(3));
        let unasked = |_| -> bool { panic!("connected without need") };
        assert_eq!(choose(None, &all[..1], unasked), Some(address(1)));
        assert_eq!(choose(current, &all[1..2], unasked), Some(address(2)));
        assert_eq!(choose(current, &[], unasked), None);
        assert_eq!(choose(current, &all, |_| true), current);
        let second = |found| found == address(2);
        assert_eq!(choose(None, &all, second), Some(address(2)));
        assert_eq!(choose(current, &all, second), Some(address(2)));
        assert_eq!(choose(current, &all, |_| false), current);
        assert_eq!(choose(current, &all[..2], |_| false), Some(address(1)));
    }

    #[test]
    fn a_name_is_resolved_every_6_to_10_minutes_and_failed_calls_cause_few_resolutions() {
        let start = Instant::now();
        let mut schedule = Resolution::new("api", 443, start);
        assert_eq!(schedule.due(), start);
        for failures in 0..12 {
            schedule.done(start, false);
            let wait = schedule.due() - start;
            assert!(wait <= MINUTE && (failures < 8 || wait >= MINUTE * 3 / 5), "{wait:?}");
        }
        schedule.done(start, true);
        assert!((6 * MINUTE..=10 * MINUTE).contains(&(schedule.due() - start)));
        let (mut now, mut resolutions) = (start, 0);
        while now < start + 10 * MINUTE {
            schedule.unreachable_reported(now);
            if schedule.due() <= now {
                resolutions += 1;
                schedule.done(now, true);
            }
            now += Duration::from_millis(100);
        }
        assert!((45..=50).contains(&resolutions), "{resolutions}");
    }
}
