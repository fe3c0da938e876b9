//! Reads the rules that nf_tables has in the calling thread's netns: those of the plugin's tables,
//! and those of `iptables-nft` in its tables `nat`.

use std::borrow::Cow;

use nix::errno::Errno;
use nix::libc;

use super::expressions::{SetName, expressions};
use super::message::{self, PLUGIN_TABLE, protocol_family};
use super::{nfta, rejection, set};
use crate::firewall::error::Error;
use crate::netlink::attribute::{Attributes, find, parse};
use crate::netlink::socket;
use crate::redirect::rules::{self, Chain, ListedRules, Rule, nft};
use crate::redirect::{Family, Redirect, RuleSpec};

/// The redirect rules in the netns, by family and chain.
#[derive(Default)]
pub struct Listing {
    /// The marker of the rules in the plugin's tables, or else in those of `iptables-nft`.
    pub marker: Option<String>,
    /// Comments, with markers, of the rules of `iptables-nft`.
    pub iptables: [ListedRules<String>; 2],
    /// The attributes of the rules in the plugin's tables that have an effect.
    plugin: [ListedRules<Vec<u8>>; 2],
}

impl Listing {
    /// Lists the rules. There are none in a missing table or in a kernel without nf_tables.
    pub fn read() -> Result<Self, Error> {
        let mut listing = Listing::default();
        for &family in Family::ALL {
            let plugin = &mut listing.plugin[family as usize];
            let iptables = &mut listing.iptables[family as usize];
            list_objects(libc::NFT_MSG_GETRULE, family, &mut |rule| {
                if let Some(chain) = chain_in(PLUGIN_TABLE, rule) {
                    plugin[chain as usize].push(rule.to_vec());
                } else if let Some(chain) = chain_in(rules::NAT_TABLE, rule) {
                    iptables[chain as usize].push(comment(rule).into_owned());
                }
            })?;
        }
        listing.marker = plugin_marker(&listing.plugin).or_else(|| marker(&listing.iptables));
        for (&family, rules) in Family::ALL.iter().zip(&mut listing.plugin) {
            if rules.iter().all(|rules| rules.is_empty()) {
                continue;
            }
            let active = active_chains(family)?;
            for (rules, is_active) in rules.iter_mut().zip(active) {
                if !is_active {
                    rules.clear();
                }
            }
        }
        Ok(listing)
    }

    /// Returns the listing with these comments of iptables' rules, and with their marker.
    pub fn with_iptables(self, comments: [ListedRules<String>; 2]) -> Listing {
        Listing { marker: marker(&comments), iptables: comments, ..self }
    }

    /// Returns the comments, with markers, of the rules of `iptables-nft`.
    pub fn iptables(&self, family: Family) -> &ListedRules<String> {
        &self.iptables[family as usize]
    }

    /// Returns what the rules were made from, if their marker is readable.
    pub fn marked_spec(&self) -> Option<RuleSpec> {
        rules::parse_marker(self.marker.as_deref()?)
    }

    /// Returns the rules of `redirect` that are missing or at another position in the plugin's
    /// tables, as lines of `iptables-save`.
    pub fn missing(&self, redirect: &Redirect, families: &[Family]) -> Result<Vec<String>, Error> {
        let mut missing = Vec::new();
        for &family in families {
            let rules = rules::rules(redirect, family);
            let listed = &self.plugin[family as usize];
            // In a table of its own, no chain has foreign rules.
            let lacks =
                rules::missing_in_order(nft::runs(&rules), listed, &Chain::ALL, |run, rule| {
                    is_rule(rule, run, family)
                });
            missing.extend(lacks.map_err(rejection::list_error)?);
        }
        Ok(missing)
    }

    /// Returns the comments, with markers, of the rules in the plugin's table.
    pub fn plugin_comments(&self, family: Family) -> ListedRules<String> {
        self.plugin[family as usize]
            .each_ref()
            .map(|rules| rules.iter().map(|rule| comment(rule).into_owned()).collect())
    }
}

fn plugin_marker(rules: &[ListedRules<Vec<u8>>; 2]) -> Option<String> {
    rules.iter().flatten().flatten().find_map(|rule| marker_in(&comment(rule)))
}

fn marker(comments: &[ListedRules<String>; 2]) -> Option<String> {
    comments.iter().flatten().flatten().find_map(|comment| marker_in(comment))
}

fn marker_in(comment: &str) -> Option<String> {
    rules::split_comment(comment).1.map(str::to_owned)
}

