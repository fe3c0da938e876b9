//! Reads the rules that nf_tables has in the calling thread's netns: those of the plugin's tables, and
//! those of `iptables-nft` in its tables `nat`.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;

use nix::errno::Errno;
use nix::libc;

use super::expressions::{SetName, expressions};
use super::message::{self, kind, protocol_family};
use super::{CHAINS, MISSING, nfta, rejection, set};
use crate::firewall::Error;
use crate::netlink::attribute::{Attributes, find, parse};
use crate::netlink::socket::{self, DUMP_LIMIT};
use crate::redirect::rules::{self, Chain, ListedRules, Rule, nft};
use crate::redirect::{Family, Redirect};

/// The rules of both tables, for each family. A table is listed when its rules are first asked for, and
/// only once.
#[derive(Default)]
pub struct Listing {
    plugin: [OnceCell<ListedRules<ListedRule>>; 2],
    nat: [OnceCell<ListedRules<ListedRule>>; 2],
    /// Bytes of all rules listed so far. A process of the pod with CAP_NET_ADMIN can add rules without
    /// limit, so [`DUMP_LIMIT`] is that of all tables together.
    length: Cell<usize>,
}

impl Listing {
    /// The marker of the rules in the plugin's tables, or else in those of `iptables-nft`.
    pub fn marker(&self) -> Result<Option<String>, Error> {
        for table in [message::PLUGIN_TABLE, rules::NAT_TABLE] {
            for &family in Family::ALL {
                let found = self.table(table, family)?;
                if let Some(marker) = found.iter().flatten().find_map(ListedRule::marker) {
                    return Ok(Some(marker));
                }
            }
        }
        Ok(None)
    }

    /// Returns the rules of `redirect` that are missing or at another position in the plugin's tables,
    /// as lines of `iptables-save`.
    pub fn missing(&self, redirect: &Redirect, families: &[Family]) -> Result<Vec<String>, Error> {
        let mut missing = Vec::new();
        for &family in families {
            let found = self.active(family)?;
            let rules = rules::rules(redirect, family);
            let is_same = |run: &[Rule], found: &ListedRule| found.is_rule(run, family);
            // In a table of its own, no chain has foreign rules.
            let lacks =
                rules::missing_in_order(&mut nft::runs(&rules), found, &Chain::ALL, &is_same);
            missing.extend(lacks.map_err(unlisted)?);
        }
        Ok(missing)
    }

    /// Whether the plugin's table has the rules of `redirect` and no other.
    pub fn is_of(&self, redirect: &Redirect, family: Family) -> Result<bool, Error> {
        let count: usize = self.active(family)?.iter().map(|rules| rules.len()).sum();
        let wanted = nft::runs(&rules::rules(redirect, family)).count();
        Ok(count == wanted && self.missing(redirect, &[family])?.is_empty())
    }

    /// Comments, with markers, of the rules of `iptables-nft`.
    pub fn nat_comments(&self, family: Family) -> Result<ListedRules<String>, Error> {
        let found = self.table(rules::NAT_TABLE, family)?.each_ref().map(Vec::as_slice);
        Ok(found.map(|rules| rules.iter().map(|rule| rule.comment().into_owned()).collect()))
    }

    /// Returns the comments, with markers, of the rules that decide: those of `iptables-nft`, which come
    /// first, or else those of the plugin's table.
    pub fn comments(&self, family: Family) -> Result<ListedRules<String>, Error> {
        let nat = self.nat_comments(family)?;
        if Chain::LINKERD.iter().any(|&chain| !nat[chain as usize].is_empty()) {
            return Ok(nat);
        }
        let found = self.active(family)?;
        Ok(found.map(|rules| rules.iter().map(|rule| rule.comment().into_owned()).collect()))
    }

    /// The rules of the plugin's table that have an effect.
    fn active(&self, family: Family) -> Result<[&[ListedRule]; CHAINS.len()], Error> {
        let found = self.table(message::PLUGIN_TABLE, family)?;
        if found.iter().all(Vec::is_empty) {
            return Ok([&[]; CHAINS.len()]);
        }
        let active = active_chains(family).map_err(unlisted)?;
        let chains = Chain::ALL.map(|chain| chain as usize);
        Ok(chains.map(|chain| if active[chain] { &found[chain][..] } else { &[] }))
    }

    fn table(&self, name: &str, family: Family) -> Result<&ListedRules<ListedRule>, Error> {
        let tables = if name == rules::NAT_TABLE { &self.nat } else { &self.plugin };
        let table = &tables[family as usize];
        if let Some(rules) = table.get() {
            return Ok(rules);
        }
        let rules = list(name, family)?;
        let length: usize = rules.iter().flatten().map(|rule| rule.0.len()).sum();
        self.length.set(self.length.get() + length);
        if self.length.get() > DUMP_LIMIT {
            return Err(Error::TooLong { subject: "the list of nf_tables rules".into() });
        }
        Ok(table.get_or_init(|| rules))
    }
}

pub(super) struct ListedRule(Vec<u8>);

impl ListedRule {
    fn expressions(&self) -> impl Iterator<Item = &[u8]> {
        let list = find(&self.0, nfta::RULE_EXPRESSIONS).unwrap_or_default();
        parse(list).map(|(_, expression)| expression)
    }

