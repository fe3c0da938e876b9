//! Decides which address families of a pod are redirected.

use std::fs::File;
use std::io::{self, Read as _};

use serde_json::Value;

use super::Ipv6;
use crate::cni::object::Object;
use crate::redirect::Families;

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
        Ipv6::Auto => automatic(addresses()),
    }
}

fn addresses() -> io::Result<String> {
    io::read_to_string(File::open(IF_INET6)?.take(LIST_LIMIT))
}

/// Returns the families for `auto`. A pod without IPv6 address may get one after its ADD: by router
/// advertisement, from Multus, or because the pod sets the sysctl `disable_ipv6` of an interface to
/// 0. So only a kernel without IPv6 leaves IPv6 out.
fn automatic(addresses: io::Result<String>) -> Families {
    match addresses {
        // A pod with so many addresses uses IPv6.
        Ok(addresses) if addresses.len() as u64 == LIST_LIMIT => Families::Both,
        Ok(addresses) if has_global_address(&addresses) => Families::Both,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Families::Ipv4,
        _ => Families::OptionalIpv6,
    }
}

fn has_global_address(addresses: &str) -> bool {
    addresses.lines().any(|line| line.split_whitespace().nth(3) == Some(GLOBAL_SCOPE))
}

/// Whether `prevResult` has an IPv6 address, in the format of any CNI version.
pub fn previous_has_ipv6(config: &Object) -> bool {
    let Some(previous) = config.non_null("prevResult") else {
        return false;
    };
    let Ok(previous) = serde_json::from_str::<Value>(previous.get()) else {
        return false;
    };
    let addresses = previous["ips"].as_array().into_iter().flatten();
    let is_ipv6 = |address: &Value| address.as_str().is_some_and(|text| text.contains(':'));
    previous["ip6"].is_object() || addresses.into_iter().any(|ip| is_ipv6(&ip["address"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_found_in_a_result_of_any_version() {
        let cases = [
            ("{}", false),
            (r#"{"prevResult":{"ips":[{"address":"10.0.0.1/8"}]}}"#, false),
            (r#"{"prevResult":{"ips":[{"address":"10.0.0.1/8"},{"address":"fd00::1/64"}]}}"#, true),
            (r#"{"prevResult":{"ip4":{"ip":"10.0.0.1/8"},"ip6":{"ip":"fd00::1/64"}}}"#, true),
            (r#"{"prevResult":{"ips":{}}}"#, false),
        ];
        for (config, wanted) in cases {
            let config = serde_json::from_str(config).unwrap();
            assert_eq!(previous_has_ipv6(&config), wanted);
        }
    }

    #[test]
    fn auto_leaves_ipv6_out_only_if_the_kernel_has_none() {
        let global = "fd990000000000000000000000000001 02 40 00 82     eth0";
        let error = |kind: io::ErrorKind| Err(io::Error::from(kind));
        for (addresses, wanted) in [
            (Ok(global.into()), Families::Both),
            (Ok(String::new()), Families::OptionalIpv6),
            (Ok(" ".repeat(LIST_LIMIT as usize)), Families::Both),
            (error(io::ErrorKind::PermissionDenied), Families::OptionalIpv6),
            (error(io::ErrorKind::NotFound), Families::Ipv4),
        ] {
            assert_eq!(automatic(addresses), wanted);
        }
    }

    #[test]
    fn link_local_and_loopback_addresses_do_not_require_ipv6_rules() {
        let loopback = "00000000000000000000000000000001 01 80 10 80       lo";
        let link_local = "fe80000000000000a8bbccfffe000001 02 40 20 80     eth0";
        let global = "fd990000000000000000000000000001 02 40 00 82     eth0";
        assert!(!has_global_address(""));
        assert!(!has_global_address(&format!("{loopback}\n{link_local}\n")));
        assert!(has_global_address(&format!("{loopback}\n{global}\n")));
    }
}
