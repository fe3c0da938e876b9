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

/// The redirect rules in the netns.
#[derive(Default)]
pub struct Listing {
    /// Each family at the index of its discriminant.
    families: [FamilyListing; 2],
}

/// The redirect rules of one address family, by chain.
#[derive(Default)]
pub struct FamilyListing {
    /// Comments, with markers, of the rules of iptables.
    iptables: ListedRules<String>,
    /// The attributes of the rules in the plugin's table that have an effect.
    plugin: ListedRules<Vec<u8>>,
    /// The marker in the plugin's table, also if the rules have no effect.
    plugin_marker: Option<String>,
    /// Whether a base chain of the plugin's table has the priority that earlier versions used.
    has_earlier_priority: bool,
}

/// Tables with redirect rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// The plugin's own.
    Plugin,
    /// Table `nat` of iptables.
    Iptables,
}

impl Listing {
    /// Lists the rules. There are none in a missing table or in a kernel without nf_tables.
    pub fn read() -> Result<Self, Error> {
        let mut listing = Listing::default();
        for &family in Family::ALL {
            listing.families[family as usize] = FamilyListing::read(family)?;
        }
        Ok(listing)
    }

    pub fn of(&self, family: Family) -> &FamilyListing {
        &self.families[family as usize]
    }

    /// Sets the comments, with markers, of the rules of iptables.
    pub fn set_iptables(&mut self, family: Family, comments: ListedRules<String>) {
        self.families[family as usize].iptables = comments;
    }

    /// Returns the marker of the first family that has one.
    pub fn marker(&self) -> Option<&str> {
        self.families.iter().find_map(FamilyListing::marker)
    }

    /// Returns what the rules were made from, if their marker is readable.
    pub fn marked_spec(&self) -> Option<RuleSpec> {
        rules::parse_marker(self.marker()?)
    }
}

impl FamilyListing {
    fn read(family: Family) -> Result<Self, Error> {
        let mut listing = FamilyListing::default();
        let FamilyListing { iptables, plugin, .. } = &mut listing;
        list_objects(libc::NFT_MSG_GETRULE, family, &mut |rule| {
            if let Some(chain) = chain_in(PLUGIN_TABLE, rule) {
                plugin[chain as usize].push(rule.to_vec());
            } else if let Some(chain) = chain_in(rules::NAT_TABLE, rule) {
                iptables[chain as usize].push(comment(rule).into_owned());
            }
        })?;
        if listing.plugin.iter().all(Vec::is_empty) {
            return Ok(listing);
        }
        let comments = listing.plugin.iter().flatten().map(|rule| comment(rule));
        listing.plugin_marker = comments.into_iter().find_map(|comment| marker_in(&comment));
        let states = chain_states(family)?;
        for (rules, state) in listing.plugin.iter_mut().zip(states) {
            match state {
                ChainState::Inactive => rules.clear(),
                ChainState::Active => {}
                ChainState::AtEarlierPriority => listing.has_earlier_priority = true,
            }
        }
        Ok(listing)
    }

    /// Returns which tables decide first on a connection. The chains of iptables run after the
    /// plugin's, but before those of an earlier version of the plugin.
    pub fn deciding(&self) -> Tables {
        if !has_linkerds(&self.iptables) {
            return Tables::Plugin;
        }
        if self.has_earlier_priority || !has_linkerds(&self.plugin) {
            return Tables::Iptables;
        }
        Tables::Plugin
    }

    /// Returns whether the rules that decide are the plugin's, in the order of an earlier version.
    pub fn is_outdated(&self) -> bool {
        self.deciding() == Tables::Plugin && self.has_earlier_priority
    }

    /// Returns whether the plugin's table has rules of Linkerd, or only a marker.
    pub fn has_traces_of_plugin(&self) -> bool {
        has_linkerds(&self.plugin) || self.plugin_marker.is_some()
    }

    /// Returns whether the tables of iptables have rules of Linkerd, or only a marker.
    pub fn has_traces_of_iptables(&self) -> bool {
        has_linkerds(&self.iptables) || self.iptables_marker().is_some()
    }

    /// Returns whether the rules of iptables were made from other values than the plugin's.
    pub fn has_two_markers(&self) -> bool {
        match (self.plugin_marker.as_deref(), self.iptables_marker()) {
            (Some(plugin), Some(iptables)) => plugin != iptables,
            _ => false,
        }
    }

    /// Returns the comments, with markers, of the rules of iptables.
    pub fn iptables(&self) -> &ListedRules<String> {
        &self.iptables
    }

    /// Returns the comments, with markers, of the rules that decide first.
    pub fn deciding_comments(&self) -> ListedRules<String> {
        match self.deciding() {
            Tables::Iptables => self.iptables.clone(),
            Tables::Plugin => self
                .plugin
                .each_ref()
                .map(|rules| rules.iter().map(|rule| comment(rule).into_owned()).collect()),
        }
    }

    /// Returns the rules of `redirect` that are missing or at another position in the plugin's
    /// table, as lines of `iptables-save`.
    pub fn missing(&self, redirect: &Redirect, family: Family) -> Result<Vec<String>, Error> {
        let rules = rules::rules(redirect, family);
        // The plugin's table has no foreign rules, so all its chains are the plugin's own.
        let missing =
            rules::missing_in_order(nft::runs(&rules), &self.plugin, &Chain::ALL, |run, rule| {
                is_rule(rule, run, family)
            });
        missing.map_err(rejection::list_error)
    }

    /// Returns the marker of the rules that decide first, or else that of the others.
    fn marker(&self) -> Option<&str> {
        let plugin = self.plugin_marker.as_deref();
        match self.deciding() {
            Tables::Plugin => plugin.or_else(|| self.iptables_marker()),
            Tables::Iptables => self.iptables_marker().or(plugin),
        }
    }

    fn iptables_marker(&self) -> Option<&str> {
        self.iptables.iter().flatten().find_map(|comment| rules::split_comment(comment).1)
    }
}

/// Returns whether a chain of Linkerd has rules.
pub fn has_linkerds<T>(rules: &ListedRules<T>) -> bool {
    Chain::LINKERD.iter().any(|&chain| !rules[chain as usize].is_empty())
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

/// Whether the rules of a chain in the plugin's table have an effect.
#[derive(Clone, Copy)]
enum ChainState {
    /// The table is dormant, or the base chain has another hook, priority or policy.
    Inactive,
    Active,
    /// A base chain that an earlier version of the plugin wrote.
    AtEarlierPriority,
}

/// Returns the state of each chain in the plugin's table, at the index of its discriminant.
fn chain_states(family: Family) -> Result<[ChainState; Chain::ALL.len()], Error> {
    let mut states = [ChainState::Inactive; Chain::ALL.len()];
    if !is_plugin_table_active(family)? {
        return Ok(states);
    }
    list_objects(libc::NFT_MSG_GETCHAIN, family, &mut |listed| {
        for chain in Chain::ALL {
            if contains(listed, &message::chain(chain).0) {
                states[chain as usize] = ChainState::Active;
            } else if contains(listed, &message::earlier_chain(chain).0) {
                states[chain as usize] = ChainState::AtEarlierPriority;
            }
        }
    })?;
    Ok(states)
}

/// Returns whether the plugin's table exists and its rules have an effect.
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
