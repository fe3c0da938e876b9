//! Lists redirect rules of nf_tables in the calling thread's netns. Reads the plugin's tables, and
//! the tables `nat` of `iptables-nft`.

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
    /// Indexed by the discriminant of [`Family`].
    families: [FamilyListing; 2],
}

/// The redirect rules of one address family, by chain.
#[derive(Default)]
pub struct FamilyListing {
    /// Comments of the iptables rules. They include the markers.
    iptables: ListedRules<String>,
    /// Netlink attributes of the rules in the plugin's table. Omits rules of inactive chains.
    plugin: ListedRules<Vec<u8>>,
    /// Marker in the plugin's table. Also set if the chains are inactive.
    plugin_marker: Option<String>,
    /// Whether a base chain of the plugin's table has the priority that earlier versions used.
    has_earlier_priority: bool,
}

/// Tables that can contain redirect rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// The plugin's own tables.
    Plugin,
    /// The tables `nat` of iptables.
    Iptables,
}

impl Listing {
    /// Lists the rules. The listing is empty if the tables are missing or if the kernel has no
    /// nf_tables.
    pub fn read() -> Result<Self, Error> {
        let mut listing = Listing::default();
        for &family in Family::ALL {
            listing.families[family as usize] = FamilyListing::read(family)?;
        }
        Ok(listing)
    }

    /// Returns the rules of one address family.
    pub fn family(&self, family: Family) -> &FamilyListing {
        &self.families[family as usize]
    }

    /// Sets the comments of the iptables rules. The comments include the markers.
    pub fn set_iptables(&mut self, family: Family, comments: ListedRules<String>) {
        self.families[family as usize].iptables = comments;
    }

    /// Returns the marker of the first family that has a marker.
    pub fn marker(&self) -> Option<&str> {
        self.families.iter().find_map(FamilyListing::marker)
    }

    /// Returns the spec that the rules were made from, if their marker is readable.
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

    /// Returns the tables whose rules run first. The iptables chains run after the plugin's chains,
    /// but before those that an earlier version of the plugin created.
    pub fn effective_tables(&self) -> Tables {
        if !has_linkerd_rules(&self.iptables) {
            return Tables::Plugin;
        }
        if self.has_earlier_priority || !has_linkerd_rules(&self.plugin) {
            return Tables::Iptables;
        }
        Tables::Plugin
    }

    /// Returns whether the plugin's rules run first, but with the priority of an earlier version of
    /// the plugin.
    pub fn has_outdated_priority(&self) -> bool {
        self.effective_tables() == Tables::Plugin && self.has_earlier_priority
    }

    /// Returns whether the plugin's table has redirect rules, or at least a marker.
    pub fn has_traces_of_plugin(&self) -> bool {
        has_linkerd_rules(&self.plugin) || self.plugin_marker.is_some()
    }

    /// Returns whether the table `nat` of iptables has redirect rules, or at least a marker.
    pub fn has_traces_of_iptables(&self) -> bool {
        has_linkerd_rules(&self.iptables) || self.iptables_marker().is_some()
    }

    /// Returns whether the iptables rules were made from a different spec than the plugin's rules.
    pub fn has_conflicting_markers(&self) -> bool {
        match (self.plugin_marker.as_deref(), self.iptables_marker()) {
            (Some(plugin), Some(iptables)) => plugin != iptables,
            _ => false,
        }
    }

    /// Returns the comments of the iptables rules, markers included.
    pub fn iptables(&self) -> &ListedRules<String> {
        &self.iptables
    }

    /// Returns the comments of the rules that run first, markers included.
    pub fn effective_comments(&self) -> ListedRules<String> {
        match self.effective_tables() {
            Tables::Iptables => self.iptables.clone(),
            Tables::Plugin => self
                .plugin
                .each_ref()
                .map(|rules| rules.iter().map(|rule| comment(rule).into_owned()).collect()),
        }
    }

