//! Equivalence of the renderings: iptables text and nf_tables messages of a redirect decide alike on
//! every packet, and as upstream's contract says.

use std::net::IpAddr;

use linkerd2_cni::firewall::native;
use linkerd2_cni::netlink::attribute::Attributes;
use linkerd2_cni::netlink::socket::Message;
use linkerd2_cni::redirect::ports::PortRange;
use linkerd2_cni::redirect::rules;
use linkerd2_cni::redirect::{Family, Redirect, Subnet};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::contract::{Settings, settings};
use crate::iptables::Nat;
use crate::nf_tables::Ruleset;
use crate::packet::{Boundaries, Packet, all, boundaries};
use crate::recorded::{REGRESSIONS, recorded_in};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];
/// Types of the messages that add a rule, a set and elements: `NFT_MSG_NEWRULE`, `NFT_MSG_NEWSET` and
/// `NFT_MSG_NEWSETELEM`.
const NEW: [u16; 3] = [6, 9, 12];

/// Table `nat` of both families.
#[derive(Default)]
struct Tables([Nat; 2]);

impl Tables {
    /// Replaces the rules like the backends that run iptables.
    fn apply(&mut self, redirect: &Redirect, families: &[Family]) -> Result<(), String> {
        for &family in families {
            let table = &mut self.0[family as usize];
            let rules = rules::rules(redirect, family);
            if table.apply(&rules::install_script(&rules, true, &[])).is_err() {
                let is_jump = |line: &&str| line.contains("-j PROXY_INIT_");
                let jumps: Vec<String> = table.lines().filter(is_jump).map(str::to_owned).collect();
                table.apply(&rules::install_script(&rules, false, &jumps))?;
            }
        }
        Ok(())
    }

    fn redirected_to(&self, packet: &Packet) -> Option<u16> {
        self.0[packet.family() as usize].redirected_to(packet)
    }
}

/// Replaces the rules like the backend `native`.
fn apply(ruleset: &mut Ruleset, redirect: &Redirect, families: &[Family]) -> Result<(), String> {
    ruleset
        .apply(&native::transaction(redirect, families, true))
        .or_else(|_| ruleset.apply(&native::transaction(redirect, families, false)))
}

/// Chooses each value of a packet: at a boundary of the rules, or any.
#[derive(Clone, Debug)]
struct Choice {
    is_any: [bool; 3],
    indexes: [Index; 4],
    any: (u16, [u8; 16], bool, u32),
    is_inbound: bool,
    protocol: u8,
    output: &'static str,
    has_socket: bool,
}

prop_compose! {
    fn choice()(
        is_any in any::<[bool; 3]>(),
        indexes in any::<[Index; 4]>(),
        any in any::<(u16, [u8; 16], bool, u32)>(),
        is_inbound in any::<bool>(),
        protocol in prop_oneof![4 => Just(6u8), 1 => any::<u8>()],
        output in select(&["eth0", "eth0", "lo", "lo0"][..]),
        has_socket in prop::bool::weighted(0.9),
    ) -> Choice {
        Choice { is_any, indexes, any, is_inbound, protocol, output, has_socket }
    }
}

impl Choice {
    fn packet(&self, known: &Boundaries) -> Packet {
        let [port, peer, uid, gid] = &self.indexes;
        let (any_port, any_address, is_ipv4, any_id) = self.any;
        let [is_any_port, is_any_peer, is_any_user] = self.is_any;
        let [a, b, c, d, ..] = any_address;
        let any_address = if is_ipv4 { [a, b, c, d].into() } else { IpAddr::from(any_address) };
        let port = if is_any_port { any_port } else { *port.get(&known.ports) };
        let peers = if self.is_inbound { &known.sources } else { &known.destinations };
        let peer = if is_any_peer { any_address } else { *peer.get(peers) };
        let user = (*uid.get(&known.uids), *gid.get(&known.gids));
        let user = if is_any_user { (any_id, any_id) } else { user };
        let inbound = Packet { protocol: self.protocol, ..Packet::inbound(peer, port) };
        if self.is_inbound {
            return inbound;
        }
        let outbound = Packet::outbound(peer, port, user);
        let socket = outbound.socket.filter(|_| self.has_socket);
        Packet { protocol: self.protocol, output: self.output, socket, ..outbound }
    }
}

fn families(settings: &Settings) -> &'static [Family] {
    if settings.ipv6 { &FAMILIES } else { &FAMILIES[..1] }
}

