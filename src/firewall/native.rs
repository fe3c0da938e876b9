//! The backend without any program of the host: nf_tables over netlink.
//!
//! One transaction for all families, in a table of our own.

mod message;

use crate::netlink::attribute;
use crate::netlink::socket;
use nix::errno::Errno;

use crate::netlink::attribute::{find, parse};
use crate::netlink::socket::{APPEND, CREATE, EXCLUSIVE, Message};
use message::{kind, protocol_family};

use super::{Error, order};
use crate::rules::{self, Chain, Family, Redirect, nft};

const CHAINS: [Chain; 4] = [
    Chain::ProxyInitRedirect,
    Chain::ProxyInitOutput,
    Chain::Prerouting,
    Chain::Output,
];

/// Makes our table of each family hold exactly the rules of `redirect`.
///
/// A new namespace takes one transaction. One that has the table already takes
/// another that replaces it; the old rules work until the new ones do.
pub fn apply(redirect: &Redirect, families: &[Family]) -> Result<(), Error> {
    let fail = |source| Error::Native { source };
    match socket::transact(&transaction(redirect, families, true)) {
        Err(Errno::EEXIST) => {
            socket::transact(&transaction(redirect, families, false)).map_err(fail)
        }
        done => done.map_err(fail),
    }
}

fn transaction(redirect: &Redirect, families: &[Family], fresh: bool) -> Vec<Message> {
    let mut messages = Vec::new();
    for &family in families {
        let mut push = |kind, flags, attributes| {
            messages.push(Message {
                kind,
                family: protocol_family(family),
                flags,
                attributes,
            });
        };
        if !fresh {
            // Made first, so that there is one to delete.
            push(kind::NEW_TABLE, CREATE, message::table());
            push(kind::DELETE_TABLE, 0, message::table());
        }
        let exclusive = if fresh { EXCLUSIVE } else { 0 };
        push(kind::NEW_TABLE, CREATE | exclusive, message::table());
        for chain in CHAINS {
            push(kind::NEW_CHAIN, CREATE, message::chain(chain));
        }
        for rule in rules::rules(redirect, family) {
            for expressions in nft::expressions(&rule) {
                let attributes = message::rule(rule.chain, &expressions, &rule.comment);
                push(kind::NEW_RULE, CREATE | APPEND, attributes);
            }
        }
    }
    messages
}

/// A rule as the kernel has it: its comment, and name and data of each expression.
struct Found {
    comment: Vec<u8>,
    expressions: Vec<Vec<u8>>,
}

impl Found {
    /// Whether iptables gave the rule this comment: as user data, with more behind it in
    /// later versions, or as a match of its own (1.8.9).
    fn has_iptables_comment(&self, comment: &str) -> bool {
        self.comment.starts_with(&message::userdata(comment))
            || self.expressions.iter().any(|expression| {
                let text = message::match_comment(expression).unwrap_or_default();
                text.strip_prefix(comment.as_bytes())
                    .is_some_and(|rest| rest.first() == Some(&0))
            })
    }
}

/// The rules of `redirect` that our tables do not have, each at its place, as lines of
/// `iptables-save`.
pub fn missing(redirect: &Redirect, families: &[Family]) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    for &family in families {
        let mut found = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        list(family, message::TABLE, &mut found).map_err(|source| Error::Native { source })?;
        let works = at_work(family).map_err(|source| Error::Native { source })?;
        for chain in CHAINS.into_iter().filter(|&chain| !works[chain as usize]) {
            found[chain as usize].clear();
        }
        let mut next = [0; CHAINS.len()];
        for rule in rules::rules(redirect, family) {
            let place = &mut next[rule.chain as usize];
            let there = nft::expressions(&rule).iter().all(|expressions| {
                let there = found[rule.chain as usize]
                    .get(*place)
                    .is_some_and(|found| is(found, &rule.comment, expressions));
                *place += usize::from(there);
                there
            });
            if !there {
                missing.push(rules::rule_line(&rule));
            }
        }
    }
    Ok(missing)
}

