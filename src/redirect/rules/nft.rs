//! Decides which rules become one nf_tables rule, and which set that rule has. [`crate::firewall`]
//! encodes the conditions, with the same meaning as the text of [`super::iptables`].

use std::borrow::Cow;
use std::mem::discriminant;

use ipnet::IpNet;

use super::{Match, Rule};
use crate::redirect::{address_number, ports};

/// The ports or addresses of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub key: Key,
    /// First and last number of each range, ascending. Ranges do not overlap or adjoin.
    pub ranges: Vec<(u128, u128)>,
}

/// Type of the numbers in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Length of a number, in bytes.
    pub length: usize,
    /// Tells `nft` how to show the elements (`enum datatypes` of its `datatype.h`).
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

/// Splits rules into runs, each of which one nf_tables rule stands for. The rules of a run differ
/// only in their ports or subnets, such as those of a long list. So the number of nf_tables rules
/// does not grow with the lists.
pub fn runs(rules: &[Rule]) -> impl Iterator<Item = &[Rule]> {
    rules.chunk_by(are_one_run)
}

fn are_one_run(one: &Rule, next: &Rule) -> bool {
    let lists = one.matches.iter().filter(|condition| key(condition).is_some()).count();
    one.chain == next.chain
        && one.verdict == next.verdict
        && one.matches.len() == next.matches.len()
        && lists == 1
        && one.matches.iter().zip(&next.matches).all(|(one, next)| may_share_set(one, next))
}

/// Returns whether the conditions are equal, or of one kind with numbers for one set.
fn may_share_set(one: &Match, next: &Match) -> bool {
    let is_same_kind = discriminant(one) == discriminant(next);
    one == next || (is_same_kind && key(one).is_some() && key(one) == key(next))
}

/// Returns the comment of the nf_tables rule that stands for consecutive rules: that of the first
/// one, with an ellipsis if others follow.
pub fn comment(run: &[Rule]) -> Cow<'_, str> {
    match run {
        [] => Cow::default(),
        [rule] => Cow::from(&rule.comment),
        [rule, ..] => Cow::from(format!("{},...", rule.comment)),
    }
}

/// Returns the set of the nf_tables rule for a run: its ports, unless they are one range, or the
/// subnets of a longer run.
pub fn set(run: &[Rule]) -> Option<Set> {
    let key = run.first()?.matches.iter().find_map(key)?;
    let ranges = ranges(run);
    let count = if key == Key::PORT { ranges.len() } else { run.len() };
    if count > 1 { Some(Set { key, ranges }) } else { None }
}

/// Returns the key of a condition that may look a number up in a set.
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

/// Returns the numbers of a run's conditions on ports or subnets, as [`Set::ranges`].
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
