//! nf_tables messages: our table, its chains and its rules (`linux/netfilter/nf_tables.h`).

use crate::netlink::attribute::{Attributes, find, parse};
use crate::rules::nft::{Expression, Header, Meta};
use crate::rules::{Chain, Family, Verdict};

/// Our own table, one a family; nobody else's rules are in it.
pub const TABLE: &str = "linkerd-cni";

/// After the chains of `iptables -t nat` (-100), so that a DNAT or REDIRECT that
/// another tool put there wins.
const PRIORITY: i32 = -99;

/// Message types of nf_tables.
pub mod kind {
    pub const NEW_TABLE: u16 = 0;
    pub const GET_TABLE: u16 = 1;
    pub const DELETE_TABLE: u16 = 2;
    pub const NEW_CHAIN: u16 = 3;
    pub const GET_CHAIN: u16 = 4;
    pub const NEW_RULE: u16 = 6;
    pub const GET_RULE: u16 = 7;
    /// Without a handle: all rules of a chain.
    pub const DELETE_RULE: u16 = 8;
}

/// Attributes of a rule that are read back.
pub mod rule {
    pub const TABLE: u16 = 1;
    pub const CHAIN: u16 = 2;
    pub const EXPRESSIONS: u16 = 4;
    pub const USERDATA: u16 = 7;
}

/// The one register that we use.
const REGISTER: u32 = 1;
/// The register that a verdict is put into.
const VERDICT_REGISTER: u32 = 0;
/// The kind of user data that `nft` shows as a comment, and its largest size.
const COMMENT: u8 = 0;
const COMMENT_LIMIT: usize = 127;

const HOOK_PREROUTING: u32 = 0;
const HOOK_OUTPUT: u32 = 3;
const ACCEPT: u32 = 1;
const RETURN: i32 = -5;
const JUMP: i32 = -3;

/// `AF_INET`, `AF_INET6`.
pub fn protocol_family(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 2,
        Family::Ipv6 => 10,
    }
}

pub fn table() -> Attributes {
    Attributes::default().text(1, TABLE)
}

/// One of the four chains; the kernel's two are hooked into its NAT.
pub fn chain(chain: Chain) -> Attributes {
    let attributes = Attributes::default().text(1, TABLE).text(3, chain.name());
    let hook = match chain {
        Chain::Prerouting => HOOK_PREROUTING,
        Chain::Output => HOOK_OUTPUT,
        Chain::ProxyInitRedirect | Chain::ProxyInitOutput => return attributes,
    };
    let hook = Attributes::default()
        .number(1, hook)
        .number(2, PRIORITY as u32);
    attributes.nested(4, hook).text(7, "nat")
}

/// Whether what the kernel lists of a table is ours, and awake.
pub fn is_table_at_work(listed: &[u8]) -> bool {
    let listed = parse(listed);
    // No flags at all; the only ones of a table that anybody could set are to sleep and
    // to be owned by a process.
    find(&listed, 1) == Some(format!("{TABLE}\0").as_bytes())
        && find(&listed, 2).is_none_or(|flags| flags.iter().all(|&byte| byte == 0))
}

/// What the kernel lists of a chain of ours at least: an empty chain of the kernel's
/// own lets pass what reaches its end.
pub fn chain_at_work(chain: Chain) -> Attributes {
    let attributes = self::chain(chain);
    match chain {
        Chain::Prerouting | Chain::Output => attributes.number(5, ACCEPT),
        Chain::ProxyInitRedirect | Chain::ProxyInitOutput => attributes,
    }
}

pub fn rule(chain: Chain, expressions: &[Expression], comment: &str) -> Attributes {
    let mut list = Attributes::default();
    for expression in expressions {
        list.0.extend(encode(expression).0);
    }
    Attributes::default()
        .text(rule::TABLE, TABLE)
        .text(rule::CHAIN, chain.name())
        .nested(rule::EXPRESSIONS, list)
        .bytes(rule::USERDATA, &userdata(comment))
}

/// A comment in the form of libnftnl, which the `nft` program reads.
pub fn userdata(comment: &str) -> Vec<u8> {
    let text: String = comment.chars().take(COMMENT_LIMIT).collect();
    let mut data = vec![COMMENT, (text.len() + 1) as u8];
    data.extend_from_slice(text.as_bytes());
    data.push(0);
    data
}

/// The text of an expression that wraps iptables' match `comment`, with zeroes behind it.
pub fn match_comment(expression: &[u8]) -> Option<&[u8]> {
    let expression = parse(expression);
    if find(&expression, 1) != Some(b"match\0") {
        return None;
    }
    let data = parse(find(&expression, 2)?);
    if find(&data, 1) != Some(b"comment\0") {
        return None;
    }
    find(&data, 3)
}

/// An expression as elements of a list; a redirect takes two.
pub fn encode(expression: &Expression) -> Attributes {
    let element = |name: &str, data: Attributes| {
        let element = Attributes::default().text(1, name).nested(2, data);
        Attributes::default().nested(1, element)
    };
    let none = Attributes::default;
    let value = |bytes: &[u8]| none().bytes(1, bytes);
    match expression {
        Expression::Meta(meta) => {
            let key = match meta {
                Meta::OutputName => 7,
                Meta::SocketUid => 10,
                Meta::SocketGid => 11,
                Meta::Protocol => 16,
            };
            element("meta", none().number(2, key).number(1, REGISTER))
        }
        Expression::Payload {
            header,
            offset,
            length,
        } => {
            let base = match header {
                Header::Network => 1,
                Header::Transport => 2,
            };
            let data = none()
                .number(1, REGISTER)
                .number(2, base)
                .number(3, *offset)
                .number(4, *length);
            element("payload", data)
        }
        Expression::Mask(mask) => {
            let data = none()
                .number(1, REGISTER)
                .number(2, REGISTER)
                .number(3, mask.len() as u32)
                .nested(4, value(mask))
                .nested(5, value(&vec![0; mask.len()]));
            element("bitwise", data)
        }
        Expression::Equal(bytes) => {
            let data = none()
                .number(1, REGISTER)
                .number(2, 0)
                .nested(3, value(bytes));
            element("cmp", data)
        }
        Expression::Between(first, last) => {
            let data = none()
                .number(1, REGISTER)
                .number(2, 0)
                .nested(3, value(first))
                .nested(4, value(last));
            element("range", data)
        }
        Expression::Verdict(Verdict::Return) => element("immediate", verdict(RETURN, None)),
        Expression::Verdict(Verdict::Jump(chain)) => {
            element("immediate", verdict(JUMP, Some(*chain)))
        }
        Expression::Verdict(Verdict::Redirect(port)) => {
            let load = none()
                .number(1, REGISTER)
                .nested(2, value(&port.to_be_bytes()));
            let mut both = element("immediate", load);
            both.0
                .extend(element("redir", none().number(1, REGISTER)).0);
            both
        }
    }
}

fn verdict(code: i32, chain: Option<Chain>) -> Attributes {
    let mut verdict = Attributes::default().number(1, code as u32);
    if let Some(chain) = chain {
        verdict = verdict.text(2, chain.name());
    }
    Attributes::default()
        .number(1, VERDICT_REGISTER)
        .nested(2, Attributes::default().nested(2, verdict))
}
