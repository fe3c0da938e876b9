//! Turns rules into nf_tables expressions with the same meaning as the text of [`super::iptables`].
//! [`crate::firewall`] encodes and sends them.

use ipnet::IpNet;
use nix::libc;

use super::{Match, Rule, Verdict};
use crate::ports::PortRange;

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
    Verdict(Verdict),
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

/// Returns the nf_tables rules for `rule`, usually one. A list of ports becomes one rule per port or
/// range, which needs no nf_tables set and avoids the limit of 15 ports.
pub fn expressions(rule: &Rule) -> Vec<Vec<Expression>> {
    let mut variants = vec![Vec::new()];
    for condition in &rule.matches {
        let alternatives = condition_alternatives(condition);
        variants = variants
            .iter()
            .flat_map(|variant: &Vec<Expression>| {
                alternatives.iter().map(|alternative| [variant.as_slice(), alternative].concat())
            })
            .collect();
    }
    for variant in &mut variants {
        variant.push(Expression::Verdict(rule.verdict));
    }
    variants
}

/// Returns alternatives to meet the condition. One of them is enough.
fn condition_alternatives(condition: &Match) -> Vec<Vec<Expression>> {
    match condition {
        Match::Tcp => vec![meta_equal(Meta::Protocol, vec![TCP])],
        Match::Ports(ranges) => ranges.iter().copied().map(port).collect(),
        Match::Port(number) => vec![port((*number).into())],
        Match::Source(net) => vec![source(*net)],
        Match::Uid(uid) => vec![meta_equal(Meta::SocketUid, uid.to_ne_bytes().to_vec())],
        Match::Gid(gid) => vec![meta_equal(Meta::SocketGid, gid.to_ne_bytes().to_vec())],
        Match::Loopback => vec![meta_equal(Meta::OutputName, interface_name("lo"))],
    }
}

fn meta_equal(meta: Meta, value: Vec<u8>) -> Vec<Expression> {
    vec![Expression::Meta(meta), Expression::Equal(value)]
}

fn port(range: PortRange) -> Vec<Expression> {
    let [first, last] = [range.first, range.last].map(|port| port.to_be_bytes().to_vec());
    let load =
        Expression::Payload { header: Header::Transport, offset: DESTINATION_PORT, length: 2 };
    let compare =
        if first == last { Expression::Equal(first) } else { Expression::Between(first, last) };
    vec![load, compare]
}

fn source(net: IpNet) -> Vec<Expression> {
    let (offset, address, mask) = match net {
        IpNet::V4(net) => {
            (IPV4_SOURCE, net.network().octets().to_vec(), net.netmask().octets().to_vec())
        }
        IpNet::V6(net) => {
            (IPV6_SOURCE, net.network().octets().to_vec(), net.netmask().octets().to_vec())
        }
    };
    let length = address.len() as u32;
    vec![
        Expression::Payload { header: Header::Network, offset, length },
        Expression::Mask(mask),
        Expression::Equal(address),
    ]
}

fn interface_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(libc::IFNAMSIZ, 0);
    bytes
}
