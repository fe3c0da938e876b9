//! The backend `native`: nf_tables over netlink, without programs of the host.
//!
//! One transaction writes the rules of all address families to the plugin's own tables.

mod message;
mod nfta;
mod rejection;

use std::ffi::OsStr;

use nix::errno::Errno;
use nix::sys::utsname::uname;

use super::Error;
use crate::netlink::attribute;
use crate::netlink::attribute::{find, parse};
use crate::netlink::socket;
use crate::netlink::socket::{APPEND, CREATE, EXCLUSIVE, Message};
use crate::rules::{self, Chain, Family, Redirect, nft};
use message::{kind, protocol_family};

/// All chains, in the order in which they are created.
const CHAINS: [Chain; Chain::ALL.len()] =
    [Chain::ProxyInitRedirect, Chain::ProxyInitOutput, Chain::Prerouting, Chain::Output];

/// Oldest kernel, as major and minor version. Before Linux 4.18 the addresses of replies are restored
/// only in hooks that have a `nat` chain, and no second `nat` chain may have the same hook.
const OLDEST_KERNEL: (u32, u32) = (4, 18);

/// Replaces the rules in the plugin's table of each family with those of `redirect`.
///
/// In a netns without the table, one transaction is enough. If the table exists, a second one
/// replaces it. The old rules apply until the new ones do.
///
/// # Errors
/// Fails with the kernel's error; then no rule changed. After a timeout the rules may have changed.
pub fn apply(redirect: &Redirect, families: &[Family]) -> Result<(), Error> {
    refuse_old_kernel(&uname().map(|name| name.release().to_owned()).unwrap_or_default())?;
    let fresh = transaction(redirect, families, true);
    match socket::transact(&fresh) {
        Err(rejection) if rejection.errno == Errno::EEXIST => {
            let again = transaction(redirect, families, false);
            socket::transact(&again).map_err(|rejection| rejection::error(&again, rejection))
        }
        done => done.map_err(|rejection| rejection::error(&fresh, rejection)),
    }
}

/// Fails if the kernel's `release`, such as `5.14.0-427.el9.x86_64`, is older than
/// [`OLDEST_KERNEL`]. An unknown form of release passes.
fn refuse_old_kernel(release: &OsStr) -> Result<(), Error> {
    let release = release.to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST_KERNEL => {
            Err(Error::OldKernel { release: release.into_owned() })
        }
        _ => Ok(()),
    }
}

/// Builds the messages that create the tables. Unless `fresh`, they first delete existing tables.
///
/// [`apply`] sends them. Tests evaluate them without a kernel.
pub fn transaction(redirect: &Redirect, families: &[Family], fresh: bool) -> Vec<Message> {
    let mut messages = Vec::new();
    for &family in families {
        let mut push = |kind, flags, attributes| {
            messages.push(Message { kind, family: protocol_family(family), flags, attributes });
        };
        if !fresh {
            // Deleting a missing table fails, so create it first.
            push(kind::NEW_TABLE, CREATE, message::table());
            push(kind::DELETE_TABLE, 0, message::table());
        }
        let exclusive = if fresh { EXCLUSIVE } else { 0 };
        push(kind::NEW_TABLE, CREATE | exclusive, message::table());
        for chain in CHAINS {
            push(kind::NEW_CHAIN, CREATE, message::chain(chain));
        }
        for rule in rules::marked_rules(redirect, family, families) {
            for expressions in nft::expressions(&rule) {
                let attributes = message::rule(rule.chain, &expressions, &rule.comment);
                push(kind::NEW_RULE, CREATE | APPEND, attributes);
            }
        }
    }
    messages
}

/// A rule that the kernel lists: its comment, and name and data of each expression.
struct ListedRule {
    /// Without the marker. Empty if the rule has no comment.
    comment: String,
    marker: Option<String>,
    expressions: Vec<Vec<u8>>,
}

