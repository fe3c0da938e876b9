//! Compares both renderings of a redirect, iptables text and nf_tables messages, with upstream's
//! rules: all of them must treat every packet alike.
//!
//! The comparison is done by `testkit::properties::difference`. These tests also show that it finds
//! a difference if and only if some packet is treated differently.

use std::collections::BTreeSet;
use std::net::IpAddr;

use linkerd2_cni::firewall::native::transaction;
use linkerd2_cni::netlink::socket::Message;
use linkerd2_cni::redirect::interfaces::Interface;
use linkerd2_cni::redirect::ports::PortRange;
use linkerd2_cni::redirect::rules::{install_script, rules};
use linkerd2_cni::redirect::{Family, Redirect, Subnet};
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::properties::difference::difference;
use testkit::properties::evaluator::Rules;

use crate::contract::settings;
use crate::packet::{Boundaries, Hook, Packet, boundaries, boundary_packets};
use crate::property_config;
use crate::{iptables, nf_tables};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];
/// Types of the messages that add rules, sets and elements of sets: `NFT_MSG_NEWRULE`,
/// `NFT_MSG_NEWSET` and `NFT_MSG_NEWSETELEM`.
const RULE_AND_SET_MESSAGES: [i32; 3] = [6, 9, 12];

/// The rules that this plugin installs with iptables.
fn iptables_rules(redirect: &Redirect, family: Family, ipv6: bool) -> Rules {
    let mut table = iptables::NatTable::default();
    if family == Family::Ipv4 || ipv6 {
        table.apply(&install_script(&rules(redirect, family), true, &[])).unwrap();
    }
    table.rules().clone()
}

/// An edit of a list of rules. The result may or may not mean the same.
#[derive(Clone, Debug)]
enum Change {
    Remove(Index),
    SwapWithNext(Index),
    /// Adds one to a number in a rule.
    Increment(Index, Index),
    /// Inserts a rule that always returns before this rule.
    InsertReturn(Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        any::<Index>().prop_map(Change::Remove),
        any::<Index>().prop_map(Change::SwapWithNext),
        any::<(Index, Index)>().prop_map(|(rule, number)| Change::Increment(rule, number)),
        any::<Index>().prop_map(Change::InsertReturn),
    ]
}

impl Change {
    fn apply(&self, lines: &[String]) -> Vec<String> {
        let mut lines = lines.to_vec();
        let rules: Vec<usize> =
            (0..lines.len()).filter(|index| lines[*index].starts_with("-A ")).collect();
        if rules.is_empty() {
            return lines;
        }
        match self {
            Change::Remove(rule) => drop(lines.remove(*rule.get(&rules))),
            Change::SwapWithNext(rule) => {
                let index = *rule.get(&rules);
                if index + 1 < lines.len() {
                    lines.swap(index, index + 1);
                }
            }
            Change::Increment(rule, number) => {
                let line = &mut lines[*rule.get(&rules)];
                let starts: Vec<usize> = (1..line.len())
                    .filter(|&index| {
                        let bytes = line.as_bytes();
                        bytes[index].is_ascii_digit() && b" ,:".contains(&bytes[index - 1])
                    })
                    .collect();
                if starts.is_empty() {
                    return lines;
                }
                let start = *number.get(&starts);
                let length = line[start..].bytes().take_while(u8::is_ascii_digit).count();
                let value: u64 = line[start..start + length].parse().unwrap();
                line.replace_range(start..start + length, &(value + 1).to_string());
            }
            Change::InsertReturn(rule) => {
                let index = *rule.get(&rules);
                let chain = lines[index].split(' ').nth(1).unwrap().to_owned();
                lines.insert(index, format!("-A {chain} -j RETURN"));
            }
        }
        lines
    }
}

