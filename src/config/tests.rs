use super::*;
use crate::ports;
use crate::rules::Redirect;

/// Annotation names without their prefix, and values.
type Pairs<'a> = &'a [(&'a str, &'a str)];
/// UID and GID of the proxy.
type Owner = (Option<u32>, Option<u32>);

fn config(linkerd: &str) -> Result<Config, Error> {
    let text = format!(
        r#"{{"name":"n","kubernetes":{{"kubeconfig":"/etc/cni/net.d/kc"}},"linkerd":{linkerd}}}"#
    );
    Config::read(&serde_json::from_str(&text).unwrap())
}

/// The chart's defaults with `more` members.
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

fn redirect(config: &Config, pairs: Pairs<'_>) -> Result<Redirect, Error> {
    config.redirect(&PodFacts {
        annotations: annotations(pairs),
        ..PodFacts::default()
    })
}

#[test]
fn an_outbound_annotation_replaces_and_an_inbound_one_adds() {
    let config = defaults(r#","outbound-ports-to-ignore":["443"]"#);
    let cases: [(Pairs<'_>, &str, &str); 4] = [
        (&[], "4191,4190", "443"),
        (
            &[("skip-outbound-ports", "25,3306")],
            "4191,4190",
            "25,3306",
        ),
        (
            &[("skip-inbound-ports", "80,100-200")],
            "4191,4190,80,100:200",
            "443",
        ),
        (
            &[("skip-inbound-ports", "4190,4190,80")],
            "4191,4190,80",
            "443",
        ),
    ];
    for (pairs, inbound, outbound) in cases {
        let redirect = redirect(&config, pairs).unwrap();
        assert_eq!(ports::joined(&redirect.skip_inbound), inbound, "{pairs:?}");
        assert_eq!(
            ports::joined(&redirect.skip_outbound),
            outbound,
            "{pairs:?}"
        );
    }
}

/// An entry's lists, annotations, and what upstream makes of them: inbound and outbound
/// ports, and what is ignored. `None`: upstream fails the pod, since iptables refuses a
/// rule without ports.
type Lenient<'a> = (
    &'a str,
    Pairs<'a>,
    Option<(&'a str, &'a str, &'a [(&'a str, &'a [&'a str])])>,
);