proptest! {
    #![proptest_config(recorded_in(REGRESSIONS))]

    #[test]
    fn both_renderings_of_a_redirect_decide_as_upstreams_contract_says(
        settings in settings(),
        choices in prop::collection::vec(choice(), 100),
    ) {
        let redirect = settings.redirect();
        prop_assert_eq!(redirect.is_ok(), settings.has_user(), "{:?}", redirect);
        let Ok(redirect) = redirect else {
            return Ok(());
        };
        let (mut tables, mut ruleset) = (Tables::default(), Ruleset::default());
        prop_assert_eq!(tables.apply(&redirect, families(&settings)), Ok(()));
        prop_assert_eq!(apply(&mut ruleset, &redirect, families(&settings)), Ok(()));
        let known = boundaries(&redirect);
        for packet in choices.iter().map(|choice| choice.packet(&known)) {
            let wanted = settings.redirected_to(&packet);
            prop_assert_eq!(tables.redirected_to(&packet), wanted, "iptables: {:?}", packet);
            prop_assert_eq!(ruleset.redirected_to(&packet), wanted, "nf_tables: {:?}", packet);
        }
    }

    #[test]
    fn a_redirect_that_replaces_another_leaves_no_rule_of_it(
        old in crate::redirect(),
        new in crate::redirect(),
        choices in prop::collection::vec(choice(), 50),
    ) {
        let (mut tables, mut ruleset) = (Tables::default(), Ruleset::default());
        for redirect in [&old, &new] {
            prop_assert_eq!(tables.apply(redirect, &FAMILIES), Ok(()));
            prop_assert_eq!(apply(&mut ruleset, redirect, &FAMILIES), Ok(()));
        }
        let mut fresh = Tables::default();
        prop_assert_eq!(fresh.apply(&new, &FAMILIES), Ok(()));
        let (old, new) = (boundaries(&old), boundaries(&new));
        let packets = choices.iter().flat_map(|choice| [choice.packet(&old), choice.packet(&new)]);
        for packet in packets {
            let wanted = fresh.redirected_to(&packet);
            prop_assert_eq!(tables.redirected_to(&packet), wanted, "iptables: {:?}", packet);
            prop_assert_eq!(ruleset.redirected_to(&packet), wanted, "nf_tables: {:?}", packet);
        }
    }
}

/// A redirect with most kinds of rules, in which no rule makes another superfluous.
fn redirect_of_every_kind() -> Redirect {
    let subnet = |text: &str| Subnet { net: text.parse().unwrap(), text: text.to_owned() };
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
        is_guessed: false,
    }
}

/// A redirect of all ports but some, and one of some ports, each with its packets.
fn samples() -> [(Redirect, Vec<Packet>); 3] {
    let all_ports = redirect_of_every_kind();
    let some_ports = Redirect {
        ports_to_redirect: vec![8080, 9090],
        skip_inbound: Vec::new(),
        ..all_ports.clone()
    };
    // A single port, a single range, and a single subnet, which need no set.
    let few_ports = Redirect {
        skip_inbound: vec![4191.into(), 4190.into()],
        skip_outbound: vec![25.into()],
        skip_subnets: all_ports.skip_subnets[1..].to_vec(),
        skip_outbound_subnets: all_ports.skip_outbound_subnets[1..].to_vec(),
        ..all_ports.clone()
    };
    [all_ports, some_ports, few_ports].map(|redirect| {
        let packets = all(&boundaries(&redirect));
        (redirect, packets)
    })
}

/// Shows that the comparison notices errors: each damaged rule or set is invalid or decides otherwise.
#[test]
fn an_error_in_any_byte_of_an_nf_tables_rule_or_set_is_noticed() {
    for (redirect, packets) in samples() {
        let messages = native::transaction(&redirect, &FAMILIES, true);
        let mut wanted = Ruleset::default();
        wanted.apply(&messages).unwrap();
        let is_noticed = |messages: &[Message]| {
            let mut damaged = Ruleset::default();
            damaged.apply(messages).is_err()
                || packets
                    .iter()
                    .any(|packet| damaged.redirected_to(packet) != wanted.redirected_to(packet))
        };
        assert!(!is_noticed(&messages));
        let rules = messages.iter().enumerate().filter(|(_, message)| NEW.contains(&message.kind));
        for (index, rule) in rules {
            let mut without = messages.clone();
            without.remove(index);
            assert!(is_noticed(&without), "without rule {rule:?}");
            let bytes = &rule.attributes.0;
            // A rule's comment comes last: 4 bytes of header, type and length, text and NUL.
            let comment = bytes.windows(11).position(|bytes| bytes == b"proxy-init/");
            for offset in 0..comment.map_or(bytes.len(), |comment| comment - 6) {
                let mut damaged = bytes.clone();
                damaged[offset] ^= 1;
                let mut messages = messages.clone();
                messages[index].attributes = Attributes(damaged);
                assert!(is_noticed(&messages), "byte {offset} of rule {rule:?}");
            }
        }
    }
}
