//! Decides which address families of a pod are redirected.

use serde_json::Value;

use super::Ipv6;
use crate::cni::object::Object;
use crate::netns::ipv6;
use crate::redirect::Families;

/// Returns IPv4, and IPv6 if `ipv6` says so. Call this inside the pod's netns, as `auto` looks
/// for IPv6 there.
pub fn families(ipv6: Ipv6, previous_has_ipv6: bool) -> Families {
    match ipv6 {
        Ipv6::Yes => Families::Both,
        Ipv6::No => Families::Ipv4,
        Ipv6::Auto if previous_has_ipv6 => Families::Both,
        // A pod without IPv6 address may get one after its ADD: by router advertisement, from Multus,
        // or because the pod sets the sysctl `disable_ipv6` of an interface to 0.
        Ipv6::Auto => match ipv6::state() {
            ipv6::State::NotInKernel => Families::Ipv4,
            ipv6::State::NoGlobalAddress => Families::OptionalIpv6,
            ipv6::State::GlobalAddress => Families::Both,
        },
    }
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
}
