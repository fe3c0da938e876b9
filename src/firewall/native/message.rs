//! Encodes nf_tables messages for the plugin's table, its chains and its rules
//! (`linux/netfilter/nf_tables.h`).

use std::borrow::Cow;

use nix::libc;

use super::expressions::{SetName, expressions};
use super::nfta;
use crate::netlink::attribute::{Attributes, find};
use crate::netlink::socket::Message;
use crate::redirect::Family;
use crate::redirect::rules::{Chain, Rule, nft};

/// Name of the plugin's table. Each address family has one. It contains only the plugin's rules.
pub const PLUGIN_TABLE: &str = "linkerd-cni";

/// Hook priority of the base chains. This is the lowest priority that the kernel accepts for a
/// `nat` chain, because such a chain must run after conntrack
/// ([`nft_chain_parse_hook`](https://github.com/torvalds/linux/blob/v6.12/net/netfilter/nf_tables_api.c)).
///
/// The kernel runs the `nat` chains of a hook in the order of their priorities, until one of them
/// translates the connection
/// ([`nf_nat_inet_fn`](https://github.com/torvalds/linux/blob/v6.12/net/netfilter/nf_nat_core.c)).
/// At equal priority, the chain that was registered last runs first. With the priority of
/// `iptables -t nat`, -100, iptables rules that the pod adds after ADD would run before the
/// plugin's rules, for example those with which Docker publishes ports. With the lowest priority,
/// the plugin's rules run first.
const PRIORITY: i32 = libc::NF_IP_PRI_CONNTRACK + 1;
/// Hook priority in earlier versions of the plugin. Their chains ran after `iptables -t nat`.
const EARLIER_PRIORITY: i32 = libc::NF_IP_PRI_NAT_DST + 1;

/// Type of user data that `nft` shows as a comment (`NFTNL_UDATA_RULE_COMMENT` of
/// `libnftnl/udata.h`).
const COMMENT: u8 = 0;
/// Longest comment, in characters. The user data of a rule has at most 256 bytes
/// (`NFT_USERDATA_MAXLEN`), including two bytes of header and the terminating NUL.
const COMMENT_LIMIT: usize = 253;

pub fn protocol_family(family: Family) -> u8 {
    match family {
        Family::Ipv4 => libc::AF_INET as u8,
        Family::Ipv6 => libc::AF_INET6 as u8,
    }
}

pub fn message(kind: i32, family: Family, flags: u16, attributes: Attributes) -> Message {
    Message { kind, family: protocol_family(family), flags, attributes }
}

pub fn table() -> Attributes {
    Attributes::default().text(nfta::TABLE_NAME, PLUGIN_TABLE)
}

/// Encodes a chain of the plugin's table. `PREROUTING` and `OUTPUT` are base chains: they are
/// attached to hooks of the kernel, and accept packets that no rule matches.
pub fn chain(chain: Chain) -> Attributes {
    chain_at(chain, PRIORITY)
}

/// Encodes a chain as earlier versions of the plugin did.
pub fn earlier_chain(chain: Chain) -> Attributes {
    chain_at(chain, EARLIER_PRIORITY)
}

/// Encodes a chain. `priority` is the hook priority of base chains. Other chains have none.
fn chain_at(chain: Chain, priority: i32) -> Attributes {
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
        .number(nfta::HOOK_PRIORITY, priority as u32);
    let attributes = attributes.nested(nfta::CHAIN_HOOK, hook).text(nfta::CHAIN_TYPE, "nat");
    attributes.number(nfta::CHAIN_POLICY, libc::NF_ACCEPT as u32)
}

/// Encodes the nf_tables rule for `run`, see [`nft::runs`].
pub fn rule(run: &[Rule], set: &SetName<'_>) -> Attributes {
    Attributes::default()
        .text(nfta::RULE_TABLE, PLUGIN_TABLE)
        .text(nfta::RULE_CHAIN, run[0].chain.name())
        .nested(nfta::RULE_EXPRESSIONS, expressions(run, set))
        .bytes(nfta::RULE_USERDATA, &userdata(&nft::comment(run)))
}

/// Encodes a comment in the format of libnftnl, so that the program `nft` shows the comment.
pub fn userdata(comment: &str) -> Vec<u8> {
    let text: String = comment.chars().take(COMMENT_LIMIT).collect();
    let mut data = vec![COMMENT, (text.len() + 1) as u8];
    data.extend_from_slice(text.as_bytes());
    data.push(0);
    data
}

/// Returns the comment in the user data of a rule, including the terminating NUL.
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

/// Decodes text. Removes a terminating NUL.
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(bytes))
}

/// Returns the text of a `comment` match of iptables, padded with NULs. Returns `None` for any
/// other expression.
pub fn match_comment(expression: &[u8]) -> Option<&[u8]> {
    let data = data_of(expression, b"match\0")?;
    if find(data, nfta::MATCH_NAME)? != b"comment\0" {
        return None;
    }
    find(data, nfta::MATCH_INFO)
}

/// Returns the name of the set of a `lookup` expression, including the terminating NUL. Returns
/// `None` for any other expression.
pub fn set_name(expression: &[u8]) -> Option<&[u8]> {
    find(data_of(expression, b"lookup\0")?, nfta::LOOKUP_SET)
}

/// Returns the attributes of an expression. Returns `None` if its name is not `name`.
fn data_of<'a>(expression: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if find(expression, nfta::EXPR_NAME)? != name {
        return None;
    }
    find(expression, nfta::EXPR_DATA)
}
