//! Encodes nf_tables messages: the plugin's table, its chains and rules
//! (`linux/netfilter/nf_tables.h`).

use nix::libc;

use super::nfta;
use crate::netlink::attribute::{Attributes, find};
use crate::redirect::Family;
use crate::redirect::rules::nft::{Expression, Header, Meta};
use crate::redirect::rules::{Chain, Verdict};

/// Name of the plugin's table, one per address family. It holds only the plugin's rules.
pub const PLUGIN_TABLE: &str = "linkerd-cni";

/// Hook priority of the chains: after those of `iptables -t nat`, so that a DNAT or REDIRECT of
/// another program wins.
const PRIORITY: i32 = libc::NF_IP_PRI_NAT_DST + 1;

/// Message types of nf_tables.
pub mod kind {
    use nix::libc;

    pub const NEW_TABLE: u16 = libc::NFT_MSG_NEWTABLE as u16;
    pub const GET_TABLE: u16 = libc::NFT_MSG_GETTABLE as u16;
    pub const DELETE_TABLE: u16 = libc::NFT_MSG_DELTABLE as u16;
    pub const NEW_CHAIN: u16 = libc::NFT_MSG_NEWCHAIN as u16;
    pub const GET_CHAIN: u16 = libc::NFT_MSG_GETCHAIN as u16;
    pub const NEW_RULE: u16 = libc::NFT_MSG_NEWRULE as u16;
    pub const GET_RULE: u16 = libc::NFT_MSG_GETRULE as u16;
    /// Without a rule handle it deletes all rules of the chain.
    pub const DELETE_RULE: u16 = libc::NFT_MSG_DELRULE as u16;
    pub const NEW_SET: u16 = libc::NFT_MSG_NEWSET as u16;
    pub const NEW_ELEMENTS: u16 = libc::NFT_MSG_NEWSETELEM as u16;
    pub const GET_ELEMENTS: u16 = libc::NFT_MSG_GETSETELEM as u16;
}

/// Register that expressions load into and compare.
const REGISTER: u32 = libc::NFT_REG_1 as u32;
/// Register for a verdict.
const VERDICT_REGISTER: u32 = libc::NFT_REG_VERDICT as u32;
/// Type of user data that `nft` shows as a comment (`NFTNL_UDATA_RULE_COMMENT` of
/// `libnftnl/udata.h`).
const COMMENT: u8 = 0;
/// Longest comment, in characters: the user data of a rule has at most 256 bytes (`NFT_USERDATA_MAXLEN`),
/// of which the header takes two and the NUL one.
const COMMENT_LIMIT: usize = 253;

/// Name of an anonymous set in the transaction that creates it. The kernel replaces `%d`.
const TEMPLATE: &[u8] = b"__set%d\0";

/// How a rule refers to its set.
pub enum SetName<'a> {
    /// The set has this ID in the transaction that creates set and rule.
    New(u32),
    /// The name that the kernel lists, with its NUL.
    Listed(&'a [u8]),
}

impl SetName<'_> {
    /// Appends the name, and the ID if the set has one, as attributes of these types.
    pub fn append(&self, attributes: Attributes, name: u16, id: u16) -> Attributes {
        match self {
            SetName::New(number) => attributes.bytes(name, TEMPLATE).number(id, *number),
            SetName::Listed(listed) => attributes.bytes(name, listed),
        }
    }
}

/// Returns `AF_INET` or `AF_INET6`.
pub fn protocol_family(family: Family) -> u8 {
    match family {
        Family::Ipv4 => libc::AF_INET as u8,
        Family::Ipv6 => libc::AF_INET6 as u8,
    }
}

/// Encodes the plugin's table.
pub fn table() -> Attributes {
    Attributes::default().text(nfta::TABLE_NAME, PLUGIN_TABLE)
}

