//! The backend `native`: nf_tables over netlink, without programs of the host.
//!
//! One transaction writes the rules of all address families to the plugin's own tables.

mod message;
mod nfta;
mod rejection;
mod set;

use std::borrow::Cow;
use std::ffi::OsStr;

use nix::errno::Errno;
use nix::sys::utsname::uname;

use super::Error;
use super::unsupported::is_unsupported;
use crate::netlink::attribute;
use crate::netlink::attribute::{find, parse};
use crate::netlink::socket;
use crate::netlink::socket::{APPEND, CREATE, EXCLUSIVE, Message};
use crate::redirect::rules::{self, Chain, nft};
use crate::redirect::{Family, Redirect};
use message::{SetName, kind, protocol_family};

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
    // Number of sets so far, which is also the ID of the last one.
    let mut sets = 0;
    for &family in families {
        let message = |kind, flags, attributes| Message {
            kind,
            family: protocol_family(family),
            flags,
            attributes,
        };
        if !fresh {
            // Deleting a missing table fails, so create it first.
            messages.push(message(kind::NEW_TABLE, CREATE, message::table()));
            messages.push(message(kind::DELETE_TABLE, 0, message::table()));
        }
        let exclusive = if fresh { EXCLUSIVE } else { 0 };
        messages.push(message(kind::NEW_TABLE, CREATE | exclusive, message::table()));
        for chain in CHAINS {
            messages.push(message(kind::NEW_CHAIN, CREATE, message::chain(chain)));
        }
        for run in nft::runs(&rules::marked_rules(redirect, family, families)) {
            let expressions = nft::expressions(run);
            if let Some(set) = expressions.iter().find_map(set_of) {
                sets += 1;
                messages.extend(set::messages(set, family, sets));
            }
            let set = SetName::New(sets);
            let attributes = message::rule(run[0].chain, &expressions, &set, &nft::comment(run));
            messages.push(message(kind::NEW_RULE, CREATE | APPEND, attributes));
        }
    }
    messages
}

/// Returns the set that an expression looks a value up in.
fn set_of(expression: &nft::Expression) -> Option<&nft::Set> {
    match expression {
        nft::Expression::In(set) => Some(set),
        _ => None,
    }
}

/// A rule that the kernel lists, as its attributes.
struct ListedRule(Vec<u8>);

impl ListedRule {
    fn attribute(&self, kind: u16) -> &[u8] {
        find(&parse(&self.0), kind).unwrap_or_default()
    }

    /// Returns name and data of each expression.
    fn expressions(&self) -> Vec<&[u8]> {
        let list = parse(self.attribute(nfta::RULE_EXPRESSIONS));
        list.into_iter().map(|(_, expression)| expression).collect()
    }

    /// Returns the comment, with the marker. Empty if the rule has none. `iptables-nft` stores a comment
    /// as user data, or as a match of its own (1.8.9).
    fn marked_comment(&self) -> Cow<'_, str> {
        let matched = || self.expressions().into_iter().find_map(message::match_comment);
        let comment = message::comment(self.attribute(nfta::RULE_USERDATA)).or_else(matched);
        let text = comment.unwrap_or_default().split(|&byte| byte == 0).next();
        String::from_utf8_lossy(text.unwrap_or_default())
    }

    /// Returns the comment without the marker.
    fn comment(&self) -> String {
        rules::split_comment(&self.marked_comment()).0.to_owned()
    }

    fn marker(&self) -> Option<String> {
        rules::split_comment(&self.marked_comment()).1.map(str::to_owned)
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
        for run in nft::runs(&rules::rules(redirect, family)) {
            let chain = run[0].chain as usize;
            let found = found[chain].get(next[chain]);
            if found.map_or(Ok(false), |found| is_rule(found, run, family)).map_err(unlisted)? {
                next[chain] += 1;
            } else {
                missing.extend(run.iter().map(rules::rule_line));
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
            found.comment() == rule.comment
        }));
    }
    Ok(has_rules.then_some(missing))
}

/// Deletes all rules of the `PROXY_INIT_*` chains in the tables of `iptables-nft`, and in the plugin's
/// tables of other families than `families`. The empty chains and the jumps to them stay, without effect.
pub fn flush_others(families: &[Family]) -> Result<(), Error> {
    for family in [Family::Ipv4, Family::Ipv6] {
        flush(family, rules::NAT_TABLE)?;
        if !families.contains(&family) {
            flush(family, message::PLUGIN_TABLE)?;
        }
    }
    Ok(())
}

fn flush(family: Family, table: &str) -> Result<(), Error> {
    for chain in Chain::LINKERD {
        let attributes = attribute::Attributes::default()
            .text(nfta::RULE_TABLE, table)
            .text(nfta::RULE_CHAIN, chain.name());
        let messages = [Message {
            kind: kind::DELETE_RULE,
            family: protocol_family(family),
            flags: 0,
            attributes,
        }];
        let done = socket::transact(&messages);
        match done.map_err(|rejection| rejection::error(&messages, rejection)) {
            // The chain is missing, or the kernel lacks the family.
            Err(error) if is_unsupported(&error) => {}
            done => done?,
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
            if let Some(marker) = found.into_iter().flatten().find_map(|rule| rule.marker()) {
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
    Ok(found.map(|rules| rules.iter().map(ListedRule::comment).collect()))
}

/// Lists the rules of the plugin's table that have an effect.
fn list_active(family: Family) -> Result<rules::ListedRules<ListedRule>, Error> {
    let mut found = list(family, message::PLUGIN_TABLE)?;
    let active = active_chains(family).map_err(unlisted)?;
    for chain in CHAINS.into_iter().filter(|&chain| !active[chain as usize]) {
        found[chain as usize].clear();
    }
    Ok(found)
}

/// Returns the error for tables, chains or sets that the kernel does not list.
fn unlisted(errno: Errno) -> Error {
    rejection::list_error("the list of tables, chains and sets", errno)
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
    Some((chain, ListedRule(payload.to_vec())))
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

/// Returns whether the listed rule is the one for this run, with the same comment, expressions and set.
fn is_rule(found: &ListedRule, run: &[rules::Rule], family: Family) -> Result<bool, Errno> {
    let expressions = nft::expressions(run);
    let listed = found.expressions();
    let name = listed.iter().find_map(|expression| message::set_name(expression));
    let name = name.unwrap_or_default();
    let mut encoded = Vec::new();
    for expression in &expressions {
        encoded.extend(message::encode(expression, &SetName::Listed(name)).0);
    }
    let wanted = parse(&encoded);
    let is_same = found.comment() == nft::comment(run)
        && listed.len() == wanted.len()
        && listed.into_iter().zip(wanted).all(|(listed, (_, wanted))| contains(listed, wanted));
    match expressions.iter().find_map(set_of) {
        Some(set) if is_same => set::is_listed(set, family, name),
        _ => Ok(is_same),
    }
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
