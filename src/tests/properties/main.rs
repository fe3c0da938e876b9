//! What holds for every input: nothing panics, what is printed reads back, and what is
//! accepted is what the grammar says.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod json;
mod restore;
mod runtime;

use std::fs;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use json::{any_json, object};
use linkerd2_cni::cni::args;
use linkerd2_cni::config::pod;
use linkerd2_cni::config::{Annotations, Config, PodFacts, annotation};
use linkerd2_cni::kube::kubeconfig;
use linkerd2_cni::kube::types::Pod;
use linkerd2_cni::ports::{self, PortRange};
use linkerd2_cni::rules::{self, Family, Redirect, Subnet};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use runtime::{add, is_answer};

fn config() -> Config {
    let text =
        r#"{"linkerd":{"incoming-proxy-port":4143,"outgoing-proxy-port":4140,"proxy-uid":2102}}"#;
    Config::read(&serde_json::from_str(text).unwrap()).unwrap()
}

fn annotated(key: &str, value: &str) -> PodFacts {
    PodFacts {
        annotations: Annotations::from([(key.to_owned(), value.to_owned())]),
        ..PodFacts::default()
    }
}

/// Text that is nearly a list of ports, subnets or pairs.
fn nearly_a_list() -> impl Strategy<Value = String> {
    prop_oneof!["[0-9a-f ,:./;=+-]{0,40}", "\\PC{0,20}"]
}

fn port_range() -> impl Strategy<Value = PortRange> {
    (any::<u16>(), any::<u16>()).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) })
}

fn subnet() -> impl Strategy<Value = Subnet> {
    let v4 = (any::<[u8; 4]>(), 0..=32u8)
        .prop_map(|(address, length)| IpNet::V4(Ipv4Net::new(address.into(), length).unwrap()));
    let v6 = (any::<[u8; 16]>(), 0..=128u8)
        .prop_map(|(address, length)| IpNet::V6(Ipv6Net::new(address.into(), length).unwrap()));
    prop_oneof![v4, v6].prop_map(|net| Subnet { text: net.to_string(), net: net.trunc() })
}

prop_compose! {
    fn redirect()(
        (inbound_port, outbound_port) in (1..=u16::MAX, 1..=u16::MAX),
        (proxy_uid, proxy_gid) in (option::of(any::<u32>()), option::of(any::<u32>())),
        ports_to_redirect in vec(1..=u16::MAX, 0..4),
        skip_inbound in vec(port_range(), 0..40),
        skip_outbound in vec(port_range(), 0..40),
        skip_subnets in vec(subnet(), 0..6),
    ) -> Redirect {
        Redirect {
            inbound_port, outbound_port, proxy_uid, proxy_gid,
            ports_to_redirect, skip_inbound, skip_outbound, skip_subnets,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_on_stdin_get_an_answer(stdin in vec(any::<u8>(), 0..200)) {
        prop_assert!(is_answer(&add(&stdin)));
    }

    #[test]
    fn any_json_on_stdin_gets_an_answer(config in json::network_config()) {
        let stdout = add(config.to_string().as_bytes());
        prop_assert!(is_answer(&stdout), "{:?}", stdout);
    }

    #[test]
    fn a_pods_name_from_any_cni_args_can_stand_in_a_url(text in nearly_a_list(), value in "\\PC{0,12}") {
        let _ = args::pod(&text);
        let pair = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={value}");
        if let Ok(Some(pod)) = args::pod(&pair) {
            let safe = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
            prop_assert!(pod.name.chars().all(safe) && !pod.name.starts_with('.'), "{}", pod.name);
        }
    }

    #[test]
    fn ports_read_back_as_they_were_printed(ranges in vec(port_range(), 0..40)) {
        let printed = ports::joined(&ranges).replace(':', "-");
        if !ranges.is_empty() {
            prop_assert_eq!(ports::list(&printed), (ranges.clone(), Vec::new()));
        }
        let groups = ports::groups(&ranges);
        for group in &groups {
            let slots: usize = group.iter().map(|range| if range.first == range.last { 1 } else { 2 }).sum();
            prop_assert!(slots <= 15, "{group:?}");
        }
        prop_assert_eq!(groups.concat(), ranges);
    }

    #[test]
    fn each_element_of_a_list_of_ports_is_used_or_ignored_with_its_annotation(text in nearly_a_list()) {
        let key = annotation::SKIP_INBOUND_PORTS;
        match config().resolve(&annotated(key, &text)) {
            Ok(found) => {
                let ignored = found.ignored.iter().inspect(|list| assert_eq!(list.source, key));
                let ignored: Vec<String> = ignored.flat_map(|list| list.elements.clone()).collect();
                let is_bad = |element: &&str| ignored.contains(&(*element).to_owned());
                let (bad, good): (Vec<&str>, Vec<&str>) = text.split(',').partition(is_bad);
                prop_assert_eq!(bad, ignored.clone());
                let ranges = good.iter().map(|element| element.parse().unwrap());
                prop_assert_eq!(found.redirect.skip_inbound, ports::distinct(ranges));
            }
            Err(error) => {
                prop_assert!(error.msg.contains(key), "{}", error.msg);
                prop_assert!(text.split(',').all(|element| element.parse::<PortRange>().is_err()));
            }
        }
    }

    #[test]
    fn any_list_of_subnets_is_read_or_refused_with_its_annotation(text in nearly_a_list()) {
        let key = annotation::SKIP_SUBNETS;
        match config().redirect(&annotated(key, &text)) {
            Ok(redirect) => for subnet in redirect.skip_subnets {
                prop_assert_eq!(subnet.text.parse::<IpNet>().unwrap().trunc(), subnet.net);
            },
            Err(error) => prop_assert!(error.msg.contains(key), "{}", error.msg),
        }
    }

    #[test]
    fn subnets_read_back_as_they_were_printed(subnets in vec(subnet(), 0..6)) {
        let texts: Vec<String> = subnets.iter().map(|subnet| subnet.text.clone()).collect();
        let facts = annotated(annotation::SKIP_SUBNETS, &texts.join(","));
        prop_assert_eq!(config().redirect(&facts).unwrap().skip_subnets, subnets);
    }

    #[test]
    fn any_pod_is_read_or_refused(text in json::pod().prop_map(|pod| pod.to_string())) {
        if let Ok(read) = serde_json::from_str::<Pod>(&text) {
            let names_a_proxy = text.contains(r#""linkerd-proxy""#);
            let is_meshed = pod::proxy(&read).flatten().is_some();
            prop_assert!(names_a_proxy || !is_meshed, "{}", text);
        }
    }

    #[test]
    fn any_kubeconfig_is_read_or_refused_without_its_secrets(
        text in "[-a-z:{}\\[\\]\"'|>&*!%#@,0-9 \n]{0,120}",
        json in object(&["clusters", "users", "contexts"], any_json()),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        for text in [text, json.to_string()] {
            let secret = format!("{text}\ntoken: s3cr3t-t0ken");
            fs::write(&path, secret).unwrap();
            if let Err(error) = kubeconfig::read(&path) {
                prop_assert!(!error.to_string().contains("s3cr3t"), "{}", error);
            }
        }
    }

    #[test]
    fn rules_read_back_from_the_script_of_iptables(redirect in redirect(), fresh in any::<bool>()) {
        for family in [Family::Ipv4, Family::Ipv6] {
            let rules = rules::rules(&redirect, family);
            let script = rules::install_script(&rules, fresh, &[]);
            prop_assert_eq!(restore::rules(&script), rules, "{}", script);
        }
    }
}
