//! Turns rules into nf_tables expressions with the same meaning as the text of [`super::iptables`].
//! [`crate::firewall`] encodes and sends them.

use std::borrow::Cow;

use ipnet::IpNet;
use nix::libc;

use super::{Match, Rule, Verdict};
use crate::redirect::ports;

/// One expression. Loads write to register 1, comparisons read from it. A comparison that fails ends
/// the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Loads a property of the packet or its socket.
    Meta(Meta),
    /// Loads `length` bytes at `offset` of a header.
    Payload {
        header: Header,
        offset: u32,
        length: u32,
    },
    /// Clears the bits that this mask does not have.
    Mask(Vec<u8>),
    /// Requires the value to be equal.
    Equal(Vec<u8>),
    /// Requires the value to be in this range, both ends included.
    Between(Vec<u8>, Vec<u8>),
    /// Requires the value to be in this set, which belongs to the rule.
    In(Set),
    Verdict(Verdict),
}

/// A set of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub key: Key,
    /// First and last number of each range, ascending. Ranges do not overlap or adjoin.
    pub ranges: Vec<(u128, u128)>,
}

/// What the numbers of a set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Port,
    Ipv4Address,
    Ipv6Address,
}

impl Key {
    /// Size of a number in a packet, in bytes.
    pub fn length(self) -> usize {
        match self {
            Key::Port => 2,
            Key::Ipv4Address => 4,
            Key::Ipv6Address => 16,
        }
    }

    /// Encodes a number as packets have it, in network byte order.
    pub fn encode(self, number: u128) -> Vec<u8> {
        number.to_be_bytes()[size_of::<u128>() - self.length()..].to_vec()
    }
}

/// A property of a packet or its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    /// Number of the transport protocol, one byte.
    Protocol,
    /// Name of the outgoing interface, padded with NULs to `IFNAMSIZ` bytes.
    OutputName,
    /// User ID of the socket, in host byte order.
    SocketUid,
    /// Group ID of the socket, in host byte order.
    SocketGid,
}

/// A header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    Network,
    Transport,
}

/// Protocol number of TCP.
const TCP: u8 = libc::IPPROTO_TCP as u8;
/// Offset of the destination port in the TCP header (RFC 9293, section 3.1).
const DESTINATION_PORT: u32 = 2;
/// Offset of the source address in the IPv4 header (RFC 791, section 3.1).
const IPV4_SOURCE: u32 = 12;
/// Offset of the source address in the IPv6 header (RFC 8200, section 3).
const IPV6_SOURCE: u32 = 8;

/// Splits rules into runs, each of which one nf_tables rule stands for: rules that differ only in their
/// ports or subnets, such as those of a long list. So the number of nf_tables rules does not grow with
/// the lists.
pub fn runs(rules: &[Rule]) -> impl Iterator<Item = &[Rule]> {
    rules.chunk_by(|one, next| {
        let mut pairs = one.matches.iter().zip(&next.matches);
        let lists = one.matches.iter().filter(|condition| key(condition).is_some()).count();
        (one.chain, one.verdict, one.matches.len())
            == (next.chain, next.verdict, next.matches.len())
            && lists == 1
            && pairs.all(|(one, next)| one == next || (key(one).is_some() && key(one) == key(next)))
    })
}

/// Returns the comment of the nf_tables rule for a run: that of the first rule, with an ellipsis if
/// other rules follow.
pub fn comment(run: &[Rule]) -> Cow<'_, str> {
    match run {
        [] => Cow::default(),
        [rule] => Cow::from(&rule.comment),
        [rule, ..] => Cow::from(format!("{},...", rule.comment)),
    }
}

/// Returns the expressions of the nf_tables rule for a run.
pub fn expressions(run: &[Rule]) -> Vec<Expression> {
    let Some(rule) = run.first() else {
        return Vec::new();
    };
    let conditions = rule.matches.iter().flat_map(|condition| match condition {
        Match::Tcp => meta_equal(Meta::Protocol, vec![TCP]),
        Match::Ports(_) | Match::Port(_) => port(run),
        Match::Source(net) => source(*net, run),
        Match::Uid(uid) => meta_equal(Meta::SocketUid, uid.to_ne_bytes().to_vec()),
        Match::Gid(gid) => meta_equal(Meta::SocketGid, gid.to_ne_bytes().to_vec()),
        Match::Loopback => meta_equal(Meta::OutputName, interface_name("lo")),
    });
    conditions.chain([Expression::Verdict(rule.verdict)]).collect()
}

/// Returns what the numbers of a condition on ports or on a subnet are.
fn key(condition: &Match) -> Option<Key> {
    match condition {
        Match::Ports(_) | Match::Port(_) => Some(Key::Port),
        Match::Source(IpNet::V4(_)) => Some(Key::Ipv4Address),
        Match::Source(IpNet::V6(_)) => Some(Key::Ipv6Address),
        Match::Tcp | Match::Uid(_) | Match::Gid(_) | Match::Loopback => None,
    }
}

/// Returns the numbers of a run's conditions on ports or subnets, as [`Set::ranges`].
fn ranges(run: &[Rule]) -> Vec<(u128, u128)> {
    let mut ranges: Vec<(u128, u128)> = Vec::new();
    for condition in run.iter().flat_map(|rule| &rule.matches) {
        match condition {
            Match::Ports(ports) => {
                ranges.extend(ports.iter().map(|range| (range.first.into(), range.last.into())));
            }
            Match::Port(port) => ranges.push(((*port).into(), (*port).into())),
            Match::Source(IpNet::V4(net)) => {
                ranges.push((net.network().to_bits().into(), net.broadcast().to_bits().into()));
            }
            Match::Source(IpNet::V6(net)) => {
                ranges.push((net.network().to_bits(), net.broadcast().to_bits()));
            }
            Match::Tcp | Match::Uid(_) | Match::Gid(_) | Match::Loopback => {}
        }
    }
    ports::merged(ranges)
}

fn meta_equal(meta: Meta, value: Vec<u8>) -> Vec<Expression> {
    vec![Expression::Meta(meta), Expression::Equal(value)]
}

/// Returns the condition that the destination port is one of the run's.
fn port(run: &[Rule]) -> Vec<Expression> {
    let length = Key::Port.length() as u32;
    let load = Expression::Payload { header: Header::Transport, offset: DESTINATION_PORT, length };
    let ranges = ranges(run);
    let compare = match ranges[..] {
        [(first, last)] if first == last => Expression::Equal(Key::Port.encode(first)),
        [(first, last)] => Expression::Between(Key::Port.encode(first), Key::Port.encode(last)),
        _ => Expression::In(Set { key: Key::Port, ranges }),
    };
    vec![load, compare]
}

/// Returns the condition that the source is in `net`, or, of a longer run, in one of its subnets.
fn source(net: IpNet, run: &[Rule]) -> Vec<Expression> {
    let (key, offset, network, mask) = match net {
        IpNet::V4(net) => (
            Key::Ipv4Address,
            IPV4_SOURCE,
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
        ),
        IpNet::V6(net) => (
            Key::Ipv6Address,
            IPV6_SOURCE,
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
        ),
    };
    let length = key.length() as u32;
    let load = Expression::Payload { header: Header::Network, offset, length };
    match run.len() {
        1 => vec![load, Expression::Mask(mask), Expression::Equal(network)],
        _ => vec![load, Expression::In(Set { key, ranges: ranges(run) })],
    }
}

fn interface_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(libc::IFNAMSIZ, 0);
    bytes
}
