mod inner_interfaces;
mod port_lists;

use std::collections::BTreeMap;

use serde::Deserialize;
use testkit::table;

use super::*;
use crate::failure::Failure;
use crate::pod::annotation::{self, Annotations};
use crate::pod::facts::PodFacts;
use crate::pod::mesh::Proxy;
use crate::redirect::Redirect;
use crate::redirect::ports;

/// Annotation names without their prefix, and values.
type Pairs<'a> = &'a [(&'a str, &'a str)];

fn config(linkerd: &str) -> Result<Config, Error> {
    let text = format!(
        r#"{{"name":"n","kubernetes":{{"kubeconfig":"/etc/cni/net.d/kc"}},"linkerd":{linkerd}}}"#
    );
    Config::read(&serde_json::from_str(&text).unwrap())
}

/// The chart's default plugin entry with the additional members `more`.
fn defaults(more: &str) -> Config {
    config(&format!(
        r#"{{"incoming-proxy-port":4143,"outgoing-proxy-port":4140,"proxy-uid":2102,
            "inbound-ports-to-ignore":["4191","4190"],"iptables-mode":"nft"{more}}}"#
    ))
    .unwrap()
}

fn annotations(pairs: Pairs<'_>) -> Annotations {
    pairs
        .iter()
        .map(|(key, value)| (format!("config.linkerd.io/{key}"), (*value).to_owned()))
        .collect()
}

/// Asserts that the result is an error with this failure and a message that contains `problem`.
fn assert_error<T: std::fmt::Debug>(
    row: &str,
    result: Result<T, Error>,
    failure: Failure,
    problem: &str,
) {
    let error = result.unwrap_err();
    assert_eq!(error.failure, failure, "{row}: {}", error.msg);
    assert!(error.msg.contains(problem), "{row}: {}", error.msg);
}

fn redirect(config: &Config, pairs: Pairs<'_>) -> Result<Redirect, Error> {
    config.redirect(&PodFacts { annotations: annotations(pairs), ..PodFacts::default() })
}

const INVALID: &str = include_str!("tests/invalid.yaml");

/// A row of `annotations` in `invalid.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvalidAnnotation {
    /// Name without its prefix, and value.
    annotation: BTreeMap<String, String>,
    problem: String,
    /// Members in addition to the defaults of the plugin entry.
    #[serde(default)]
    entry: String,
}

/// A row of `members` in `invalid.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvalidMember {
    linkerd: String,
    problem: String,
}

/// A row of `redirects` in `invalid.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvalidRedirect {
    members: String,
    problem: String,
}

#[test]
fn error_names_the_annotation_its_invalid_value_and_the_grammar() {
    for (name, row) in table::rows_of::<InvalidAnnotation>(INVALID, "annotations") {
        let config = defaults(&row.entry);
        let (key, value) = row.annotation.first_key_value().unwrap();
        let start = format!("annotation config.linkerd.io/{key}: \"{value}\": {}", row.problem);
        let found = redirect(&config, &[(key, value)]);
        assert_error(&name, found, Failure::InvalidAnnotation, &start);
    }
}

#[test]
fn proxy_whose_own_connections_would_be_redirected_is_rejected() {
    for (more, pairs) in [("", vec![("proxy-uid", "0")]), ("", vec![("proxy-uid", "-5")])] {
        let error = redirect(&defaults(more), &pairs).unwrap_err();
        assert!(error.msg.contains("redirected to the proxy"), "{}", error.msg);
    }
    let empty = config("{}").unwrap();
    assert!(redirect(&empty, &[]).is_err());
}

#[test]
fn error_names_the_uid_that_the_proxy_container_sets() {
    let proxy = Proxy { uid: Some(0), ..Proxy::default() };
    let facts = PodFacts { proxy, ..PodFacts::default() };
    let error = defaults("").redirect(&facts).unwrap_err();
    assert_eq!(error.failure, Failure::InvalidProxyUser);
    assert!(error.msg.starts_with("container linkerd-proxy runs as UID 0"), "{}", error.msg);
    assert!(error.details.contains("of the container linkerd-proxy"), "{}", error.details);
}