impl ListedRule {
    /// `iptables-nft` stores a comment as user data, or as a match of its own (1.8.9).
    fn new(userdata: &[u8], expressions: Vec<Vec<u8>>) -> Self {
        let matched =
            || expressions.iter().find_map(|expression| message::match_comment(expression));
        let comment = message::comment(userdata).or_else(matched).unwrap_or_default();
        let text = comment.split(|&byte| byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let (comment, marker) = rules::split_comment(&text);
        ListedRule { comment: comment.to_owned(), marker: marker.map(str::to_owned), expressions }
    }
}

/// Returns the rules of `redirect` that are missing or at another position in the plugin's tables,
/// as lines of `iptables-save`.
///
/// # Errors
/// Fails if the kernel cannot list the rules.
pub fn missing(redirect: &Redirect, families: &[Family]) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    for &family in families {
        let found = list_active(family)?;
        let mut next = [0; CHAINS.len()];
        for rule in rules::rules(redirect, family) {
            let position = &mut next[rule.chain as usize];
            let is_present = nft::expressions(&rule).iter().all(|expressions| {
                let matches = found[rule.chain as usize]
                    .get(*position)
                    .is_some_and(|found| is_rule(found, &rule.comment, expressions));
                *position += usize::from(matches);
                matches
            });
            if !is_present {
                missing.push(rules::rule_line(&rule));
            }
        }
    }
    Ok(missing)
}

/// Like [`missing`], for rules that `iptables-nft` wrote to its table `nat`. Compares rules by their
/// comments, which name skipped ports and subnets. A change of the proxy's UID, GID or ports is not
/// detected. Returns `None` if the `PROXY_INIT_*` chains are empty.
pub fn missing_from_iptables(
    redirect: &Redirect,
    families: &[Family],
) -> Result<Option<Vec<String>>, Error> {
    let mut missing = Vec::new();
    let mut has_rules = false;
    for &family in families {
        let found = list(family, rules::NAT_TABLE)?;
        has_rules |= Chain::LINKERD.iter().any(|&chain| !found[chain as usize].is_empty());
        let rules = rules::rules(redirect, family);
        missing.extend(rules::missing_in_order(&rules, &found, |rule, found: &ListedRule| {
            found.comment == rule.comment
        }));
    }
    Ok(has_rules.then_some(missing))
}

/// Deletes all rules of the `PROXY_INIT_*` chains in the table of `iptables-nft`. The empty chains
/// and the jumps to them stay, without effect.
pub fn flush_iptables(families: &[Family]) -> Result<(), Error> {
    for &family in families {
        for chain in Chain::LINKERD {
            let attributes = attribute::Attributes::default()
                .text(nfta::RULE_TABLE, rules::NAT_TABLE)
                .text(nfta::RULE_CHAIN, chain.name());
            let message = Message {
                kind: kind::DELETE_RULE,
                family: protocol_family(family),
                flags: 0,
                attributes,
            };
            let messages = [message];
            match socket::transact(&messages) {
                Ok(()) => {}
                // This family may have no such chain.
                Err(rejection) if rejection.errno == Errno::ENOENT => {}
                Err(rejection) => return Err(rejection::error(&messages, rejection)),
            }
        }
    }
    Ok(())
}

/// Returns the marker of the rules in the plugin's tables, or else in those of `iptables-nft`.
///
/// # Errors
/// Fails if the kernel cannot list rules of IPv4.
pub fn marker() -> Result<Option<String>, Error> {
    for table in [message::PLUGIN_TABLE, rules::NAT_TABLE] {
        for family in [Family::Ipv4, Family::Ipv6] {
            let found = match list(family, table) {
                Err(_) if family == Family::Ipv6 => continue,
                found => found?,
            };
            if let Some(marker) = found.into_iter().flatten().find_map(|rule| rule.marker) {
                return Ok(Some(marker));
            }
        }
    }
    Ok(None)
}

/// Returns the comments, without markers, of the rules that decide: those of `iptables-nft`, which come
/// first, or else those of the plugin's table.
///
/// # Errors
/// Fails if the kernel cannot list rules of the family.
pub fn comments(family: Family) -> Result<rules::ListedRules<String>, Error> {
    let mut found = list(family, rules::NAT_TABLE)?;
    if Chain::LINKERD.iter().all(|&chain| found[chain as usize].is_empty()) {
        found = list_active(family)?;
    }
    Ok(found.map(|rules| rules.into_iter().map(|rule| rule.comment).collect()))
}

