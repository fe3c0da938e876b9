//! Decides which address families of a pod are redirected.

use std::fs;

use serde_json::Value;

use super::Ipv6;
use crate::cni::object::Object;
use crate::rules::Family;

/// IPv6 addresses in the netns of the calling thread. Columns: address, interface index,
/// prefix length, scope, flags, interface name.
const IF_INET6: &str = "/proc/thread-self/net/if_inet6";
/// Scope of an address that other hosts can reach.
const GLOBAL_SCOPE: &str = "00";

/// Returns IPv4, and IPv6 if `ipv6` says so. Call this inside the pod's netns, as `auto` looks
/// for an IPv6 address there.
pub fn families(ipv6: Ipv6, previous_has_ipv6: bool) -> &'static [Family] {
    let both = match ipv6 {
        Ipv6::Yes => true,
        Ipv6::No => false,
        Ipv6::Auto => {
            previous_has_ipv6
                || fs::read_to_string(IF_INET6).is_ok_and(|text| has_global_address(&text))
        }
    };
    if both { &[Family::Ipv4, Family::Ipv6] } else { &[Family::Ipv4] }
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
    fn link_local_and_loopback_addresses_do_not_enable_ipv6() {
        let loopback = "00000000000000000000000000000001 01 80 10 80       lo";
        let link_local = "fe80000000000000a8bbccfffe000001 02 40 20 80     eth0";
        let global = "fd990000000000000000000000000001 02 40 00 82     eth0";
        assert!(!has_global_address(""));
        assert!(!has_global_address(&format!("{loopback}\n{link_local}\n")));
        assert!(has_global_address(&format!("{loopback}\n{global}\n")));
    }
}
