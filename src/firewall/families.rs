//! Which address families of the pod get redirect rules.

use std::fs::File;
use std::io::{self, Read as _};

use crate::redirect::{Families, Ipv6};

/// IPv6 addresses in the netns of the calling thread. Columns: address, interface index,
/// prefix length, scope, flags, interface name. The file is missing if the kernel has no IPv6.
const IF_INET6: &str = "/proc/thread-self/net/if_inet6";
/// How much of the list of addresses is read, in bytes: some 20,000 addresses. A process of the pod with
/// CAP_NET_ADMIN can add addresses without limit.
const LIST_LIMIT: u64 = 1 << 20;
/// Scope of an address that other hosts can reach.
const GLOBAL_SCOPE: &str = "00";

/// Returns IPv4, and IPv6 if `ipv6` says so. Call this inside the pod's netns, as `auto` looks
/// for IPv6 there.
pub fn families(ipv6: Ipv6, previous_has_ipv6: bool) -> Families {
    match ipv6 {
        Ipv6::Yes => Families::Both,
        Ipv6::No => Families::Ipv4,
        Ipv6::Auto if previous_has_ipv6 => Families::Both,
        Ipv6::Auto => {
            let open = File::open(IF_INET6);
            of_addresses(open.and_then(|file| io::read_to_string(file.take(LIST_LIMIT))))
        }
    }
}

fn of_addresses(addresses: io::Result<String>) -> Families {
    match addresses {
        // A pod with so many addresses uses IPv6.
        Ok(addresses) if addresses.len() as u64 == LIST_LIMIT => Families::Both,
        Ok(addresses) if has_global_address(&addresses) => Families::Both,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Families::Ipv4,
        // A pod without IPv6 address may get one after its ADD: by router advertisement, from Multus,
        // or because the pod sets the sysctl `disable_ipv6` of an interface to 0.
        _ => Families::OptionalIpv6,
    }
}

fn has_global_address(addresses: &str) -> bool {
    addresses.lines().any(|line| line.split_whitespace().nth(3) == Some(GLOBAL_SCOPE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_addresses_shows_whether_ipv6_is_redirected() {
        let loopback = "00000000000000000000000000000001 01 80 10 80       lo";
        let link_local = "fe80000000000000a8bbccfffe000001 02 40 20 80     eth0";
        let global = "fd990000000000000000000000000001 02 40 00 82     eth0";
        let error = |kind: io::ErrorKind| Err(io::Error::from(kind));
        for (addresses, wanted) in [
            (Ok(format!("{loopback}\n{global}\n")), Families::Both),
            (Ok(format!("{loopback}\n{link_local}\n")), Families::OptionalIpv6),
            (Ok(String::new()), Families::OptionalIpv6),
            (Ok(" ".repeat(LIST_LIMIT as usize)), Families::Both),
            (error(io::ErrorKind::PermissionDenied), Families::OptionalIpv6),
            (error(io::ErrorKind::NotFound), Families::Ipv4),
        ] {
            assert_eq!(of_addresses(addresses), wanted);
        }
    }
}