/// Returns whether the listed `rule` is the rule of `run`: compares comment, expressions and set.
fn is_rule(rule: &[u8], run: &[Rule], family: Family) -> Result<bool, Errno> {
    if rules::split_comment(&comment(rule)).0 != nft::comment(run) {
        return Ok(false);
    }
    let set_name = expressions_of(rule).find_map(message::set_name).unwrap_or_default();
    if !has_expressions(rule, &expressions(run, &SetName::Listed(set_name))) {
        return Ok(false);
    }
    match nft::set(run) {
        Some(set) => set::is_listed(&set, family, set_name),
        None => Ok(true),
    }
}

/// Returns whether the listed `rule` has the `wanted` expressions, in this order and no others.
fn has_expressions(rule: &[u8], wanted: &Attributes) -> bool {
    let mut listed = expressions_of(rule);
    for (_, wanted) in parse(&wanted.0) {
        match listed.next() {
            Some(expression) if contains(expression, wanted) => {}
            _ => return false,
        }
    }
    listed.next().is_none()
}

fn expressions_of(rule: &[u8]) -> impl Iterator<Item = &[u8]> {
    let list = find(rule, nfta::RULE_EXPRESSIONS).unwrap_or_default();
    parse(list).map(|(_, expression)| expression)
}

/// Returns comment and marker. `iptables-nft` 1.8.9 stores them as a match, not as user data.
fn comment(rule: &[u8]) -> Cow<'_, str> {
    let userdata = find(rule, nfta::RULE_USERDATA).unwrap_or_default();
    let comment = message::comment(userdata)
        .or_else(|| expressions_of(rule).find_map(message::match_comment));
    let text = comment.unwrap_or_default().split(|&byte| byte == 0).next();
    String::from_utf8_lossy(text.unwrap_or_default())
}

/// Passes the attributes of each object of the message type `kind` to `object`. A kernel without
/// nf_tables has no objects.
fn list_objects(kind: i32, family: Family, object: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
    match socket::dump(kind, protocol_family(family), &Attributes::default(), object) {
        Err(errno) if !rejection::means_missing(errno) => Err(rejection::list_error(errno)),
        _ => Ok(()),
    }
}

/// Returns the chain of a rule, `None` if the rule is in another table than `table`.
pub(super) fn chain_in(table: &str, rule: &[u8]) -> Option<Chain> {
    if !has_text(rule, nfta::RULE_TABLE, table) {
        return None;
    }
    Chain::ALL.into_iter().find(|chain| has_text(rule, nfta::RULE_CHAIN, chain.name()))
}

fn has_text(object: &[u8], kind: u16, text: &str) -> bool {
    let value = find(object, kind).unwrap_or_default();
    value.strip_suffix(b"\0") == Some(text.as_bytes())
}

/// Returns which chains of the plugin's table are active. Rules have no effect in a dormant table,
/// or in a base chain with another hook, priority or policy.
fn active_chains(family: Family) -> Result<[bool; Chain::ALL.len()], Error> {
    let mut active = [false; Chain::ALL.len()];
    if !is_plugin_table_active(family)? {
        return Ok(active);
    }
    list_objects(libc::NFT_MSG_GETCHAIN, family, &mut |listed| {
        for chain in Chain::ALL {
            active[chain as usize] |= contains(listed, &message::chain(chain).0);
        }
    })?;
    Ok(active)
}

fn is_plugin_table_active(family: Family) -> Result<bool, Error> {
    let mut is_active = false;
    list_objects(libc::NFT_MSG_GETTABLE, family, &mut |table| {
        // The flags must be zero: a table with "dormant" is inactive, a table with "owner" belongs
        // to another process.
        let flags = find(table, nfta::TABLE_FLAGS).unwrap_or_default();
        let name = message::text(find(table, nfta::TABLE_NAME).unwrap_or_default());
        is_active |= name == PLUGIN_TABLE && flags.iter().all(|&byte| byte == 0);
    })?;
    Ok(is_active)
}

/// Returns whether `listed` has all attributes of `wanted`. It may have more, as the kernel lists
/// defaults too.
fn contains(listed: &[u8], wanted: &[u8]) -> bool {
    parse(wanted).all(|(kind, wanted)| {
        let is_nested = parse(wanted).next().is_some();
        match find(listed, kind) {
            Some(value) => value == wanted || (is_nested && contains(value, wanted)),
            None => false,
        }
    })
}
