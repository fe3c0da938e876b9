//! Rules as nf_tables expressions: the same meaning as the text of
//! [`super::iptables`], still data. [`crate::firewall`] sends them.

use ipnet::IpNet;

use super::{Match, Rule, Verdict};
use crate::ports::PortRange;

/// One expression. Those that load a value put it into register 1, those that
/// compare take it from there; a comparison that fails ends the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Loads something about the packet or its socket.
    Meta(Meta),
    /// Loads `length` bytes of a header.
    Payload {
        header: Header,
        offset: u32,
        length: u32,
    },
    /// Keeps the bits of this mask.
    Mask(Vec<u8>),
    /// Goes on if the value is this.
    Equal(Vec<u8>),
    /// Goes on if the value is from the first to the second.
    Between(Vec<u8>, Vec<u8>),
    Verdict(Verdict),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    /// The transport protocol's number, one byte.
    Protocol,
    /// The name of the interface it leaves by, 16 bytes.
    OutputName,
    /// User and group of the socket, in the machine's byte order.
    SocketUid,
    SocketGid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    Network,
    Transport,
}

const TCP: u8 = 6;
/// In the TCP header.
const DESTINATION_PORT: u32 = 2;
/// In the headers of IPv4 and IPv6.
const SOURCE_ADDRESS: [u32; 2] = [12, 8];

/// What `rule` is in nf_tables: usually one rule. A list of ports becomes one a port
/// or range, which needs no set and has no limit of fifteen.
pub fn expressions(rule: &Rule) -> Vec<Vec<Expression>> {
    let mut variants = vec![Vec::new()];
    for condition in &rule.matches {
        let alternatives = condition_alternatives(condition);
        variants = variants
            .iter()
            .flat_map(|variant: &Vec<Expression>| {
                alternatives
                    .iter()
                    .map(|alternative| [variant.as_slice(), alternative].concat())
            })
            .collect();
    }
    for variant in &mut variants {
        variant.push(Expression::Verdict(rule.verdict));
    }
    variants
}

/// Ways to meet the condition, each enough.
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
    let load = Expression::Payload {
        header: Header::Transport,
        offset: DESTINATION_PORT,
        length: 2,
    };
    let compare = if first == last {
        Expression::Equal(first)
    } else {
        Expression::Between(first, last)
    };
    vec![load, compare]
}

fn source(net: IpNet) -> Vec<Expression> {
    let (offset, address, mask) = match net {
        IpNet::V4(net) => (
            SOURCE_ADDRESS[0],
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
        ),
        IpNet::V6(net) => (
            SOURCE_ADDRESS[1],
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
        ),
    };
    let length = if address.len() == 4 { 4 } else { 16 };
    vec![
        Expression::Payload {
            header: Header::Network,
            offset,
            length,
        },
        Expression::Mask(mask),
        Expression::Equal(address),
    ]
}

fn interface_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}
