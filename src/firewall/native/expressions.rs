//! Encodes the expressions of nf_tables rules. They mean the same as the arguments of iptables that
//! the other backends use.

use std::net::Ipv4Addr;

use ipnet::IpNet;
use nix::libc;

use super::nfta;
use crate::netlink::attribute::Attributes;
use crate::redirect::address_number;
use crate::redirect::rules::nft::{self, Key};
use crate::redirect::rules::{Match, Rule, Verdict};

/// Register into which expressions load a value, and from which they read it.
const REGISTER: u32 = libc::NFT_REG_1 as u32;
/// Register of the port of a NAT target. Its address is in [`REGISTER`].
const PORT_REGISTER: u32 = libc::NFT_REG_2 as u32;
const VERDICT_REGISTER: u32 = libc::NFT_REG_VERDICT as u32;
/// Offset of the destination port in the TCP header (RFC 9293, section 3.1).
const DESTINATION_PORT: u32 = 2;
/// Offset of the source address in the IPv4 header (RFC 791, section 3.1). The destination address
/// follows it.
const IPV4_SOURCE: u32 = 12;
/// Offset of the source address in the IPv6 header (RFC 8200, section 3). The destination address
/// follows it.
const IPV6_SOURCE: u32 = 8;
/// `NFT_NAT_DNAT` of `enum nft_nat_types`.
const NAT_DESTINATION: u32 = 1;
const NAT_IPV4: u32 = libc::NFPROTO_IPV4 as u32;

/// Name of an anonymous set in the transaction that creates it. The kernel replaces `%d` with a
/// number.
const NAME_TEMPLATE: &[u8] = b"__set%d\0";

/// Name of the set of a rule.
pub enum SetName<'a> {
    /// A set that is created in the same transaction as the rule, with this ID.
    New(u32),
    /// An existing set. The name is as the kernel lists it, with a terminating NUL.
    Listed(&'a [u8]),
}

impl SetName<'_> {
    /// Appends the name as an attribute of the type `name`. For a new set, also appends the ID as
    /// an attribute of the type `id`.
    pub fn append(&self, attributes: Attributes, name: u16, id: u16) -> Attributes {
        match self {
            SetName::New(number) => attributes.bytes(name, NAME_TEMPLATE).number(id, *number),
            SetName::Listed(listed) => attributes.bytes(name, listed),
        }
    }
}

/// Encodes the conditions and the verdict of the nf_tables rule for `run`, see [`nft::runs`]. The
/// kernel evaluates them in order, and stops at the first condition that a packet does not meet.
pub fn expressions(run: &[Rule], set: &SetName<'_>) -> Attributes {
    let rule = &run[0];
    let mut list = Expressions::default();
    for condition in &rule.matches {
        list = match condition {
            Match::Tcp => list.meta(libc::NFT_META_L4PROTO).equal(&[libc::IPPROTO_TCP as u8]),
            Match::Uid(uid) => list.meta(libc::NFT_META_SKUID).equal(&uid.to_ne_bytes()),
            Match::Gid(gid) => list.meta(libc::NFT_META_SKGID).equal(&gid.to_ne_bytes()),
            Match::Loopback => list.meta(libc::NFT_META_OIFNAME).equal(&padded("lo")),
            Match::Arrival(interface) => {
                list.meta(libc::NFT_META_IIFNAME).equal(&padded(interface.name()))
            }
            Match::Ports(_) | Match::Port(_) => list.ports(run, set),
            Match::Source(net) => list.subnets(run, *net, source_offset(*net), set),
            Match::Destination(net) => list.subnets(run, *net, destination_offset(*net), set),
        };
    }
    list.verdict(rule.verdict).0
}

/// Returns the name of an interface, padded with NULs to the length that the kernel compares.
fn padded(name: &str) -> [u8; libc::IFNAMSIZ] {
    let mut padded = [0; libc::IFNAMSIZ];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    padded
}

fn address_key(net: IpNet) -> Key {
    match net {
        IpNet::V4(_) => Key::IPV4_ADDRESS,
        IpNet::V6(_) => Key::IPV6_ADDRESS,
    }
}

fn source_offset(net: IpNet) -> u32 {
    match net {
        IpNet::V4(_) => IPV4_SOURCE,
        IpNet::V6(_) => IPV6_SOURCE,
    }
}

fn destination_offset(net: IpNet) -> u32 {
    source_offset(net) + address_key(net).length as u32
}

fn value(bytes: &[u8]) -> Attributes {
    Attributes::default().bytes(nfta::DATA_VALUE, bytes)
}

fn verdict_code(code: i32) -> Attributes {
    Attributes::default().number(nfta::VERDICT_CODE, code as u32)
}

/// A list of encoded expressions. Each method appends one or more.
#[derive(Default)]
struct Expressions(Attributes);

impl Expressions {
    fn push(self, name: &str, data: Attributes) -> Self {
        let element = Attributes::default().text(nfta::EXPR_NAME, name);
        Expressions(self.0.nested(nfta::LIST_ELEM, element.nested(nfta::EXPR_DATA, data)))
    }