#[test]
fn error_names_the_invalid_member_its_value_and_the_grammar() {
    for (name, row) in table::rows_of::<InvalidMember>(INVALID, "members") {
        assert_error(&name, config(&row.linkerd), Failure::InvalidConfig, &row.problem);
    }
    for (name, row) in table::rows_of::<InvalidRedirect>(INVALID, "redirects") {
        let found = redirect(&defaults(&format!(",{}", row.members)), &[]);
        assert_error(&name, found, Failure::InvalidConfig, &row.problem);
    }
}

/// Upstream's chart renders false. Upstream's plugin reads a missing key and null as false.
#[test]
fn simulate_is_rejected_with_a_remedy_unless_it_is_false() {
    for members in ["", r#","simulate":false"#, r#","simulate":null"#] {
        redirect(&defaults(members), &[]).unwrap();
    }
    let error = config(r#"{"simulate":true}"#).unwrap_err();
    assert_eq!(error.details, "remove simulate from the plugin entry, or set it to false");
}

#[test]
fn invalid_member_fails_the_redirect_but_does_not_affect_other_members() {
    let text = r#"{"log_level":1,"kubernetes":{"kubeconfig":"/k"},"linkerd":{"proxy-uid":"x",
        "exclude-namespaces":["kube-system"],"ipv6":"auto","api-retry-seconds":0,
        "incoming-proxy-port":4143,"outgoing-proxy-port":4140}}"#;
    let config = Config::read_leniently(&serde_json::from_str(text).unwrap());
    assert_eq!(config.kubeconfig, PathBuf::from("/k"));
    assert_eq!(config.filter.exclude_namespaces, ["kube-system"]);
    assert_eq!(config.ipv6, Ipv6::Auto);
    assert_eq!(config.api_budget, Duration::from_secs(10));
    let error = redirect(&config, &[("proxy-uid", "2102")]).unwrap_err();
    assert!(error.msg.contains("\"api-retry-seconds\": 0 is not"), "{}", error.msg);
}

#[test]
fn unknown_keys_and_nulls_are_ignored_and_the_last_duplicate_wins() {
    let config = config(
        r#"{"incoming-proxy-port":1,"incoming-proxy-port":4143,"outgoing-proxy-port":4140,
            "proxy-uid":2102,"proxy-gid":null,"policy":{"a":1},"ports-to-redirect":[8080,"9090"]}"#,
    )
    .unwrap();
    let redirect = redirect(&config, &[]).unwrap();
    assert_eq!(redirect.inbound_port, 4143);
    assert_eq!(redirect.ports_to_redirect, [8080, 9090]);
    assert_eq!(config.backends, Backend::AUTO);
}

#[test]
fn proxy_container_overrides_annotations_and_annotations_override_the_plugin_entry() {
    let proxy = Proxy {
        uid: Some(777),
        inbound_port: Some(1143),
        control_port: Some(1190),
        ..Proxy::default()
    };
    let facts = PodFacts {
        annotations: annotations(&[
            ("proxy-uid", "1"),
            ("proxy-gid", "2"),
            ("inbound-port", "3"),
            ("outbound-port", "1140"),
            ("control-port", "5"),
            ("admin-port", "1191"),
        ]),
        proxy,
        ..PodFacts::default()
    };
    let redirect = defaults("").redirect(&facts).unwrap();
    assert_eq!((redirect.proxy_uid, redirect.proxy_gid), (Some(777), Some(2)));
    assert_eq!((redirect.inbound_port, redirect.outbound_port), (1143, 1140));
    assert_eq!(ports::joined(&redirect.skip_inbound), "4191,4190,1191,1190");
}

#[test]
fn keys_that_upstream_does_not_have_are_read() {
    let config = config(
        r#"{"ipv6":"auto","exclude-namespaces":["kube-system"],
            "strict-proxy-user":true,"agent-namespace":"cni","agent-daemonset":"mesh-cni",
            "api-retry-seconds":3}"#,
    )
    .unwrap();
    assert_eq!(config.ipv6, Ipv6::Auto);
    assert!(config.strict_proxy_user);
    assert_eq!(config.filter.exclude_namespaces, ["kube-system"]);
    assert_eq!(config.filter.agent_namespace, "cni");
    assert_eq!(config.filter.agent_daemonset, "mesh-cni");
    assert_eq!(config.api_budget, Duration::from_secs(3));
}
