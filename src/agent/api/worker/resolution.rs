//! Resolves the host name of the API server for the plugin's kubeconfig.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::Worker;
use crate::agent::api::server_address::{MAX_ADDRESSES, ServerAddress, choose};
use crate::agent::settings::Settings;
use crate::kube::kubeconfig;

/// Longest time to connect to one of several addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl Worker {
    /// Resolves the name if that is due, and wakes the reconciler if its address or an error
    /// changed.
    pub(super) fn resolve(&mut self) {
        let settings = &self.api.settings;
        let (Some(schedule), Some(host), Some(port)) =
            (&mut self.resolution, settings.api_name(), &settings.api_port)
        else {
            return;
        };
        if std::mem::take(&mut self.api.state().unreachable_reported) {
            schedule.unreachable_reported(Instant::now());
        }
        if schedule.due() > Instant::now() {
            return;
        }
        // The settings accept only ports.
        let port = port.parse().unwrap_or_default();
        let found = addresses(host, port);
        let is_suspect = schedule.done(Instant::now(), found.is_ok());
        let mut next = self.api.state().server_address.clone();
        match found {
            Ok(found) => {
                let answers = |address| {
                    let address = SocketAddr::new(address, port);
                    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok()
                };
                next.address = choose(next.address, &found, is_suspect, answers);
                next.error = None;
            }
            Err(error) => next.error = Some(error.to_string()),
        }
        let mut state = self.api.state();
        if state.server_address != next {
            state.server_address = next;
            drop(state);
            self.api.waker.wake();
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

/// Returns the address in the kubeconfig on the host, if it is of the API server that the settings
/// name.
pub fn adopted_address(settings: &Settings) -> ServerAddress {
    let name = settings.api_name();
    let access = kubeconfig::read(&settings.kubeconfig()).ok();
    let access =
        access.filter(|access| name.is_some() && access.tls_server_name.as_deref() == name);
    ServerAddress { address: access.and_then(|access| access.address()), error: None }
}