    fn meta(self, key: i32) -> Self {
        let data = Attributes::default().number(nfta::META_KEY, key as u32);
        self.push("meta", data.number(nfta::META_DREG, REGISTER))
    }

    /// Loads a number from a header. `offset` is its position, `key` its length.
    fn payload(self, header: i32, offset: u32, key: Key) -> Self {
        let data = Attributes::default()
            .number(nfta::PAYLOAD_DREG, REGISTER)
            .number(nfta::PAYLOAD_BASE, header as u32)
            .number(nfta::PAYLOAD_OFFSET, offset)
            .number(nfta::PAYLOAD_LEN, key.length as u32);
        self.push("payload", data)
    }

    /// Requires a destination port that a rule of `run` lists.
    fn ports(self, run: &[Rule], set: &SetName<'_>) -> Self {
        let list = self.payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, DESTINATION_PORT, Key::PORT);
        match nft::ranges(run)[..] {
            [(first, last)] if first == last => list.equal(&Key::PORT.encode(first)),
            [(first, last)] => list.between(&Key::PORT.encode(first), &Key::PORT.encode(last)),
            _ => list.lookup(set),
        }
    }

    /// Requires that the address at `offset` in the IP header is in a subnet that a rule of `run`
    /// lists. `net` is the subnet of the first rule.
    fn subnets(self, run: &[Rule], net: IpNet, offset: u32, set: &SetName<'_>) -> Self {
        let key = address_key(net);
        let list = self.payload(libc::NFT_PAYLOAD_NETWORK_HEADER, offset, key);
        if run.len() > 1 {
            return list.lookup(set);
        }
        let mask = key.encode(address_number(net.netmask()));
        list.mask(&mask).equal(&key.encode(address_number(net.network())))
    }

    fn mask(self, mask: &[u8]) -> Self {
        let data = Attributes::default()
            .number(nfta::BITWISE_SREG, REGISTER)
            .number(nfta::BITWISE_DREG, REGISTER)
            .number(nfta::BITWISE_LEN, mask.len() as u32)
            .nested(nfta::BITWISE_MASK, value(mask))
            .nested(nfta::BITWISE_XOR, value(&vec![0; mask.len()]));
        self.push("bitwise", data)
    }

    fn equal(self, bytes: &[u8]) -> Self {
        let data = Attributes::default()
            .number(nfta::CMP_SREG, REGISTER)
            .number(nfta::CMP_OP, libc::NFT_CMP_EQ as u32)
            .nested(nfta::CMP_DATA, value(bytes));
        self.push("cmp", data)
    }

    fn between(self, first: &[u8], last: &[u8]) -> Self {
        let data = Attributes::default()
            .number(nfta::RANGE_SREG, REGISTER)
            .number(nfta::RANGE_OP, libc::NFT_RANGE_EQ as u32)
            .nested(nfta::RANGE_FROM_DATA, value(first))
            .nested(nfta::RANGE_TO_DATA, value(last));
        self.push("range", data)
    }

    /// Requires that the loaded number is in the set of the rule.
    fn lookup(self, set: &SetName<'_>) -> Self {
        // Encode the flags although they are 0, because rules are compared with the kernel's
        // listing: a rule with an inverted lookup differs only in the flags.
        let data =
            Attributes::default().number(nfta::LOOKUP_SREG, REGISTER).number(nfta::LOOKUP_FLAGS, 0);
        self.push("lookup", set.append(data, nfta::LOOKUP_SET, nfta::LOOKUP_SET_ID))
    }

    fn verdict(self, verdict: Verdict) -> Self {
        match verdict {
            Verdict::Return => self.load_verdict(verdict_code(libc::NFT_RETURN)),
            Verdict::Jump(chain) => self
                .load_verdict(verdict_code(libc::NFT_JUMP).text(nfta::VERDICT_CHAIN, chain.name())),
            Verdict::Discard => self.load_verdict(verdict_code(libc::NF_DROP)),
            Verdict::RedirectToLoopback(port) => {
                let to = Attributes::default()
                    .number(nfta::NAT_TYPE, NAT_DESTINATION)
                    .number(nfta::NAT_FAMILY, NAT_IPV4)
                    .number(nfta::NAT_REG_ADDR_MIN, REGISTER)
                    .number(nfta::NAT_REG_PROTO_MIN, PORT_REGISTER);
                self.load(REGISTER, value(&Ipv4Addr::LOCALHOST.octets()))
                    .load(PORT_REGISTER, value(&port.to_be_bytes()))
                    .push("nat", to)
            }
            Verdict::Redirect(port) => {
                let to = Attributes::default().number(nfta::REDIR_REG_PROTO_MIN, REGISTER);
                self.load(REGISTER, value(&port.to_be_bytes())).push("redir", to)
            }
        }
    }

    fn load_verdict(self, verdict: Attributes) -> Self {
        self.load(VERDICT_REGISTER, Attributes::default().nested(nfta::DATA_VERDICT, verdict))
    }

    fn load(self, register: u32, data: Attributes) -> Self {
        let load = Attributes::default().number(nfta::IMMEDIATE_DREG, register);
        self.push("immediate", load.nested(nfta::IMMEDIATE_DATA, data))
    }
}