/// Returns all packets whose values lie at the boundaries of the redirect's rules, or next to a
/// number in the lines.
fn packets_at_boundaries(redirect: &Redirect, lines: &[String], family: Family) -> Vec<Packet> {
    let Boundaries {
        mut ports,
        mut uids,
        mut gids,
        sources,
        destinations,
        redirected_destinations,
        interfaces,
    } = boundaries(redirect);
    let conditions = lines.iter().map(|line| line.split(" -j ").next().unwrap());
    for number in conditions.flat_map(|line| line.split([' ', ',', ':'])) {
        if let Ok(number) = number.parse::<u16>() {
            ports.extend([number.wrapping_sub(1), number, number.wrapping_add(1)]);
            uids.push(number.into());
            gids.push(number.into());
        }
    }
    let ports: BTreeSet<u16> = ports.into_iter().collect();
    let is_in_family = |address: &IpAddr| address.is_ipv4() == (family == Family::Ipv4);
    let sources: BTreeSet<_> = sources.into_iter().filter(is_in_family).collect();
    boundary_packets(&Boundaries {
        ports: ports.into_iter().collect(),
        sources: sources.into_iter().collect(),
        destinations: destinations.into_iter().filter(is_in_family).collect(),
        redirected_destinations: redirected_destinations.into_iter().filter(is_in_family).collect(),
        interfaces,
        uids: ids_near(uids, redirect.proxy_uid),
        gids: ids_near(gids, redirect.proxy_gid),
    })
}

/// Returns the distinct IDs that are 0 or close to the proxy's ID, or all distinct IDs if the proxy
/// has no ID.
fn ids_near(ids: Vec<u32>, proxy_id: Option<u32>) -> Vec<u32> {
    let mut near = BTreeSet::new();
    for id in ids {
        let is_near = proxy_id.is_none_or(|proxy_id| id.abs_diff(proxy_id) < 3);
        if is_near || id == 0 {
            near.insert(id);
        }
    }
    near.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..property_config() })]

    #[test]
    fn both_renderings_treat_every_packet_like_upstreams_rules(
        settings in settings(),
        change in change(),
    ) {
        let redirect = settings.redirect();
        prop_assert_eq!(redirect.is_ok(), settings.has_user(), "{:?}", redirect);
        let Ok(redirect) = redirect else {
            return Ok(());
        };
        let families = if settings.ipv6 { &FAMILIES[..] } else { &FAMILIES[..1] };
        let messages = transaction(&redirect, families, true);
        for family in FAMILIES {
            let lines = settings.upstream_lines(family);
            let upstream = Rules::read(&lines).unwrap();
            let by_iptables = iptables_rules(&redirect, family, settings.ipv6);
            prop_assert_eq!(difference(&upstream, &by_iptables, family), None, "{:#?}", lines);
            let native_lines = nf_tables::decode_lines(&messages, family).unwrap();
            let native = Rules::read(&native_lines).unwrap();
            prop_assert_eq!(difference(&upstream, &native, family), None, "{:#?}", native_lines);

            let changed_lines = change.apply(&lines);
            // A rule with an invalid number or jump cannot be evaluated.
            let Ok(changed) = Rules::read(&changed_lines) else {
                continue;
            };
            // Trying every packet takes long, so test only one family.
            if (family == Family::Ipv6) != settings.ipv6 {
                continue;
            }
            let found = difference(&changed, &by_iptables, family);
            let is_treated_differently = |packet: &Packet| {
                changed.redirected_to(packet.hook, &packet.fields()) != settings.redirected_to(packet)
            };
            let packets = packets_at_boundaries(&redirect, &changed_lines, family);
            let packet = packets
                .iter()
                .find(|packet| packet.family() == family && is_treated_differently(packet));
            prop_assert_eq!(
                packet.is_some(), found.is_some(),
                "{:?} {:?} {:#?} {:#?}", packet, found, lines, changed_lines
            );
        }
    }
}

