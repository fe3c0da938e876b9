//! Property tests: printed values parse to the same values, exactly the documented grammar is
//! accepted, and all backends redirect the same connections.
//!
//! The seeds of the fuzz targets run here too. Fuzzing shows that no input makes the plugin panic.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod contract;
mod nf_tables;
mod seeds;
mod starts;
mod upstream_rules;

use std::fs;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use linkerd2_cni::cni::args;
use linkerd2_cni::config::Config;
use linkerd2_cni::kube::kubeconfig;
use linkerd2_cni::pod::annotation::{self, Annotations, ValueKind};
use linkerd2_cni::pod::facts::PodFacts;
use linkerd2_cni::redirect::interfaces::{self, Interface};
use linkerd2_cni::redirect::ports::{self, PortRange};
use linkerd2_cni::redirect::rules;
use linkerd2_cni::redirect::{Family, Redirect, RuleSpec, Subnet};
use percent_encoding::percent_decode_str;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::FileFailurePersistence;
use testkit::properties::packet::INNER_INTERFACES;
use testkit::properties::{decision, iptables, packet};
use ureq::http::Uri;

/// Configuration of a property. Cases that failed before run first: a failure adds a line to the
/// file, which is committed together with the fix.
fn property_config() -> ProptestConfig {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/properties/regressions.txt");
    let persistence = FileFailurePersistence::Direct(file);
    ProptestConfig { failure_persistence: Some(Box::new(persistence)), ..ProptestConfig::default() }
}

fn config() -> Config {
    let text =
        r#"{"linkerd":{"incoming-proxy-port":4143,"outgoing-proxy-port":4140,"proxy-uid":2102}}"#;
    Config::read(&serde_json::from_str(text).unwrap()).unwrap()
}

/// Facts about a pod with one annotation.
fn facts_with_annotation(key: &str, value: &str) -> PodFacts {
    PodFacts {
        annotations: Annotations::from([(key.to_owned(), value.to_owned())]),
        ..PodFacts::default()
    }
}

/// Text that resembles a list of ports or subnets.
fn list_like_text() -> impl Strategy<Value = String> {
    prop_oneof!["[0-9a-f ,:./;=+-]{0,40}", "\\PC{0,20}"]
}

/// The annotations that contain a list of subnets.
fn subnet_keys() -> Vec<&'static str> {
    let rows = annotation::TABLE.iter().filter(|row| row.value == ValueKind::SubnetList);
    rows.map(|row| row.key).collect()
}

/// A list of valid and invalid subnets.
fn subnet_list() -> impl Strategy<Value = String> {
    let valid = subnet().prop_map(|subnet| subnet.text);
    let element = prop_oneof![4 => valid, 1 => "[0-9a-f ./:]{0,12}", 1 => Just(" ".to_owned())];
    vec(element, 0..4).prop_map(|elements| elements.join(","))
}

/// Returns true if `text` is a subnet without leading zeros. Programs interpret leading zeros
/// differently.
fn is_subnet(text: &str) -> bool {
    let address = text.split('/').next().unwrap_or_default();
    address.parse::<IpAddr>().is_ok() && text.parse::<IpNet>().is_ok()
}

/// Names of namespaces as Kubernetes allows them (RFC 1123).
fn namespace_name() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
}

/// Names of pods as Kubernetes allows them (RFC 1123).
fn pod_name() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9-]{0,70}[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?){0,3}"
}

fn port_range() -> impl Strategy<Value = PortRange> {
    // Ranges within 20..60 often overlap or adjoin.
    prop_oneof![(any::<u16>(), any::<u16>()), (20..60u16, 20..60u16)]
        .prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) })
}

fn subnet() -> impl Strategy<Value = Subnet> {
    let v4 = (any::<[u8; 4]>(), 0..=32u8)
        .prop_map(|(address, length)| IpNet::V4(Ipv4Net::new(address.into(), length).unwrap()));
    let v6 = (any::<[u8; 16]>(), 0..=128u8)
        .prop_map(|(address, length)| IpNet::V6(Ipv6Net::new(address.into(), length).unwrap()));
    // Subnets within 10.0.0.0/23 often contain each other or adjoin.
    let nearby = (0..4u8, 24..=32u8).prop_map(|(last, length)| {
        IpNet::V4(Ipv4Net::new([10, 0, last / 2, 64 * last].into(), length).unwrap())
    });
    prop_oneof![v4, v6, nearby].prop_map(|net| Subnet { text: net.to_string(), net: net.trunc() })
}

