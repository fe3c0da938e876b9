//! Compares two sets of rules by what they do with packets. Exact: packets that no condition of either
//! set tells apart are one kind, and each kind is tried.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::nat::{Condition, Field, Nat, Packet, Range, TCP, UDP};
use super::rules::Chain;
use super::{Family, ports};

const KINDS_LIMIT: usize = 1 << 22;
const RANGES_NAMED: usize = 8;

/// The fields of packets, and the words before their numbers. Inbound packets have the first five.
const FIELDS: [(Field, &str); 7] = [
    (Field::Protocol, "of protocol"),
    (Field::Port, "to port"),
    (Field::Source, "from"),
    (Field::Destination, "to"),
    (Field::Loopback, "through"),
    (Field::Uid, "of UID"),
    (Field::Gid, "of GID"),
];

/// Numbers of a field that no condition tells apart. Empty: the packet has no such field.
type Class = Vec<Range>;
/// For each field, the indexes of classes.
type Kinds = Vec<Vec<usize>>;
/// The ports to which a packet goes now, and would go.
type Outcome = [Option<u16>; 2];

/// Describes the packets with which the rules `now`, tables in the order in which they decide, do
/// something else than `wanted`.
pub fn differences(now: &[Nat], wanted: &Nat, family: Family) -> Result<Vec<String>, String> {
    let conditions: Vec<_> = now.iter().chain([wanted]).flat_map(Nat::conditions).collect();
    let mut texts = Vec::new();
    for (hook, direction, fields) in
        [(Chain::Prerouting, "inbound", &FIELDS[..5]), (Chain::Output, "outbound", &FIELDS[..])]
    {
        let classes: Vec<Vec<Class>> =
            fields.iter().map(|(field, _)| classes(*field, family, &conditions)).collect();
        let count = classes.iter().fold(1_usize, |count, next| count.saturating_mul(next.len()));
        if count > KINDS_LIMIT {
            return Err("too many kinds of packets".to_owned());
        }
        let mut found = Vec::new();
        for mut number in 0..count {
            let (mut packet, mut kinds) = (Packet::default(), Kinds::new());
            for ((field, _), classes) in fields.iter().zip(&classes) {
                let index = number % classes.len();
                number /= classes.len();
                packet[*field as usize] = classes[index].first().map(|(first, _)| *first);
                kinds.push(vec![index]);
            }
            let goes = now.iter().find_map(|table| table.redirected_to(hook, &packet));
            let would_go = wanted.redirected_to(hook, &packet);
            if goes != would_go {
                found.push(([goes, would_go], kinds));
            }
        }
        for (outcome, kinds) in merged(found, fields.len()) {
            let mut text = direction.to_owned();
            if family == Family::Ipv6 {
                text.push_str(" IPv6");
            }
            for (((field, preposition), classes), indexes) in
                fields.iter().zip(&classes).zip(&kinds)
            {
                let chosen = indexes.iter().flat_map(|index| classes[*index].iter().copied());
                let ranges = ports::merged(chosen.collect());
                let only = |protocol: u8| {
                    *field == Field::Protocol && ranges == [(protocol.into(), protocol.into())]
                };
                text.push_str(&match indexes.len() == classes.len() {
                    true => String::new(),
                    false if only(TCP) => " TCP".to_owned(),
                    false if only(UDP) => " UDP".to_owned(),
                    false => format!(" {preposition} {}", list(&ranges, *field, family)),
                });
            }
            texts.push(text + &described(outcome));
        }
    }
    Ok(texts)
}

fn described(outcome: Outcome) -> String {
    match outcome {
        [Some(now), None] => format!(" goes to the proxy's port {now} now, and would not"),
        [None, port] => format!(
            " does not go to the proxy now, and would go to its port {}",
            port.unwrap_or_default()
        ),
        [Some(now), Some(port)] => format!(" goes to port {now} now, and would go to port {port}"),
    }
}

fn classes(field: Field, family: Family, conditions: &[&Condition]) -> Vec<Class> {
    let largest = match (field, family) {
        (Field::Protocol, _) => u8::MAX.into(),
        (Field::Port, _) => u16::MAX.into(),
        (Field::Uid | Field::Gid, _) => u32::MAX.into(),
        (Field::Source | Field::Destination, Family::Ipv4) => u32::MAX.into(),
        (Field::Loopback, _) => 1,
        _ => u128::MAX,
    };
    let conditions = || conditions.iter().filter(|condition| condition.field == field);
    let edges = conditions().flat_map(|condition| &condition.ranges);
    let starts = edges.flat_map(|(first, last)| [*first, last.saturating_add(1)]);
    let mut starts: Vec<u128> = starts.chain([0]).filter(|start| *start <= largest).collect();
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([largest]);
    let mut classes: Vec<(Vec<bool>, Class)> = Vec::new();
    for (&start, end) in starts.iter().zip(ends) {
        let signature: Vec<bool> = conditions().map(|condition| condition.has(start)).collect();
        match classes.iter_mut().find(|(known, _)| *known == signature) {
            Some((_, class)) => class.push((start, end)),
            None => classes.push((signature, vec![(start, end)])),
        }
    }
    // The kernel sends packets without a socket, and so without user.
    let without_user = matches!(field, Field::Uid | Field::Gid).then(Class::new);
    classes.into_iter().map(|(_, class)| class).chain(without_user).collect()
}

/// Joins kinds that differ in one field only, field by field.
fn merged(mut found: Vec<(Outcome, Kinds)>, fields: usize) -> Vec<(Outcome, Kinds)> {
    for field in 0..fields {
        let mut joined: Vec<(Outcome, Kinds)> = Vec::new();
        for (outcome, kinds) in found {
            let is_alike = |(other, known): &&mut (Outcome, Kinds)| {
                let mut pairs = known.iter().zip(&kinds).enumerate();
                *other == outcome && pairs.all(|(index, (one, next))| index == field || one == next)
            };
            match joined.iter_mut().find(is_alike) {
                Some((_, known)) => known[field].extend(&kinds[field]),
                None => joined.push((outcome, kinds)),
            }
        }
        found = joined;
    }
    found
}

fn list(ranges: &[Range], field: Field, family: Family) -> String {
    let one = |number: u128| match (field, family) {
        (Field::Source | Field::Destination, Family::Ipv4) => {
            Ipv4Addr::from_bits(number as u32).to_string()
        }
        (Field::Source | Field::Destination, _) => Ipv6Addr::from_bits(number).to_string(),
        (Field::Loopback, _) if number == 0 => "other interfaces".to_owned(),
        (Field::Loopback, _) => "lo".to_owned(),
        _ => number.to_string(),
    };
    let text = |&(first, last): &Range| match first == last {
        true => one(first),
        false => format!("{}-{}", one(first), one(last)),
    };
    let texts: Vec<String> = ranges.iter().take(RANGES_NAMED).map(text).collect();
    match ranges.len().checked_sub(RANGES_NAMED) {
        Some(more @ 1..) => format!("{} and {more} more ranges", texts.join(",")),
        _ => texts.join(","),
    }
}