#[test]
fn unknown_rule_option_is_an_error_only_in_a_reachable_chain() {
    let lines = |rule: &str| {
        ["-P PREROUTING ACCEPT", "-P OUTPUT ACCEPT", "-N X", "-N UNUSED", "-A OUTPUT -j X", rule]
            .map(str::to_owned)
    };
    for case in include_str!("unknown_rules.txt").lines() {
        let (rule, why) = case.split_once(": ").unwrap();
        let error = Rules::read(&lines(rule)).unwrap_err();
        assert!(error.contains(rule) && error.contains(why), "{error}");
        // Packets never reach the chain.
        let unused = rule.replace("-A X", "-A UNUSED");
        assert!(Rules::read(&lines(&unused)).is_ok(), "{unused}");
    }
    let known = "-A X ! -s 10.0.0.0/8 -d 10.1.0.0/16 ! -o lo -p udp -m owner ! --uid-owner 1-5 -m comment --comment \"a \\\"b c\" -j ACCEPT";
    let known = Rules::read(&lines(known)).unwrap();
    assert_eq!(known.conditions().count(), 5);
    assert_eq!(known.redirected_to(Hook::Output, &Default::default()), None);
}

/// A redirect with most kinds of rules, none of which is redundant.
fn redirect_with_most_rules() -> Redirect {
    let subnet = |text: &str| Subnet::parse(text).unwrap();
    Redirect {
        inbound_port: 4143,
        outbound_port: 4140,
        proxy_uid: Some(2102),
        proxy_gid: Some(3103),
        ports_to_redirect: Vec::new(),
        skip_inbound: vec![4191.into(), PortRange { first: 7000, last: 7010 }],
        skip_outbound: vec![25.into(), 3306.into()],
        skip_subnets: ["10.0.0.0/8", "192.168.1.0/24", "fd00::/8"].map(subnet).into(),
        skip_outbound_subnets: ["172.16.0.0/12", "192.0.2.0/24", "fd01::/16"].map(subnet).into(),
        inner_interfaces: vec![Interface::parse("docker0").unwrap()],
        is_guessed: false,
    }
}

/// Tests the decoder of nf_tables messages: a changed byte makes a rule or set invalid, or changes
/// its meaning.
#[test]
fn every_changed_byte_of_an_nf_tables_rule_or_set_is_detected() {
    let all_ports = redirect_with_most_rules();
    let some_ports =
        Redirect { ports_to_redirect: vec![8080, 9090], skip_inbound: vec![], ..all_ports.clone() };
    // A single port, a single range of ports and a single subnet need no set.
    let few_ports = Redirect {
        skip_inbound: vec![4191.into(), 4190.into()],
        skip_outbound: vec![25.into()],
        skip_subnets: all_ports.skip_subnets[1..].to_vec(),
        skip_outbound_subnets: all_ports.skip_outbound_subnets[1..].to_vec(),
        ..all_ports.clone()
    };
    for redirect in [all_ports, some_ports, few_ports] {
        let messages = transaction(&redirect, &FAMILIES, true);
        let decode =
            |messages: &[Message]| FAMILIES.map(|family| nf_tables::decode_lines(messages, family));
        let expected = decode(&messages);
        assert!(expected.iter().all(Result::is_ok), "{expected:?}");
        for (index, message) in messages.iter().enumerate() {
            if !RULE_AND_SET_MESSAGES.contains(&message.kind) {
                continue;
            }
            let mut without = messages.clone();
            without.remove(index);
            assert_ne!(decode(&without), expected, "without {message:?}");
            let bytes = &message.attributes.0;
            // A rule's comment comes last. It has a header of 4 bytes, a type, a length, the text
            // and a NUL.
            let comment = bytes.windows(11).position(|bytes| bytes == b"proxy-init/");
            for offset in 0..comment.map_or(bytes.len(), |comment| comment - 6) {
                let mut damaged = messages.clone();
                damaged[index].attributes.0[offset] ^= 1;
                assert_ne!(decode(&damaged), expected, "byte {offset} of {message:?}");
            }
        }
    }
}
