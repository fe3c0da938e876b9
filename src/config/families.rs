//! Which address families of a pod are redirected.

use std::fs;

use serde_json::Value;

use super::Ipv6;
use crate::cni::object::Object;
use crate::rules::Family;

/// Interfaces' IPv6 addresses, of the namespace that the asking thread is in: address,
/// index, prefix length, scope, flags and name.
const ADDRESSES: &str = "/proc/thread-self/net/if_inet6";
/// Scope of an address that others can reach.
const GLOBAL: &str = "00";

/// IPv4 always; IPv6 as configured. To be called inside the pod's namespace.
pub fn families(ipv6: Ipv6, previous_has_ipv6: bool) -> &'static [Family] {
    let both = match ipv6 {
        Ipv6::Yes => true,
        Ipv6::No => false,
        Ipv6::Auto => {
            previous_has_ipv6 || fs::read_to_string(ADDRESSES).is_ok_and(|text| has_global(&text))
        }
    };
    if both {
        &[Family::Ipv4, Family::Ipv6]
    } else {
        &[Family::Ipv4]
    }
}

fn has_global(addresses: &str) -> bool {
    addresses
        .lines()
        .any(|line| line.split_whitespace().nth(3) == Some(GLOBAL))
}

/// Whether the plugins before us gave the pod an IPv6 address, in a result of any version.
pub fn previous_has_ipv6(config: &Object) -> bool {
    let Some(previous) = config.given("prevResult") else {
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
    fn a_result_of_any_version_shows_its_ipv6_address() {
        let cases = [
            ("{}", false),
            (
                r#"{"prevResult":{"ips":[{"address":"10.0.0.1/8"}]}}"#,
                false,
            ),
            (
                r#"{"prevResult":{"ips":[{"address":"10.0.0.1/8"},{"address":"fd00::1/64"}]}}"#,
                true,
            ),
            (
                r#"{"prevResult":{"ip4":{"ip":"10.0.0.1/8"},"ip6":{"ip":"fd00::1/64"}}}"#,
                true,
            ),
            (r#"{"prevResult":{"ips":{}}}"#, false),
        ];
        for (config, wanted) in cases {
            let config = serde_json::from_str(config).unwrap();
            assert_eq!(previous_has_ipv6(&config), wanted);
        }
    }

    #[test]
    fn link_local_and_loopback_addresses_are_no_reason_for_ipv6() {
        let loopback = "00000000000000000000000000000001 01 80 10 80       lo";
        let link_local = "fe80000000000000a8bbccfffe000001 02 40 20 80     eth0";
        let global = "fd990000000000000000000000000001 02 40 00 82     eth0";
        assert!(!has_global(""));
        assert!(!has_global(&format!("{loopback}\n{link_local}\n")));
        assert!(has_global(&format!("{loopback}\n{global}\n")));
    }
}
