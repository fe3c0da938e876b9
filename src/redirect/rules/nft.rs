//! Combines rules into nf_tables rules, and builds the sets of ports and addresses that these rules
//! use. [`crate::firewall`] encodes the conditions. They mean the same as the text that
//! [`super::iptables`] renders.

use std::borrow::Cow;
use std::mem::discriminant;

use ipnet::IpNet;

use super::{Match, Rule};
use crate::redirect::{address_number, ports};

/// A set of ports or addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub key: Key,
    /// First and last number of each range, in ascending order. Ranges do not overlap or adjoin.
    pub ranges: Vec<(u128, u128)>,
}

/// Type of the numbers in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Length of a number in bytes.
    pub length: usize,
    /// Tells `nft` how to display the elements (`enum datatypes` in its `datatype.h`).
    pub datatype: u32,
}

impl Key {
    pub const PORT: Key = Key { length: 2, datatype: 13 };
    pub const IPV4_ADDRESS: Key = Key { length: 4, datatype: 7 };
    pub const IPV6_ADDRESS: Key = Key { length: 16, datatype: 8 };

    /// Encodes a number in network byte order.
    pub fn encode(self, number: u128) -> Vec<u8> {
        number.to_be_bytes()[size_of::<u128>() - self.length..].to_vec()
    }
}

/// Splits rules into runs that each become one nf_tables rule. The rules of a run differ only in
/// their ports or subnets, so the number of nf_tables rules does not grow with the length of lists.
pub fn runs(rules: &[Rule]) -> impl Iterator<Item = &[Rule]> {
    rules.chunk_by(are_in_one_run)
}

fn are_in_one_run(rule: &Rule, next: &Rule) -> bool {
    let set_conditions = rule.matches.iter().filter(|condition| key(condition).is_some()).count();
    rule.chain == next.chain
        && rule.verdict == next.verdict
        && rule.matches.len() == next.matches.len()
        && set_conditions == 1
        && rule.matches.iter().zip(&next.matches).all(|(one, other)| can_share_set(one, other))
}

/// Returns true if the conditions are equal, or if one set can contain the numbers of both.
fn can_share_set(one: &Match, other: &Match) -> bool {
    let is_same_kind = discriminant(one) == discriminant(other);
    one == other || (is_same_kind && key(one).is_some() && key(one) == key(other))
}

/// Returns the comment of the nf_tables rule for a run: the comment of the first rule, with an
/// ellipsis if more rules follow.
pub fn comment(run: &[Rule]) -> Cow<'_, str> {
    match run {
        [] => Cow::default(),
        [rule] => Cow::from(&rule.comment),
        [rule, ..] => Cow::from(format!("{},...", rule.comment)),
    }
}

/// Returns the set that the nf_tables rule for a run needs. `None`: the run has no list of ports or
/// subnets, or only a single range of ports or a single subnet.
pub fn set(run: &[Rule]) -> Option<Set> {
    let key = run.first()?.matches.iter().find_map(key)?;
    let ranges = ranges(run);
    let count = if key == Key::PORT { ranges.len() } else { run.len() };
    if count > 1 { Some(Set { key, ranges }) } else { None }
}

/// Returns the key of the set that the condition can use. `None`: the condition uses no set.
fn key(condition: &Match) -> Option<Key> {
    match condition {
        Match::Ports(_) | Match::Port(_) => Some(Key::PORT),
        Match::Source(net) | Match::Destination(net) => Some(match net {
            IpNet::V4(_) => Key::IPV4_ADDRESS,
            IpNet::V6(_) => Key::IPV6_ADDRESS,
        }),
        Match::Tcp | Match::Uid(_) | Match::Gid(_) | Match::Loopback | Match::Arrival(_) => None,
    }
}

/// Returns the ports or addresses that a run matches, in the form of [`Set::ranges`].
pub fn ranges(run: &[Rule]) -> Vec<(u128, u128)> {
    let mut ranges: Vec<(u128, u128)> = Vec::new();
    for condition in run.iter().flat_map(|rule| &rule.matches) {
        match condition {
            Match::Ports(ports) => {
                ranges.extend(ports.iter().map(|range| (range.first.into(), range.last.into())));
            }
            Match::Port(port) => ranges.push(((*port).into(), (*port).into())),
            Match::Source(net) | Match::Destination(net) => {
                ranges.push((address_number(net.network()), address_number(net.broadcast())));
            }
            Match::Tcp | Match::Uid(_) | Match::Gid(_) | Match::Loopback | Match::Arrival(_) => {}
        }
    }
    ports::merged(ranges)
}