    /// Returns the rules of `redirect` that the plugin's table lacks or has in the wrong order, as
    /// lines of `iptables-save`.
    pub fn missing_from_plugin_table(
        &self,
        redirect: &Redirect,
        family: Family,
    ) -> Result<Vec<String>, Error> {
        let rules = rules::rules(redirect, family);
        // No chain of the plugin's table may contain rules of other programs.
        let missing =
            rules::missing_in_order(nft::runs(&rules), &self.plugin, &Chain::ALL, |run, rule| {
                is_rule(rule, run, family)
            });
        missing.map_err(rejection::list_error)
    }

    /// Returns the marker of the rules that run first. If they have none, returns the marker of the
    /// other rules.
    fn marker(&self) -> Option<&str> {
        let plugin = self.plugin_marker.as_deref();
        match self.effective_tables() {
            Tables::Plugin => plugin.or_else(|| self.iptables_marker()),
            Tables::Iptables => self.iptables_marker().or(plugin),
        }
    }

    fn iptables_marker(&self) -> Option<&str> {
        self.iptables.iter().flatten().find_map(|comment| rules::split_comment(comment).1)
    }
}

/// Returns whether any of the `PROXY_INIT_*` chains has rules.
pub fn has_linkerd_rules<T>(rules: &ListedRules<T>) -> bool {
    Chain::LINKERD.iter().any(|&chain| !rules[chain as usize].is_empty())
}

fn marker_in(comment: &str) -> Option<String> {
    rules::split_comment(comment).1.map(str::to_owned)
}

/// Returns whether the listed `rule` is the one that [`message::rule`] encodes for `run`. Compares
/// the comment, the expressions and the elements of the set.
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

/// Returns whether the listed `rule` has exactly the `wanted` expressions, in this order.
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

/// Returns the comment of a rule, marker included. `iptables-nft` 1.8.9 stores the comment as a
/// match, not as user data.
fn comment(rule: &[u8]) -> Cow<'_, str> {
    let userdata = find(rule, nfta::RULE_USERDATA).unwrap_or_default();
    let comment = message::comment(userdata)
        .or_else(|| expressions_of(rule).find_map(message::match_comment));
    let text = comment.unwrap_or_default().split(|&byte| byte == 0).next();
    String::from_utf8_lossy(text.unwrap_or_default())
}

/// Lists objects, and passes the attributes of each to `object`. `kind` is the message type of the
/// request. Lists nothing if the kernel has no nf_tables.
fn list_objects(kind: i32, family: Family, object: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
    match socket::dump(kind, protocol_family(family), &Attributes::default(), object) {
        Err(errno) if !rejection::means_missing(errno) => Err(rejection::list_error(errno)),
        _ => Ok(()),
    }
}

/// Returns the chain of `rule`. Returns `None` if the rule is in a different table, or in a chain
/// that is not in [`Chain::ALL`].
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

/// Whether the rules of a chain in the plugin's table take effect.
#[derive(Clone, Copy)]
enum ChainState {
    /// The table has flags such as `dormant`, or the base chain has an unexpected hook, priority or
    /// policy.
    Inactive,
    Active,
    /// The base chain was created by an earlier version of the plugin.
    AtEarlierPriority,
}

/// Returns the state of each chain in the plugin's table, indexed by the discriminant of [`Chain`].
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

/// Returns whether the plugin's table exists and its rules take effect.
fn is_plugin_table_active(family: Family) -> Result<bool, Error> {
    let mut is_active = false;
    list_objects(libc::NFT_MSG_GETTABLE, family, &mut |table| {
        // All flags must be unset. The kernel ignores the rules of a table with the flag "dormant".
        // A table with the flag "owner" belongs to another process.
        let flags = find(table, nfta::TABLE_FLAGS).unwrap_or_default();
        let name = message::text(find(table, nfta::TABLE_NAME).unwrap_or_default());
        is_active |= name == PLUGIN_TABLE && flags.iter().all(|&byte| byte == 0);
    })?;
    Ok(is_active)
}

/// Returns whether `listed` has all attributes of `wanted`. Other attributes are ignored, because
/// the kernel also lists defaults.
fn contains(listed: &[u8], wanted: &[u8]) -> bool {
    parse(wanted).all(|(kind, wanted)| {
        let is_nested = parse(wanted).next().is_some();
        match find(listed, kind) {
            Some(value) => value == wanted || (is_nested && contains(value, wanted)),
            None => false,
        }
    })
}
