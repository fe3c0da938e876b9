//! Tells whether the netns of the calling thread has IPv6.

use std::fs::File;
use std::io::{self, Read as _};

/// IPv6 addresses in the netns of the calling thread. Columns: address, interface index,
/// prefix length, scope, flags, interface name. The file is missing if the kernel has no IPv6.
const IF_INET6: &str = "/proc/thread-self/net/if_inet6";
/// How much of the list of addresses is read, in bytes: some 20,000 addresses. A process of the pod with
/// CAP_NET_ADMIN can add addresses without limit.
const LIST_LIMIT: u64 = 1 << 20;
/// Scope of an address that other hosts can reach.
const GLOBAL_SCOPE: &str = "00";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    NotInKernel,
    /// No address that other hosts can reach, or the addresses cannot be read.
    NoGlobalAddress,
    GlobalAddress,
}

pub fn state() -> State {
    state_of(File::open(IF_INET6).and_then(|file| io::read_to_string(file.take(LIST_LIMIT))))
}

fn state_of(addresses: io::Result<String>) -> State {
    match addresses {
        // A pod with so many addresses uses IPv6.
        Ok(addresses) if addresses.len() as u64 == LIST_LIMIT => State::GlobalAddress,
        Ok(addresses) if has_global_address(&addresses) => State::GlobalAddress,
        Err(error) if error.kind() == io::ErrorKind::NotFound => State::NotInKernel,
        _ => State::NoGlobalAddress,
    }
}

fn has_global_address(addresses: &str) -> bool {
    addresses.lines().any(|line| line.split_whitespace().nth(3) == Some(GLOBAL_SCOPE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_addresses_shows_the_state_of_ipv6() {
        let loopback = "00000000000000000000000000000001 01 80 10 80       lo";
        let link_local = "fe80000000000000a8bbccfffe000001 02 40 20 80     eth0";
        let global = "fd990000000000000000000000000001 02 40 00 82     eth0";
        let error = |kind: io::ErrorKind| Err(io::Error::from(kind));
        for (addresses, wanted) in [
            (Ok(format!("{loopback}\n{global}\n")), State::GlobalAddress),
            (Ok(format!("{loopback}\n{link_local}\n")), State::NoGlobalAddress),
            (Ok(String::new()), State::NoGlobalAddress),
            (Ok(" ".repeat(LIST_LIMIT as usize)), State::GlobalAddress),
            (error(io::ErrorKind::PermissionDenied), State::NoGlobalAddress),
            (error(io::ErrorKind::NotFound), State::NotInKernel),
        ] {
            assert_eq!(state_of(addresses), wanted);
        }
    }
}
