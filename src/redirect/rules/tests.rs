use super::*;

fn redirect() -> Redirect {
    Redirect { skip_inbound: vec![4191.into(), 4190.into()], ..Redirect::example() }
}

fn lines(redirect: &Redirect, family: Family) -> String {
    let lines: Vec<String> = rules(redirect, family).iter().map(rule_line).collect();
    lines.join("\n")
}

#[test]
fn rules_of_both_families_equal_those_of_upstream() {
    let skip_inbound = [4191, 4190].into_iter().chain(1..=19).map(PortRange::from);
    let skip_outbound = (100..120).step_by(2).map(|first| PortRange { first, last: first + 1 });
    let cases = [
        ("default values", redirect()),
        ("ports to redirect", Redirect { ports_to_redirect: vec![8080, 9090], ..redirect() }),
        (
            "more than fifteen ports",
            Redirect {
                skip_inbound: skip_inbound.collect(),
                skip_outbound: skip_outbound.collect(),
                ..redirect()
            },
        ),
        (
            "annotations",
            Redirect {
                proxy_uid: Some(1234),
                proxy_gid: Some(5678),
                skip_inbound: vec![4191.into(), 4190.into(), 9998.into(), 9999.into()],
                skip_outbound: vec![25.into(), 3306.into()],
                skip_subnets: ["10.0.0.0/8", "192.168.1.7/24", "fd00::/8", "::/0"]
                    .map(|text| Subnet::parse(text).unwrap())
                    .into(),
                ..redirect()
            },
        ),
    ];
    let rendered = cases.map(|(name, redirect)| {
        let [ipv4, ipv6] = [Family::Ipv4, Family::Ipv6].map(|family| lines(&redirect, family));
        let ipv6 = if ipv6 == ipv4 { "the same".to_owned() } else { ipv6 };
        format!("{name}, IPv4:\n{ipv4}\nIPv6:\n{ipv6}\n")
    });
    insta::assert_snapshot!(rendered.join("\n"));
}

/// The rules after those for interfaces are the same as without interfaces.
#[test]
fn rules_for_interfaces_inside_the_pod_precede_the_others() {
    let without = Redirect {
        skip_outbound: vec![25.into(), PortRange { first: 8000, last: 8010 }],
        skip_outbound_subnets: ["172.17.0.0/16", "0.0.0.0/0", "fd00::/8"]
            .map(|text| Subnet::parse(text).unwrap())
            .into(),
        ..redirect()
    };
    let names = ["k6t-eth0", "docker0"];
    let inner_interfaces = names.map(|name| Interface::parse(name).unwrap()).into();
    let with = Redirect { inner_interfaces, ..without.clone() };
    let mut added = Vec::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        let lines = lines(&with, family);
        let (first, others) = lines.split_once("-A PROXY_INIT_REDIRECT -p tcp -m multi").unwrap();
        let others = format!("-A PROXY_INIT_REDIRECT -p tcp -m multi{others}");
        assert_eq!(others, super::tests::lines(&without, family));
        added.push(format!("{family:?}:\n{first}"));
    }
    insta::assert_snapshot!(added.join("\n"));
}

#[test]
fn duplicate_and_nested_subnets_have_no_rule_of_their_own() {
    let texts =
        ["192.168.0.0/16", "10.1.0.0/16", "10.1.2.0/24", "10.1.0.0/16", "10.0.0.0/15", "fd00::/8"];
    let redirect = Redirect {
        skip_subnets: texts.map(|text| Subnet::parse(text).unwrap()).into(),
        skip_inbound: Vec::new(),
        ..redirect()
    };
    let rules = rules(&redirect, Family::Ipv4);
    let comments: Vec<&str> = rules[..3].iter().map(|rule| rule.comment.as_str()).collect();
    let wanted = [
        "ignore-subnet-192.168.0.0/16",
        "ignore-subnet-10.0.0.0/15",
        "redirect-all-incoming-to-proxy-port",
    ];
    assert_eq!(comments, wanted.map(|text| format!("proxy-init/{text}")));
}

#[test]
fn scripts_are_one_transaction_each() {
    let rules = rules(&redirect(), Family::Ipv4);
    let old = ["-A OUTPUT -m comment --comment \"old\" -j PROXY_INIT_OUTPUT".to_owned()];
    insta::assert_snapshot!(format!(
        "fresh:\n{}\nagain:\n{}\nundo:\n{}",
        install_script(&rules, true, &[]),
        install_script(&rules, false, &old),
        undo_script(&rules)
    ));
}