/// Encodes a chain. `PREROUTING` and `OUTPUT` are base chains, hooked into the kernel's NAT.
pub fn chain(chain: Chain) -> Attributes {
    let attributes = Attributes::default()
        .text(nfta::CHAIN_TABLE, PLUGIN_TABLE)
        .text(nfta::CHAIN_NAME, chain.name());
    let hook = match chain {
        Chain::Prerouting => libc::NF_INET_PRE_ROUTING,
        Chain::Output => libc::NF_INET_LOCAL_OUT,
        Chain::ProxyInitRedirect | Chain::ProxyInitOutput => return attributes,
    };
    let hook = Attributes::default()
        .number(nfta::HOOK_HOOKNUM, hook as u32)
        .number(nfta::HOOK_PRIORITY, PRIORITY as u32);
    attributes.nested(nfta::CHAIN_HOOK, hook).text(nfta::CHAIN_TYPE, "nat")
}

/// Returns whether the table that the kernel `listed` is the plugin's and active.
pub fn is_active_table(listed: &[u8]) -> bool {
    // The flags must be zero: a table is inactive with "dormant", and with "owner" it belongs to
    // another process.
    find(listed, nfta::TABLE_NAME) == Some(format!("{PLUGIN_TABLE}\0").as_bytes())
        && find(listed, nfta::TABLE_FLAGS).is_none_or(|flags| flags.iter().all(|&byte| byte == 0))
}

/// Returns the attributes that the kernel lists for an active chain. A base chain must accept
/// packets that reach its end.
pub fn active_chain(chain: Chain) -> Attributes {
    let attributes = self::chain(chain);
    match chain {
        Chain::Prerouting | Chain::Output => {
            attributes.number(nfta::CHAIN_POLICY, libc::NF_ACCEPT as u32)
        }
        Chain::ProxyInitRedirect | Chain::ProxyInitOutput => attributes,
    }
}

/// Encodes a rule. Its set, if it has one, has the name `set`.
pub fn rule(
    chain: Chain,
    expressions: &[Expression],
    set: &SetName<'_>,
    comment: &str,
) -> Attributes {
    let mut list = Attributes::default();
    for expression in expressions {
        list.0.extend(encode(expression, set).0);
    }
    Attributes::default()
        .text(nfta::RULE_TABLE, PLUGIN_TABLE)
        .text(nfta::RULE_CHAIN, chain.name())
        .nested(nfta::RULE_EXPRESSIONS, list)
        .bytes(nfta::RULE_USERDATA, &userdata(comment))
}

/// Encodes a comment like libnftnl, so that the `nft` program shows it.
pub fn userdata(comment: &str) -> Vec<u8> {
    let text: String = comment.chars().take(COMMENT_LIMIT).collect();
    let mut data = vec![COMMENT, (text.len() + 1) as u8];
    data.extend_from_slice(text.as_bytes());
    data.push(0);
    data
}

/// Returns the comment in the user data of a rule.
pub fn comment(mut userdata: &[u8]) -> Option<&[u8]> {
    while let [kind, length, rest @ ..] = userdata {
        let (value, others) = rest.split_at_checked(usize::from(*length))?;
        if *kind == COMMENT {
            return Some(value);
        }
        userdata = others;
    }
    None
}

/// Returns the text of an expression that wraps iptables' match `comment`, padded with NULs.
pub fn match_comment(expression: &[u8]) -> Option<&[u8]> {
    let data = data_of(expression, b"match\0")?;
    find(data, nfta::MATCH_NAME).filter(|name| *name == b"comment\0")?;
    find(data, nfta::MATCH_INFO)
}

/// Returns the name of the set in which an expression looks a value up, with its NUL.
pub fn set_name(expression: &[u8]) -> Option<&[u8]> {
    find(data_of(expression, b"lookup\0")?, nfta::LOOKUP_SET)
}

/// Returns the data of an expression called `name`.
fn data_of<'a>(expression: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    find(expression, nfta::EXPR_NAME).filter(|found| *found == name)?;
    find(expression, nfta::EXPR_DATA)
}

