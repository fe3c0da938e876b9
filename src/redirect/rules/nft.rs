//! Which rules are one nf_tables rule, with which set. [`crate::firewall`] encodes the conditions, with
//! the same meaning as the text of [`super::iptables`].

use std::borrow::Cow;
use std::mem::discriminant;

use ipnet::IpNet;

use super::{Match, Rule};
use crate::redirect::ports;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub key: Key,
    /// First and last number of each range, ascending. Ranges do not overlap or adjoin.
    pub ranges: Vec<(u128, u128)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Port,
    Ipv4Address,
    Ipv6Address,
}

impl Key {
    /// In bytes.
    pub fn length(self) -> usize {
        match self {
            Key::Port => 2,
            Key::Ipv4Address => 4,
            Key::Ipv6Address => 16,
        }
    }

    /// In network byte order.
    pub fn encode(self, number: u128) -> Vec<u8> {
        number.to_be_bytes()[size_of::<u128>() - self.length()..].to_vec()
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
    let is_needed = match key {
        Key::Port => ranges.len() > 1,
        Key::Ipv4Address | Key::Ipv6Address => run.len() > 1,
    };
    is_needed.then_some(Set { key, ranges })
}

fn key(condition: &Match) -> Option<Key> {
    match condition {
        Match::Ports(_) | Match::Port(_) => Some(Key::Port),
        Match::Source(net) | Match::Destination(net) => Some(match net {
            IpNet::V4(_) => Key::Ipv4Address,
            IpNet::V6(_) => Key::Ipv6Address,
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
            Match::Source(IpNet::V4(net)) | Match::Destination(IpNet::V4(net)) => {
                ranges.push((net.network().to_bits().into(), net.broadcast().to_bits().into()));
            }
            Match::Source(IpNet::V6(net)) | Match::Destination(IpNet::V6(net)) => {
                ranges.push((net.network().to_bits(), net.broadcast().to_bits()));
            }
            Match::Tcp | Match::Uid(_) | Match::Gid(_) | Match::Loopback => {}
        }
    }
    ports::merged(ranges)
}