prop_compose! {
    fn redirect()(
        (inbound_port, outbound_port) in (1..=u16::MAX, 1..=u16::MAX),
        (proxy_uid, proxy_gid) in (option::of(any::<u32>()), option::of(any::<u32>())),
        ports_to_redirect in vec(1..=u16::MAX, 0..4),
        skip_inbound in vec(port_range(), 0..40),
        skip_outbound in vec(port_range(), 0..40),
        (skip_subnets, skip_outbound_subnets) in (vec(subnet(), 0..6), vec(subnet(), 0..6)),
        names in vec(select(&INNER_INTERFACES[..]), 0..3),
        is_guessed in any::<bool>(),
    ) -> Redirect {
        Redirect {
            inbound_port, outbound_port, proxy_uid, proxy_gid,
            ports_to_redirect, skip_inbound, skip_outbound, skip_subnets, skip_outbound_subnets,
            inner_interfaces: names.into_iter().map(|name| Interface::parse(name).unwrap()).collect(),
            is_guessed,
        }
    }
}

/// The value of `clusters`, `users` or `contexts` in a kubeconfig. Members may have a wrong type.
fn kubeconfig_list() -> impl Strategy<Value = String> {
    let value = select(vec!["null", "7", "\"s3cr3t\"", "[]", "{}", "[\"s3cr3t\"]"]);
    let key = select(vec!["server", "token", "tokenFile", "certificate-authority-data", "user"]);
    let content = prop_oneof![
        value.clone().prop_map(str::to_owned),
        (key, value.clone()).prop_map(|(key, value)| format!(r#"{{"{key}":{value}}}"#)),
    ];
    let kind = select(vec!["cluster", "user", "context"]);
    let entry = (kind, content).prop_map(|(kind, content)| {
        format!(r#"[{{"name":"linkerd-cni-context","{kind}":{content}}}]"#)
    });
    prop_oneof![1 => value.prop_map(str::to_owned), 2 => entry]
}

proptest! {
    #![proptest_config(property_config())]

    #[test]
    fn every_name_that_kubernetes_allows_is_accepted(
        namespace in namespace_name(),
        name in pod_name(),
        uid in "[0-9a-f-]{0,36}",
    ) {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={uid}"
        );
        prop_assert_eq!(args::parse_pod(&args), Ok(Some(args::PodRef { namespace, name, uid })));
    }

    /// The name must not be `..` either, because an HTTP library may resolve it.
    #[test]
    fn every_accepted_name_is_one_segment_of_a_url(
        name in prop_oneof!["[a-zA-Z0-9./%?#@: -]{1,6}", "[.][./a]{0,3}", "\\PC{1,12}"],
    ) {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={name}");
        if let Ok(Some(pod)) = args::parse_pod(&args) {
            let url = format!("https://host/pods/{}", pod.name).parse::<Uri>().unwrap();
            prop_assert_eq!(url.query(), None);
            prop_assert_eq!(url.path(), format!("/pods/{name}"));
            prop_assert_eq!(url.path().split('/').count(), 3);
            let decoded: Vec<u8> = percent_decode_str(url.path()).collect();
            prop_assert_eq!(decoded, url.path().as_bytes());
            prop_assert!(!["", ".", ".."].contains(&pod.name.as_str()));
        }
    }

    #[test]
    fn printed_port_ranges_parse_to_the_same_ranges(ranges in vec(port_range(), 0..40)) {
        let printed = ports::joined(&ranges).replace(':', "-");
        if !ranges.is_empty() {
            let parsed: Result<Vec<_>, _> = printed.split(',').map(PortRange::parse).collect();
            prop_assert_eq!(parsed, Ok(ranges.clone()));
        }
        let groups = ports::groups(&ranges);
        for group in &groups {
            let slots: usize = group.iter().map(|range| if range.first == range.last { 1 } else { 2 }).sum();
            prop_assert!(slots <= 15, "{group:?}");
        }
        prop_assert_eq!(groups.concat(), ranges);
    }

    #[test]
    fn each_element_of_a_port_list_is_used_or_reported(text in list_like_text()) {
        let key = annotation::SKIP_INBOUND_PORTS;
        match config().resolve(&facts_with_annotation(key, &text)) {
            Ok(found) => {
                let ignored = found.ignored.iter().inspect(|list| assert_eq!(list.source, key));
                let ignored: Vec<String> = ignored.flat_map(|list| list.elements.clone()).collect();
                let more: usize = found.ignored.iter().map(|list| list.more).sum();
                let is_invalid = |element: &&str| PortRange::parse(element).is_err();
                let (invalid, valid): (Vec<&str>, Vec<&str>) =
                    text.split(',').partition(is_invalid);
                prop_assert_eq!(invalid.len(), ignored.len() + more);
                prop_assert_eq!(&invalid[..ignored.len()], &*ignored);
                let ranges: Vec<PortRange> =
                    valid.iter().map(|element| PortRange::parse(element).unwrap()).collect();
                prop_assert_eq!(found.redirect.skip_inbound, ports::distinct(&ranges));
            }
            Err(error) => {
                prop_assert!(error.msg.contains(key), "{}", error.msg);
                prop_assert!(text.split(',').all(|element| PortRange::parse(element).is_err()));
            }
        }
    }

    #[test]
    fn each_element_of_a_subnet_list_is_used_or_rejected(
        text in prop_oneof![list_like_text(), subnet_list()],
        key in select(subnet_keys()),
    ) {
        let elements: Vec<&str> =
            text.split(',').map(str::trim).filter(|element| !element.is_empty()).collect();
        match config().redirect(&facts_with_annotation(key, &text)) {
            Ok(redirect) => {
                let inbound = redirect.skip_subnets;
                let outbound = redirect.skip_outbound_subnets;
                let (subnets, others) = if key == annotation::SKIP_OUTBOUND_SUBNETS {
                    (outbound, inbound)
                } else {
                    (inbound, outbound)
                };
                let used: Vec<&str> = subnets.iter().map(|subnet| &*subnet.text).collect();
                prop_assert_eq!(used, elements);
                prop_assert_eq!(others, vec![]);
                for subnet in &subnets {
                    prop_assert_eq!(subnet.text.parse::<IpNet>().unwrap().trunc(), subnet.net);
                }
            }
            Err(error) => {
                prop_assert!(error.msg.contains(key), "{}", error.msg);
                prop_assert!(elements.iter().any(|element| !is_subnet(element)));
            }
        }
    }

    #[test]
    fn each_element_of_an_interface_list_is_used_or_reported(
        elements in vec("[a-z0-9+. _/-]{0,17}|docker0|lo|eth0", 1..12),
    ) {
        let key = annotation::INNER_INTERFACES;
        let text = elements.join(",");
        let valid = elements.iter().filter_map(|element| Interface::parse(element).ok());
        let mut distinct: Vec<Interface> = Vec::new();
        for interface in valid {
            prop_assert!((1..=15).contains(&interface.name().len()));
            if !distinct.contains(&interface) {
                distinct.push(interface);
            }
        }
        match config().resolve(&facts_with_annotation(key, &text)) {
            Ok(found) => {
                let used = found.redirect.inner_interfaces;
                let reported: usize =
                    found.ignored.iter().map(|list| list.elements.len() + list.more).sum();
                distinct.truncate(interfaces::COUNT_LIMIT);
                let is_used = |element: &&String| {
                    used.iter().any(|interface| interface.name() == element.as_str())
                };
                prop_assert_eq!(&used, &distinct);
                prop_assert_eq!(elements.iter().filter(is_used).count() + reported, elements.len());
            }
            Err(error) => {
                prop_assert!(error.msg.contains(key), "{}", error.msg);
                prop_assert_eq!(distinct, vec![]);
            }
        }
    }

    #[test]
    fn kubeconfig_errors_contain_no_secret(
        text in "[-a-z:{}\\[\\]\"'|>&*!%#@,0-9 \n]{0,120}",
        lists in [kubeconfig_list(), kubeconfig_list(), kubeconfig_list()],
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let [clusters, users, contexts] = lists;
        let json = format!(r#"{{"clusters":{clusters},"users":{users},"contexts":{contexts}}}"#);
        for text in [text, json] {
            let secret = format!("{text}\ntoken: s3cr3t-t0ken");
            fs::write(&path, secret).unwrap();
            if let Err(error) = kubeconfig::read(&path) {
                prop_assert!(!error.to_string().contains("s3cr3t"), "{}", error);
            }
        }
    }

    #[test]
    fn marker_without_digest_parses_to_the_same_redirect_and_families(
        mut redirect in redirect(),
        length in 0..8_usize,
        has_ipv6 in any::<bool>(),
    ) {
        let families = if has_ipv6 { Family::ALL } else { Family::IPV4 };
        redirect.skip_inbound.truncate(length);
        redirect.skip_outbound.truncate(length);
        redirect.skip_subnets.truncate(length / 2);
        redirect.skip_outbound_subnets.truncate(length / 3);
        let spec = RuleSpec { redirect: redirect.clone(), families };
        let marked = rules::marked_rules(&redirect, Family::Ipv4, families);
        let markers: Vec<_> =
            marked.iter().filter_map(|rule| rules::split_comment(&rule.comment).1).collect();
        prop_assert_eq!(markers.len(), 2);
        for marker in markers {
            prop_assert_eq!(marker, rules::marker(&redirect, families));
            match rules::parse_marker(marker) {
                Some(found) => prop_assert_eq!(&found, &spec),
                None => prop_assert!(marker.starts_with("linkerd-cni/1 digest="), "{}", marker),
            }
        }
        let unmarked = marked.into_iter().map(|mut rule| {
            rule.comment = rules::split_comment(&rule.comment).0.to_owned();
            rule
        });
        prop_assert_eq!(unmarked.collect::<Vec<_>>(), rules::rules(&redirect, Family::Ipv4));
    }
}