#[test]
fn bad_elements_are_ignored_as_upstream_does_and_named() {
    const IN: &str = "config.linkerd.io/skip-inbound-ports";
    const OUT: &str = "config.linkerd.io/skip-outbound-ports";
    let cases: [Lenient<'_>; 13] = [
        (
            "",
            &[("skip-outbound-ports", "http,5432,30-20")],
            Some(("4191,4190", "5432", &[(OUT, &["http", "30-20"])])),
        ),
        (
            "",
            &[("skip-outbound-ports", "25, 3306")],
            Some(("4191,4190", "25", &[(OUT, &[" 3306"])])),
        ),
        // A list that is added to another one may be all bad.
        (
            "",
            &[("skip-inbound-ports", "http,")],
            Some(("4191,4190", "", &[(IN, &["http", ""])])),
        ),
        (
            "",
            &[("skip-outbound-ports", "+80"), ("skip-inbound-ports", "x")],
            Some(("4191,4190", "80", &[(IN, &["x"])])),
        ),
        ("", &[("skip-outbound-ports", "http")], None),
        ("", &[("skip-outbound-ports", " , ")], None),
        // The annotation replaces the configured list, also when nothing is left of it.
        (
            r#","outbound-ports-to-ignore":["443"]"#,
            &[("skip-outbound-ports", "http")],
            None,
        ),
        (
            r#","outbound-ports-to-ignore":["443","smtp","25,26",null]"#,
            &[],
            Some((
                "4191,4190",
                "443",
                &[("outbound-ports-to-ignore", &["smtp", "25,26", ""])],
            )),
        ),
        (r#","outbound-ports-to-ignore":["smtp"]"#, &[], None),
        (
            r#","outbound-ports-to-ignore":["smtp"]"#,
            &[("skip-outbound-ports", "25")],
            Some(("4191,4190", "25", &[])),
        ),
        (
            r#","inbound-ports-to-ignore":["x"]"#,
            &[("skip-inbound-ports", "25")],
            Some(("25", "", &[("inbound-ports-to-ignore", &["x"])])),
        ),
        (r#","inbound-ports-to-ignore":["x"]"#, &[], None),
        (
            r#","inbound-ports-to-ignore":[],"outbound-ports-to-ignore":[]"#,
            &[],
            Some(("", "", &[])),
        ),
    ];
    for (more, pairs, wanted) in cases {
        let facts = PodFacts {
            annotations: annotations(pairs),
            ..PodFacts::default()
        };
        let found = defaults(more).resolve(&facts);
        let Some((inbound, outbound, ignored)) = wanted else {
            let error = found.unwrap_err();
            assert!(
                error.msg.contains("no usable element is left"),
                "{}",
                error.msg
            );
            continue;
        };
        let found = found.unwrap();
        let lists = (&found.redirect.skip_inbound, &found.redirect.skip_outbound);
        assert_eq!(ports::joined(lists.0), inbound, "{more} {pairs:?}");
        assert_eq!(ports::joined(lists.1), outbound, "{more} {pairs:?}");
        let named: Vec<(&str, Vec<&str>)> = found
            .ignored
            .iter()
            .map(|list| {
                let elements = list.elements.iter().map(String::as_str);
                (list.source, elements.collect())
            })
            .collect();
        let wanted: Vec<(&str, Vec<&str>)> = ignored
            .iter()
            .map(|(source, elements)| (*source, elements.to_vec()))
            .collect();
        assert_eq!(named, wanted, "{more} {pairs:?}");
    }
}

#[test]
fn the_api_servers_ports_keep_a_control_plane_pod_whose_list_is_all_bad() {
    let facts = PodFacts {
        annotations: annotations(&[("skip-outbound-ports", "http")]),
        api_ports: vec![443.into()],
        ..PodFacts::default()
    };
    let found = defaults("").resolve(&facts).unwrap();
    assert_eq!(ports::joined(&found.redirect.skip_outbound), "443");
    assert_eq!(found.ignored[0].elements, ["http"]);
}

#[test]
fn a_bad_port_of_the_proxy_is_ignored_as_upstreams_injector_does() {
    for (key, value) in [
        ("inbound-port", "0"),
        ("outbound-port", "65536"),
        ("admin-port", "x"),
        ("control-port", "80-90"),
    ] {
        let facts = PodFacts {
            annotations: annotations(&[(key, value)]),
            ..PodFacts::default()
        };
        let found = defaults("").resolve(&facts).unwrap();
        assert_eq!(found.redirect, redirect(&defaults(""), &[]).unwrap());
        let ignored = Ignored {
            source: annotation::PROXY_PORTS
                .into_iter()
                .find(|name| name.ends_with(&format!("/{key}")))
                .unwrap(),
            elements: vec![value.into()],
            more: 0,
        };
        assert_eq!(found.ignored, [ignored]);
        assert_eq!(found.ignored[0].grammar(), "a port from 1 to 65535");
        // What the container says counts first, so that nothing is ignored.
        let proxy = Proxy {
            inbound_port: Some(1),
            outbound_port: Some(2),
            control_port: Some(3),
            admin_port: Some(4),
            ..Proxy::default()
        };
        let found = defaults("").resolve(&PodFacts { proxy, ..facts }).unwrap();
        assert_eq!(found.ignored, []);
    }
}

#[test]
fn strict_annotations_fail_the_pod_for_each_element_that_would_be_ignored() {
    let strict = |more: &str| defaults(&format!(r#","strict-annotations":true{more}"#));
    for (key, value, problem) in [
        (
            "skip-outbound-ports",
            "abc",
            "\"abc\" is not a port: a number from 0 to 65535 is wanted; a list of ports",
        ),
        (
            "skip-inbound-ports",
            "80,70000",
            "\"70000\" is not a port: a number from 0 to 65535 is wanted",
        ),
        (
            "skip-inbound-ports",
            "30-20",
            "\"30-20\": the upper bound of a range must not be below the lower",
        ),
        ("skip-inbound-ports", "80,", "\"\" is not a port"),
        ("skip-inbound-ports", "80, 81", "\" 81\" has blanks"),
        ("inbound-port", "x", "a port from 1 to 65535 is wanted"),
        ("admin-port", "0", "a port from 1 to 65535 is wanted"),
    ] {
        let error = redirect(&strict(""), &[(key, value)]).unwrap_err();
        assert_eq!(error.code, code::ANNOTATION);
        let start = format!("annotation config.linkerd.io/{key}: \"{value}\": {problem}");
        assert!(error.msg.starts_with(&start), "{}", error.msg);
    }
    let error = redirect(&strict(r#","outbound-ports-to-ignore":["443","x"]"#), &[]).unwrap_err();
    assert_eq!(error.code, code::INVALID_CONFIG);
    assert!(
        error
            .msg
            .contains("\"outbound-ports-to-ignore\": \"x\" is not a port")
    );
    redirect(&strict(""), &[("skip-outbound-ports", "25,80-90")]).unwrap();
}

#[test]
fn what_an_author_wrote_is_cut_and_on_one_line_before_it_is_quoted() {
    let long = format!("a\n\u{1b}{}", "x".repeat(100_000));
    for key in ["skip-outbound-ports", "skip-subnets", "proxy-uid"] {
        let error = redirect(&defaults(""), &[(key, &long)]).unwrap_err();
        assert_eq!(error.code, code::ANNOTATION);
        assert!(error.msg.len() < 600, "{key}: {}", error.msg.len());
        assert!(!error.msg.contains(char::is_control), "{}", error.msg);
    }
}

#[test]
fn the_api_servers_ports_are_skipped_after_the_annotated_ones() {
    let facts = PodFacts {
        annotations: annotations(&[("skip-outbound-ports", "25")]),
        api_ports: [443, 6443, 443].map(PortRange::from).to_vec(),
        ..PodFacts::default()
    };
    let redirect = defaults("").redirect(&facts).unwrap();
    assert_eq!(ports::joined(&redirect.skip_outbound), "25,443,6443");
}

#[test]
fn subnets_of_both_families_keep_their_authors_text() {
    let config = defaults(r#","subnets-to-ignore":["172.16.0.0/12"]"#);
    let redirect = redirect(
        &config,
        &[("skip-subnets", "10.0.0.0/8, 192.168.1.7/24 ,fd00::/8,")],
    )
    .unwrap();
    let subnets: Vec<_> = redirect
        .skip_subnets
        .iter()
        .map(|subnet| format!("{} as {}", subnet.net, subnet.text))
        .collect();
    assert_eq!(
        subnets,
        [
            "10.0.0.0/8 as 10.0.0.0/8",
            "192.168.1.0/24 as 192.168.1.7/24",
            "fd00::/8 as fd00::/8",
        ]
    );
}

#[test]
fn the_proxys_owner_comes_from_the_annotation_or_the_configuration() {
    let cases: [(&str, Pairs<'_>, Owner); 6] = [
        ("", &[], (Some(2102), None)),
        (r#","proxy-gid":2103"#, &[], (Some(2102), Some(2103))),
        (r#","proxy-gid":-1"#, &[], (Some(2102), None)),
        (
            "",
            &[("proxy-uid", "1234"), ("proxy-gid", "5678")],
            (Some(1234), Some(5678)),
        ),
        ("", &[("proxy-uid", " 1234 ")], (Some(1234), None)),
        (
            "",
            &[("proxy-uid", "0"), ("proxy-gid", "2102")],
            (None, Some(2102)),
        ),
    ];
    for (more, pairs, wanted) in cases {
        let redirect = redirect(&defaults(more), pairs).unwrap();
        assert_eq!(
            (redirect.proxy_uid, redirect.proxy_gid),
            wanted,
            "{more} {pairs:?}"
        );
    }
}

#[test]
fn a_bad_annotation_is_named_with_its_value_and_what_is_wanted() {
    let cases = [
        (
            "skip-subnets",
            "10.0.0.0",
            "\"10.0.0.0\" is not a subnet: CIDR such as 10.0.0.0/8 or fd00::/8 is wanted",
        ),
        (
            "skip-subnets",
            "010.0.0.0/8",
            "\"010.0.0.0/8\" is not a subnet: CIDR such as 10.0.0.0/8 or fd00::/8 is wanted",
        ),
        (
            "proxy-uid",
            "abc",
            "a whole number up to 4294967294 is wanted",
        ),
        (
            "proxy-uid",
            "4294967295",
            "a whole number up to 4294967294 is wanted",
        ),
        (
            "proxy-gid",
            "4294967296",
            "a whole number up to 4294967294 is wanted",
        ),
        (
            "proxy-gid",
            "1.5",
            "a whole number up to 4294967294 is wanted",
        ),
        (
            "proxy-uid",
            "0",
            "the UID that the proxy runs with is wanted",
        ),
    ];
    for (key, value, problem) in cases {
        let error = redirect(&defaults(""), &[(key, value)]).unwrap_err();
        assert_eq!(error.code, code::ANNOTATION);
        let start = format!("annotation config.linkerd.io/{key}: \"{value}\": {problem}");
        assert!(error.msg.starts_with(&start), "{}", error.msg);
    }
}

#[test]
fn a_proxy_that_would_be_redirected_to_itself_is_refused() {
    for (more, pairs) in [
        ("", vec![("proxy-uid", "0")]),
        ("", vec![("proxy-uid", "-5")]),
    ] {
        let error = redirect(&defaults(more), &pairs).unwrap_err();
        assert!(
            error.msg.contains("redirected to the proxy"),
            "{}",
            error.msg
        );
    }
    let empty = config("{}").unwrap();
    assert!(redirect(&empty, &[]).is_err());
}

#[test]
fn ports_that_no_proxy_can_listen_on_are_refused() {
    let cases = [
        (
            r#"{"outgoing-proxy-port":4140,"proxy-uid":1}"#,
            "\"incoming-proxy-port\": 0 is not a port",
        ),
        (
            r#"{"incoming-proxy-port":70000,"outgoing-proxy-port":4140,"proxy-uid":1}"#,
            "\"incoming-proxy-port\": 70000 is not a port",
        ),
        (
            r#"{"incoming-proxy-port":4143,"outgoing-proxy-port":-1,"proxy-uid":1}"#,
            "\"outgoing-proxy-port\": -1 is not a port",
        ),
        (
            r#"{"incoming-proxy-port":4143,"outgoing-proxy-port":4140,"proxy-uid":1,"ports-to-redirect":[70000]}"#,
            "\"ports-to-redirect\": \"70000\" is not a port",
        ),
        (
            r#"{"incoming-proxy-port":4143,"outgoing-proxy-port":4140,"proxy-uid":1,"ports-to-redirect":["x"]}"#,
            "\"ports-to-redirect\": \"x\" is not a port",
        ),
    ];
    for (linkerd, problem) in cases {
        let error = redirect(&config(linkerd).unwrap(), &[]).unwrap_err();
        assert_eq!(error.code, code::INVALID_CONFIG);
        assert!(error.msg.contains(problem), "{}", error.msg);
    }
}

#[test]
fn members_of_the_wrong_type_are_refused_with_key_value_and_grammar() {
    let cases = [
        (
            r#"{"proxy-uid":"2102"}"#,
            "\"linkerd\": \"proxy-uid\": \"2102\" is not a whole number",
        ),
        (
            r#"{"proxy-gid":1.5}"#,
            "\"linkerd\": \"proxy-gid\": 1.5 is not a whole number",
        ),
        (
            r#"{"inbound-ports-to-ignore":"80"}"#,
            "\"inbound-ports-to-ignore\": \"80\" is not a list of ports, such as [\"25\", \"8000-8010\"]",
        ),
        (
            r#"{"subnets-to-ignore":[8]}"#,
            "\"subnets-to-ignore\": [8] is not a list of texts",
        ),
        (
            r#"{"simulate":"no"}"#,
            "\"simulate\": \"no\" is not true or false",
        ),
        (
            r#"{"ipv6":1}"#,
            "\"ipv6\": 1 is not one of true, false and \"auto\"",
        ),
        (
            r#"{"iptables-mode":"bogus"}"#,
            "\"iptables-mode\": \"bogus\" is not one of auto, native, nft, legacy and plain",
        ),
        ("[]", "\"linkerd\": [] is not an object"),
    ];
    for (linkerd, problem) in cases {
        let error = config(linkerd).unwrap_err();
        assert_eq!(error.code, code::INVALID_CONFIG);
        assert!(error.msg.ends_with(problem), "{linkerd}: {}", error.msg);
    }
}

#[test]
fn a_bad_member_spoils_the_redirect_and_no_other_member() {
    let text = r#"{"log_level":1,"kubernetes":{"kubeconfig":"/k"},"linkerd":{"proxy-uid":"x",
        "exclude-namespaces":["kube-system"],"ipv6":"auto","api-retry-seconds":0,
        "incoming-proxy-port":4143,"outgoing-proxy-port":4140}}"#;
    let config = Config::read_leniently(&serde_json::from_str(text).unwrap());
    assert_eq!(config.kubeconfig, PathBuf::from("/k"));
    assert_eq!(config.exclude_namespaces, ["kube-system"]);
    assert_eq!(config.ipv6, Ipv6::Auto);
    assert_eq!(config.api_budget, API_BUDGET);
    let error = redirect(&config, &[("proxy-uid", "2102")]).unwrap_err();
    assert!(
        error.msg.ends_with("\"log_level\": 1 is not a text"),
        "{}",
        error.msg
    );
}

#[test]
fn unknown_keys_nulls_and_duplicates_do_not_matter() {
    let config = config(
        r#"{"incoming-proxy-port":1,"incoming-proxy-port":4143,"outgoing-proxy-port":4140,
            "proxy-uid":2102,"proxy-gid":null,"policy":{"a":1},"ports-to-redirect":[8080,"9090"]}"#,
    )
    .unwrap();
    let redirect = redirect(&config, &[]).unwrap();
    assert_eq!(redirect.inbound_port, 4143);
    assert_eq!(redirect.ports_to_redirect, [8080, 9090]);
    assert_eq!(config.mode, Mode::Auto);
}

#[test]
fn the_proxys_container_counts_before_annotations_and_those_before_the_configuration() {
    let proxy = Proxy {
        uid: Some(777),
        gid: Some(0),
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
    assert_eq!((redirect.proxy_uid, redirect.proxy_gid), (Some(777), None));
    assert_eq!(
        (redirect.inbound_port, redirect.outbound_port),
        (1143, 1140)
    );
    assert_eq!(ports::joined(&redirect.skip_inbound), "4191,4190,1191,1190");
}

#[test]
fn our_own_keys_are_read_and_their_bad_values_named() {
    let config = config(
        r#"{"ipv6":"auto","pod-detection":"api","exclude-namespaces":["kube-system"],
            "agent-namespace":"cni","agent-daemonset":"mesh-cni","api-retry-seconds":3}"#,
    )
    .unwrap();
    assert_eq!(config.ipv6, Ipv6::Auto);
    assert_eq!(config.detection, Detection::Api);
    assert_eq!(config.exclude_namespaces, ["kube-system"]);
    assert_eq!(config.agent_namespace, "cni");
    assert_eq!(config.agent_daemonset, "mesh-cni");
    assert_eq!(config.api_budget, Duration::from_secs(3));
    let cases = [
        (
            r#"{"ipv6":"maybe"}"#,
            "\"ipv6\": \"maybe\" is not one of true, false and \"auto\"",
        ),
        (
            r#"{"pod-detection":"x"}"#,
            "\"pod-detection\": \"x\" is not one of annotations and api",
        ),
        (
            r#"{"api-retry-seconds":0}"#,
            "\"api-retry-seconds\": 0 is not from 1 to 60",
        ),
    ];
    for (linkerd, problem) in cases {
        let error = self::config(linkerd).unwrap_err();
        assert!(error.msg.contains(problem), "{}", error.msg);
    }
}