/// The same for rules that `iptables-nft` has put into its table `nat`, told by their
/// comments, which name the ports; `None` if our chains are empty there.
pub fn missing_from_iptables(
    redirect: &Redirect,
    families: &[Family],
) -> Result<Option<Vec<String>>, Error> {
    let mut missing = Vec::new();
    let mut theirs = false;
    for &family in families {
        let mut found = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        list(family, rules::TABLE, &mut found).map_err(|source| Error::Native { source })?;
        theirs |= Chain::OURS
            .iter()
            .any(|&chain| !found[chain as usize].is_empty());
        let mut from = [0; CHAINS.len()];
        for rule in rules::rules(redirect, family) {
            let from = &mut from[rule.chain as usize];
            let left = found[rule.chain as usize][*from..].iter();
            let wanted = |found: &&Found| found.has_iptables_comment(&rule.comment);
            match order::next(rule.chain, left, wanted) {
                Some(place) => *from += place + 1,
                None => missing.push(rules::rule_line(&rule)),
            }
        }
    }
    Ok(theirs.then_some(missing))
}

/// Takes the rules out of our chains in the table of `iptables-nft`. The chains stay,
/// as do the jumps into them, and do nothing.
pub fn empty_iptables(families: &[Family]) -> Result<(), Error> {
    for &family in families {
        for chain in Chain::OURS {
            let attributes = attribute::Attributes::default()
                .text(message::rule::TABLE, rules::TABLE)
                .text(message::rule::CHAIN, chain.name());
            let message = Message {
                kind: kind::DELETE_RULE,
                family: protocol_family(family),
                flags: 0,
                attributes,
            };
            match socket::transact(&[message]) {
                // One family may have none.
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(source) => return Err(Error::Native { source }),
            }
        }
    }
    Ok(())
}

fn list(family: Family, table: &str, found: &mut [Vec<Found>; CHAINS.len()]) -> Result<(), Errno> {
    let request = attribute::Attributes::default().text(message::rule::TABLE, table);
    let family = protocol_family(family);
    let result = socket::dump(kind::GET_RULE, family, &request, &mut |payload| {
        let attributes = parse(payload);
        let text = |kind| find(&attributes, kind).unwrap_or_default();
        // Old kernels give the rules of all tables.
        if text(message::rule::TABLE) != format!("{table}\0").as_bytes() {
            return;
        }
        for chain in CHAINS {
            if text(message::rule::CHAIN) == format!("{}\0", chain.name()).as_bytes() {
                found[chain as usize].push(Found {
                    comment: text(message::rule::USERDATA).to_vec(),
                    expressions: parse(text(message::rule::EXPRESSIONS))
                        .into_iter()
                        .map(|(_, element)| element.to_vec())
                        .collect(),
                });
            }
        }
    });
    match result {
        Err(Errno::ENOENT) => Ok(()),
        result => result,
    }
}

/// Which of our chains do something: rules in a table that sleeps, or in a chain that is
/// not hooked in as ours, are as good as none.
fn at_work(family: Family) -> Result<[bool; CHAINS.len()], Errno> {
    let family = protocol_family(family);
    let all = attribute::Attributes::default();
    let mut awake = false;
    socket::dump(kind::GET_TABLE, family, &all, &mut |payload| {
        awake |= message::is_table_at_work(payload);
    })?;
    let mut works = [false; CHAINS.len()];
    socket::dump(kind::GET_CHAIN, family, &all, &mut |payload| {
        for chain in CHAINS {
            works[chain as usize] |= awake && contains(payload, &message::chain_at_work(chain).0);
        }
    })?;
    Ok(works)
}

fn is(found: &Found, comment: &str, expressions: &[nft::Expression]) -> bool {
    let mut run = Vec::new();
    for expression in expressions {
        run.extend(message::encode(expression).0);
    }
    let wanted = parse(&run);
    found.comment == message::userdata(comment)
        && found.expressions.len() == wanted.len()
        && found
            .expressions
            .iter()
            .zip(wanted)
            .all(|(found, (_, wanted))| contains(found, wanted))
}

/// Whether all attributes of `wanted` are in `found`, which may have more: kernels add
/// defaults when they list.
fn contains(found: &[u8], wanted: &[u8]) -> bool {
    let found = parse(found);
    parse(wanted).iter().all(|(kind, wanted)| {
        find(&found, *kind).is_some_and(|found| {
            found == *wanted || (!parse(wanted).is_empty() && contains(found, wanted))
        })
    })
}
