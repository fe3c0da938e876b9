//! Reads the rules that nf_tables has in the calling thread's netns: those of the plugin's tables, and
//! those of `iptables-nft` in its tables `nat`.

use std::borrow::Cow;

use nix::errno::Errno;
use nix::libc;

use super::expressions::{SetName, expressions};
use super::message::{self, PLUGIN_TABLE, protocol_family};
use super::{MISSING, nfta, rejection, set};
use crate::firewall::Error;
use crate::netlink::attribute::{Attributes, find, parse};
use crate::netlink::socket;
use crate::redirect::rules::{self, Chain, ListedRules, Rule, nft};
use crate::redirect::{Family, Redirect};

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
            dump(libc::NFT_MSG_GETRULE, protocol_family(family), &mut |rule| {
                if let Some(chain) = chain_in(PLUGIN_TABLE, rule) {
                    plugin[chain as usize].push(rule.to_vec());
                } else if let Some(chain) = chain_in(rules::NAT_TABLE, rule) {
                    iptables[chain as usize].push(comment(rule).into_owned());
                }
            })?;
        }
        let of_plugin = listing.plugin.iter().flatten().flatten().map(|rule| comment(rule));
        let of_iptables = listing.iptables.iter().flatten().flatten().map(Cow::from);
        listing.marker = of_plugin
            .chain(of_iptables)
            .find_map(|comment| rules::split_comment(&comment).1.map(str::to_owned));
        for (&family, rules) in Family::ALL.iter().zip(&mut listing.plugin) {
            if rules.iter().any(|rules| !rules.is_empty()) {
                let active = active_chains(family)?;
                let inactive = rules.iter_mut().zip(active).filter(|(_, is_active)| !is_active);
                inactive.for_each(|(rules, _)| rules.clear());
            }
        }
        Ok(listing)
    }

    /// Returns the rules of `redirect` that are missing or at another position in the plugin's tables,
    /// as lines of `iptables-save`.
    pub fn missing(&self, redirect: &Redirect, families: &[Family]) -> Result<Vec<String>, Error> {
        let mut missing = Vec::new();
        for &family in families {
            let rules = rules::rules(redirect, family);
            let is_same = |run: &[Rule], found: &Vec<u8>| is_rule(found, run, family);
            let listed = &self.plugin[family as usize];
            // In a table of its own, no chain has foreign rules.
            let lacks = rules::missing_in_order(nft::runs(&rules), listed, &Chain::ALL, is_same);
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

/// Whether the listed `rule` is the rule of `run`: compares comment, expressions and set.
fn is_rule(rule: &[u8], run: &[Rule], family: Family) -> Result<bool, Errno> {
    let name = expressions_of(rule).find_map(message::set_name).unwrap_or_default();
    let encoded = expressions(run, &SetName::Listed(name)).0;
    let mut listed = expressions_of(rule);
    let is_same = rules::split_comment(&comment(rule)).0 == nft::comment(run)
        && parse(&encoded)
            .all(|(_, wanted)| listed.next().is_some_and(|found| contains(found, wanted)))
        && listed.next().is_none();
    match nft::set(run) {
        Some(set) if is_same => set::is_listed(&set, family, name),
        _ => Ok(is_same),
    }
}

fn expressions_of(rule: &[u8]) -> impl Iterator<Item = &[u8]> {
    let list = find(rule, nfta::RULE_EXPRESSIONS).unwrap_or_default();
    parse(list).map(|(_, expression)| expression)
}

/// Returns comment and marker. `iptables-nft` 1.8.9 stores them as a match, not as user data.
fn comment(rule: &[u8]) -> Cow<'_, str> {
    let userdata = find(rule, nfta::RULE_USERDATA).unwrap_or_default();
    let matched = || expressions_of(rule).find_map(message::match_comment);
    let comment = message::comment(userdata).or_else(matched);
    let text = comment.unwrap_or_default().split(|&byte| byte == 0).next();
    String::from_utf8_lossy(text.unwrap_or_default())
}

/// Lists objects. A kernel without nf_tables has no objects.
fn dump(kind: i32, family: u8, element: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
    match socket::dump(kind, family, &Attributes::default(), element) {
        Err(errno) if !MISSING.contains(&errno) => Err(rejection::list_error(errno)),
        _ => Ok(()),
    }
}

/// Returns the chain of a rule, `None` if that is in another table.
pub(super) fn chain_in(table: &str, rule: &[u8]) -> Option<Chain> {
    let is = |kind, name: &str| {
        find(rule, kind).and_then(|text| text.strip_suffix(b"\0")) == Some(name.as_bytes())
    };
    let mut chains = Chain::ALL.into_iter().filter(|_| is(nfta::RULE_TABLE, table));
    chains.find(|chain| is(nfta::RULE_CHAIN, chain.name()))
}

/// Returns which chains of the plugin's table are active. Rules have no effect in a dormant table,
/// or in a base chain with another hook, priority or policy.
fn active_chains(family: Family) -> Result<[bool; Chain::ALL.len()], Error> {
    let mut active = [false; Chain::ALL.len()];
    if is_active(PLUGIN_TABLE, family)? {
        dump(libc::NFT_MSG_GETCHAIN, protocol_family(family), &mut |payload| {
            for chain in Chain::ALL {
                active[chain as usize] |= contains(payload, &message::chain(chain).0);
            }
        })?;
    }
    Ok(active)
}

fn is_active(table: &str, family: Family) -> Result<bool, Error> {
    let mut is_active = false;
    dump(libc::NFT_MSG_GETTABLE, protocol_family(family), &mut |payload| {
        // The flags must be zero: a table with "dormant" is inactive, a table with "owner" belongs
        // to another process.
        let flags = find(payload, nfta::TABLE_FLAGS).unwrap_or_default();
        is_active |= message::text(find(payload, nfta::TABLE_NAME).unwrap_or_default()) == table
            && flags.iter().all(|&byte| byte == 0);
    })?;
    Ok(is_active)
}

/// `found` may have more attributes, as the kernel lists defaults too.
fn contains(found: &[u8], wanted: &[u8]) -> bool {
    parse(wanted).all(|(kind, wanted)| {
        find(found, kind).is_some_and(|found| {
            found == wanted || (parse(wanted).next().is_some() && contains(found, wanted))
        })
    })
}
