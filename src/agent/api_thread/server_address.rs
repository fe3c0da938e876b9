//! Resolves the API server's name for the plugin's kubeconfig, if the settings have a host name
//! instead of an address. The agent does it because the plugin resolves no names.
//!
//! The name is resolved before each check of the token, which shows whether the API server is
//! reachable at the address. The address stays in use as long as the name resolves to it and the
//! API server is reachable there. So a DNS server that changes the order of its addresses does not
//! cause writes of the kubeconfig. If the name cannot be resolved, the last address stays in use.

use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};

use crate::agent::settings::Settings;
use crate::kube::kubeconfig;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerAddress {
    /// The address that belongs in the kubeconfig. `None` if the name was never resolved.
    pub address: Option<IpAddr>,
    /// Why the name could not be resolved the last time.
    pub error: Option<String>,
}

impl ServerAddress {
    /// Adopts the address in the kubeconfig on the host, if the kubeconfig has the API server's
    /// name.
    pub fn adopted(settings: &Settings) -> ServerAddress {
        ServerAddress { address: address_on_host(settings), error: None }
    }

    /// Resolves `name` again. Returns the address to use from now on. If the name cannot be
    /// resolved, returns the present address with the error. `is_unreachable` says whether the API
    /// server could not be reached at the present address.
    pub fn resolve_again(&self, name: &str, is_unreachable: bool) -> ServerAddress {
        match addresses_of(name) {
            Ok(found) => {
                let address = choose(self.address, &found, is_unreachable);
                ServerAddress { address, error: None }
            }
            Err(error) => ServerAddress { address: self.address, error: Some(error.to_string()) },
        }
    }
}

/// Resolves `name` to its addresses. Fails if there are none.
fn addresses_of(name: &str) -> io::Result<Vec<IpAddr>> {
    let found = (name, 0).to_socket_addrs()?;
    let addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    if addresses.is_empty() {
        return Err(io::Error::other("the name has no address"));
    }
    Ok(addresses)
}

/// Returns the address in the kubeconfig on the host. `None` unless the kubeconfig has the API
/// server's name.
fn address_on_host(settings: &Settings) -> Option<IpAddr> {
    let name = settings.api_name()?;
    let access = kubeconfig::read(&settings.node.kubeconfig()).ok()?;
    if access.tls_server_name.as_deref() != Some(name) {
        return None;
    }
    access.address()
}

/// Chooses one of the addresses `found`, which may have an address more than once. Chooses the
/// first one if the `current` one is not among them, the next one after the current one if the API
/// server `is_unreachable` there, and else the current one.
fn choose(current: Option<IpAddr>, found: &[IpAddr], is_unreachable: bool) -> Option<IpAddr> {
    let Some(position) = found.iter().position(|address| Some(*address) == current) else {
        return found.first().copied();
    };
    if !is_unreachable {
        return current;
    }
    let (before, from_current_on) = found.split_at(position);
    for address in from_current_on.iter().chain(before) {
        if Some(*address) != current {
            return Some(*address);
        }
    }
    // The name has no other address.
    current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_address_stays_until_it_is_gone_or_unreachable() {
        let all = [
            IpAddr::from([192, 0, 2, 1]),
            IpAddr::from([192, 0, 2, 2]),
            IpAddr::from([192, 0, 2, 3]),
        ];
        let (first, second, third) = (Some(all[0]), Some(all[1]), Some(all[2]));
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
}