    /// With the marker. `iptables-nft` stores a comment as user data, or as a match of its own (1.8.9).
    fn comment(&self) -> Cow<'_, str> {
        let userdata = find(&self.0, nfta::RULE_USERDATA).unwrap_or_default();
        let matched = || self.expressions().find_map(message::match_comment);
        let comment = message::comment(userdata).or_else(matched);
        let text = comment.unwrap_or_default().split(|&byte| byte == 0).next();
        String::from_utf8_lossy(text.unwrap_or_default())
    }

    fn marker(&self) -> Option<String> {
        rules::split_comment(&self.comment()).1.map(str::to_owned)
    }

    /// Compares comment, expressions and set.
    fn is_rule(&self, run: &[Rule], family: Family) -> Result<bool, Errno> {
        let name = self.expressions().find_map(message::set_name).unwrap_or_default();
        let encoded = expressions(run, &SetName::Listed(name)).0;
        let mut listed = self.expressions();
        let is_same = rules::split_comment(&self.comment()).0 == nft::comment(run)
            && parse(&encoded)
                .all(|(_, wanted)| listed.next().is_some_and(|found| contains(found, wanted)))
            && listed.next().is_none();
        match nft::set(run) {
            Some(set) if is_same => set::is_listed(&set, family, name),
            _ => Ok(is_same),
        }
    }
}

fn unlisted(errno: Errno) -> Error {
    rejection::list_error("the list of tables, chains and sets", errno)
}

/// Lists the rules of `table`, by chain. A missing table has no rules, nor has a kernel without nf_tables.
fn list(table: &str, family: Family) -> Result<ListedRules<ListedRule>, Error> {
    let mut found = ListedRules::default();
    let request = Attributes::default().text(nfta::RULE_TABLE, table);
    let result = socket::dump(kind::GET_RULE, protocol_family(family), &request, &mut |payload| {
        if let Some((chain, rule)) = listed_rule(table, payload) {
            found[chain as usize].push(rule);
        }
    });
    match result {
        Err(errno) if !MISSING.contains(&errno) => {
            Err(rejection::list_error(&format!("the list of rules in table {table}"), errno))
        }
        _ => Ok(found),
    }
}

/// `None` for a rule of another table or chain: old kernels ignore the filter and list all tables.
pub(super) fn listed_rule(table: &str, payload: &[u8]) -> Option<(Chain, ListedRule)> {
    let is = |kind, name: &str| {
        find(payload, kind).and_then(|text| text.strip_suffix(b"\0")) == Some(name.as_bytes())
    };
    if !is(nfta::RULE_TABLE, table) {
        return None;
    }
    let chain = CHAINS.into_iter().find(|chain| is(nfta::RULE_CHAIN, chain.name()))?;
    Some((chain, ListedRule(payload.to_vec())))
}

/// Returns which chains of the plugin's table are active. Rules have no effect in a dormant table,
/// or in a base chain with another hook, priority or policy.
fn active_chains(family: Family) -> Result<[bool; CHAINS.len()], Errno> {
    let is_table_active = is_active(message::PLUGIN_TABLE, family)?;
    let family = protocol_family(family);
    let all = Attributes::default();
    let mut active = [false; CHAINS.len()];
    socket::dump(kind::GET_CHAIN, family, &all, &mut |payload| {
        for chain in CHAINS {
            active[chain as usize] |=
                is_table_active && contains(payload, &message::chain(chain).0);
        }
    })?;
    Ok(active)
}

fn is_active(table: &str, family: Family) -> Result<bool, Errno> {
    let (mut is_active, all) = (false, Attributes::default());
    socket::dump(kind::GET_TABLE, protocol_family(family), &all, &mut |payload| {
        is_active |= message::is_active_table(payload, table);
    })?;
    Ok(is_active)
}

/// Returns the names of the tables with chains of type `nat`. Those of the family `inet` begin with
/// `inet `.
/// Fails if the kernel cannot list chains, or if a table of iptables is not active.
pub fn nat_tables(family: Family) -> Result<BTreeSet<String>, Error> {
    let (mut tables, all) = (BTreeSet::new(), Attributes::default());
    for (number, prefix) in [(protocol_family(family), ""), (libc::NFPROTO_INET as u8, "inet ")] {
        let listed = socket::dump(kind::GET_CHAIN, number, &all, &mut |chain| {
            if find(chain, nfta::CHAIN_TYPE) == Some(b"nat\0") {
                let table = find(chain, nfta::CHAIN_TABLE).unwrap_or_default();
                let name = String::from_utf8_lossy(table.strip_suffix(b"\0").unwrap_or(table));
                tables.insert(format!("{prefix}{name}"));
            }
        });
        if let Err(errno) = listed
            && !MISSING.contains(&errno)
        {
            return Err(unlisted(errno));
        }
    }
    let table = rules::NAT_TABLE;
    if tables.contains(table) && !is_active(table, family).map_err(unlisted)? {
        let why = format!("the nf_tables table {table} is not active");
        return Err(Error::Incomparable { why });
    }
    Ok(tables)
}

/// `found` may have more attributes, as the kernel lists defaults too.
fn contains(found: &[u8], wanted: &[u8]) -> bool {
    parse(wanted).all(|(kind, wanted)| {
        find(found, kind).is_some_and(|found| {
            found == wanted || (parse(wanted).next().is_some() && contains(found, wanted))
        })
    })
}