/// Lists the rules of the plugin's table that have an effect.
fn list_active(family: Family) -> Result<rules::ListedRules<ListedRule>, Error> {
    let mut found = list(family, message::PLUGIN_TABLE)?;
    let fail = |errno| rejection::list_error("the list of tables and chains", errno);
    let active = active_chains(family).map_err(fail)?;
    for chain in CHAINS.into_iter().filter(|&chain| !active[chain as usize]) {
        found[chain as usize].clear();
    }
    Ok(found)
}

/// Lists the rules of `table`, by chain. A missing table has no rules.
fn list(family: Family, table: &str) -> Result<rules::ListedRules<ListedRule>, Error> {
    let mut found = rules::ListedRules::default();
    let request = attribute::Attributes::default().text(nfta::RULE_TABLE, table);
    let family = protocol_family(family);
    let result = socket::dump(kind::GET_RULE, family, &request, &mut |payload| {
        if let Some((chain, rule)) = listed_rule(table, payload) {
            found[chain as usize].push(rule);
        }
    });
    match result {
        Ok(()) | Err(Errno::ENOENT) => Ok(found),
        Err(errno) => {
            Err(rejection::list_error(&format!("the list of rules in table {table}"), errno))
        }
    }
}

/// Decodes a listed rule. `None` if the rule is of another table or chain: old kernels ignore the
/// filter and list the rules of all tables.
fn listed_rule(table: &str, payload: &[u8]) -> Option<(Chain, ListedRule)> {
    let attributes = parse(payload);
    let text = |kind| find(&attributes, kind).unwrap_or_default();
    let is = |kind, name: &str| text(kind).strip_suffix(b"\0") == Some(name.as_bytes());
    if !is(nfta::RULE_TABLE, table) {
        return None;
    }
    let chain = CHAINS.into_iter().find(|chain| is(nfta::RULE_CHAIN, chain.name()))?;
    let expressions = parse(text(nfta::RULE_EXPRESSIONS)).into_iter();
    let expressions = expressions.map(|(_, element)| element.to_vec()).collect();
    Some((chain, ListedRule::new(text(nfta::RULE_USERDATA), expressions)))
}

/// Returns which chains of the plugin's table are active. Rules have no effect in a dormant table,
/// or in a base chain with another hook, priority or policy.
fn active_chains(family: Family) -> Result<[bool; CHAINS.len()], Errno> {
    let family = protocol_family(family);
    let all = attribute::Attributes::default();
    let mut is_table_active = false;
    socket::dump(kind::GET_TABLE, family, &all, &mut |payload| {
        is_table_active |= message::is_active_table(payload);
    })?;
    let mut active = [false; CHAINS.len()];
    socket::dump(kind::GET_CHAIN, family, &all, &mut |payload| {
        for chain in CHAINS {
            active[chain as usize] |=
                is_table_active && contains(payload, &message::active_chain(chain).0);
        }
    })?;
    Ok(active)
}

/// Returns whether the listed rule has this comment and these expressions.
fn is_rule(found: &ListedRule, comment: &str, expressions: &[nft::Expression]) -> bool {
    let mut run = Vec::new();
    for expression in expressions {
        run.extend(message::encode(expression).0);
    }
    let wanted = parse(&run);
    found.comment == comment
        && found.expressions.len() == wanted.len()
        && found.expressions.iter().zip(wanted).all(|(found, (_, wanted))| contains(found, wanted))
}

/// Returns whether `found` has all attributes of `wanted`. It may have more, as the kernel lists
/// defaults too.
fn contains(found: &[u8], wanted: &[u8]) -> bool {
    let found = parse(found);
    parse(wanted).iter().all(|(kind, wanted)| {
        find(&found, *kind).is_some_and(|found| {
            found == *wanted || (!parse(wanted).is_empty() && contains(found, wanted))
        })
    })
}

#[cfg(test)]
mod tests;
