//! Which rules are one nf_tables rule, with which set. [`crate::firewall`] encodes the conditions, with
//! the same meaning as the text of [`super::iptables`].

use std::borrow::Cow;
use std::mem::discriminant;

use ipnet::IpNet;

use super::{Match, Rule};
use crate::redirect::{address, ports};

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

    /// In network byte order.
    pub fn encode(self, number: u128) -> Vec<u8> {
        number.to_be_bytes()[size_of::<u128>() - self.length..].to_vec()
    }
}

/// Splits rules into runs, each of which one nf_tables rule stands for: rules that differ only in their
/// ports or subnets, such as those of a long list. So the number of nf_tables rules does not grow with
/// the lists.
pub fn runs(rules: &[Rule]) -> impl Iterator<Item = &[Rule]> {
    rules.chunk_by(|one, next| {
        let mut pairs = one.matches.iter().zip(&next.matches);
        let lists = one.matches.iter().filter(|condition| key(condition).is_some()).count();
        (one.chain, one.verdict, one.matches.len())
            == (next.chain, next.verdict, next.matches.len())
            && lists == 1
            && pairs.all(|(one, next)| {
                let is_same_kind = discriminant(one) == discriminant(next);
                one == next || (is_same_kind && key(one).is_some() && key(one) == key(next))
            })
    })
}

/// Returns the comment of the nf_tables rule that stands for consecutive rules: that of the first one,
/// with an ellipsis if others follow.
pub fn comment(run: &[Rule]) -> Cow<'_, str> {
    match run {
        [] => Cow::default(),
        [rule] => Cow::from(&rule.comment),
        [rule, ..] => Cow::from(format!("{},...", rule.comment)),
    }
}

/// Returns the set of the nf_tables rule for a run: its ports, unless they are one range, or the subnets
/// of a longer run.
pub fn set(run: &[Rule]) -> Option<Set> {
    let key = run.first()?.matches.iter().find_map(key)?;
    let ranges = ranges(run);
    let count = if key == Key::PORT { ranges.len() } else { run.len() };
    (count > 1).then_some(Set { key, ranges })
}

fn key(condition: &Match) -> Option<Key> {
    match condition {
        Match::Ports(_) | Match::Port(_) => Some(Key::PORT),
        Match::Source(net) | Match::Destination(net) => Some(match net {
            IpNet::V4(_) => Key::IPV4_ADDRESS,
            IpNet::V6(_) => Key::IPV6_ADDRESS,
        }),
        Match::Tcp | Match::Uid(_) | Match::Gid(_) | Match::Loopback => None,
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
                ranges.push((address(net.network()), address(net.broadcast())));
            }
            Match::Tcp | Match::Uid(_) | Match::Gid(_) | Match::Loopback => {}
        }
    }
    ports::merged(ranges)
}