/// Encodes an expression as list elements. A redirect takes two elements, others one.
pub fn encode(expression: &Expression, set: &SetName<'_>) -> Attributes {
    let element = |name: &str, data: Attributes| {
        let element =
            Attributes::default().text(nfta::EXPR_NAME, name).nested(nfta::EXPR_DATA, data);
        Attributes::default().nested(nfta::LIST_ELEM, element)
    };
    let none = Attributes::default;
    let value = |bytes: &[u8]| none().bytes(nfta::DATA_VALUE, bytes);
    match expression {
        Expression::Meta(meta) => {
            let key = match meta {
                Meta::OutputName => libc::NFT_META_OIFNAME,
                Meta::SocketUid => libc::NFT_META_SKUID,
                Meta::SocketGid => libc::NFT_META_SKGID,
                Meta::Protocol => libc::NFT_META_L4PROTO,
            };
            element(
                "meta",
                none().number(nfta::META_KEY, key as u32).number(nfta::META_DREG, REGISTER),
            )
        }
        Expression::Payload { header, offset, length } => {
            let base = match header {
                Header::Network => libc::NFT_PAYLOAD_NETWORK_HEADER,
                Header::Transport => libc::NFT_PAYLOAD_TRANSPORT_HEADER,
            };
            let data = none()
                .number(nfta::PAYLOAD_DREG, REGISTER)
                .number(nfta::PAYLOAD_BASE, base as u32)
                .number(nfta::PAYLOAD_OFFSET, *offset)
                .number(nfta::PAYLOAD_LEN, *length);
            element("payload", data)
        }
        Expression::Mask(mask) => {
            let data = none()
                .number(nfta::BITWISE_SREG, REGISTER)
                .number(nfta::BITWISE_DREG, REGISTER)
                .number(nfta::BITWISE_LEN, mask.len() as u32)
                .nested(nfta::BITWISE_MASK, value(mask))
                .nested(nfta::BITWISE_XOR, value(&vec![0; mask.len()]));
            element("bitwise", data)
        }
        Expression::Equal(bytes) => {
            let data = none()
                .number(nfta::CMP_SREG, REGISTER)
                .number(nfta::CMP_OP, libc::NFT_CMP_EQ as u32)
                .nested(nfta::CMP_DATA, value(bytes));
            element("cmp", data)
        }
        Expression::Between(first, last) => {
            let data = none()
                .number(nfta::RANGE_SREG, REGISTER)
                .number(nfta::RANGE_OP, libc::NFT_RANGE_EQ as u32)
                .nested(nfta::RANGE_FROM_DATA, value(first))
                .nested(nfta::RANGE_TO_DATA, value(last));
            element("range", data)
        }
        Expression::In(_) => {
            // The kernel lists the flags, which could invert the condition.
            let data = none().number(nfta::LOOKUP_SREG, REGISTER).number(nfta::LOOKUP_FLAGS, 0);
            element("lookup", set.append(data, nfta::LOOKUP_SET, nfta::LOOKUP_SET_ID))
        }
        Expression::Verdict(Verdict::Return) => {
            element("immediate", verdict(libc::NFT_RETURN, None))
        }
        Expression::Verdict(Verdict::Jump(chain)) => {
            element("immediate", verdict(libc::NFT_JUMP, Some(*chain)))
        }
        Expression::Verdict(Verdict::Redirect(port)) => {
            let load = none()
                .number(nfta::IMMEDIATE_DREG, REGISTER)
                .nested(nfta::IMMEDIATE_DATA, value(&port.to_be_bytes()));
            let mut both = element("immediate", load);
            both.0.extend(element("redir", none().number(nfta::REDIR_REG_PROTO_MIN, REGISTER)).0);
            both
        }
    }
}

/// Encodes the data of an `immediate` expression that sets a verdict.
fn verdict(code: i32, chain: Option<Chain>) -> Attributes {
    let mut verdict = Attributes::default().number(nfta::VERDICT_CODE, code as u32);
    if let Some(chain) = chain {
        verdict = verdict.text(nfta::VERDICT_CHAIN, chain.name());
    }
    Attributes::default()
        .number(nfta::IMMEDIATE_DREG, VERDICT_REGISTER)
        .nested(nfta::IMMEDIATE_DATA, Attributes::default().nested(nfta::DATA_VERDICT, verdict))
}
