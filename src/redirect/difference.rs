//! Compares two sets of rules by what they do with packets. Exact: packets that no condition of either
//! set tells apart are one kind, and each kind is tried.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::Family;
use super::nat::{Condition, Field, Hook, Nat, Packet, Range, TCP, UDP};

/// Largest number of kinds of packets that are tried.
const KINDS_LIMIT: usize = 1 << 22;
/// Number of ranges that the text of a difference names.
const RANGES_NAMED: usize = 8;

/// The fields of packets at a hook. UID and GID come last.
const FIELDS: [(Hook, &[Field]); 2] = [
    (
        Hook::Prerouting,
        &[Field::Protocol, Field::Port, Field::Source, Field::Destination, Field::Input],
    ),
    (
        Hook::Output,
        &[
            Field::Protocol,
            Field::Port,
            Field::Source,
            Field::Destination,
            Field::Output,
            Field::Uid,
            Field::Gid,
        ],
    ),
];

/// Numbers that no condition tells apart.
type Class = Vec<Range>;

/// Kinds of packets with the same results: for each field, the indexes of classes.
type Kinds = Vec<BTreeSet<usize>>;
type Outcome = (Option<u16>, Option<u16>);

/// Describes the packets with which the rules `now`, tables in the order in which they decide, do
/// something else than `wanted`. Empty if there are none.
///
/// # Errors
/// Fails if there are too many kinds of packets.
pub fn differences(now: &[Nat], wanted: &Nat, family: Family) -> Result<Vec<String>, String> {
    let conditions: Vec<&Condition> =
        now.iter().chain([wanted]).flat_map(Nat::conditions).collect();
    let mut found = Vec::new();
    for (hook, fields) in FIELDS {
        // The kernel sends packets without a socket, and so without UID and GID. They are of interest only
        // if all others go where they should.
        let users = fields.iter().filter(|field| matches!(field, Field::Uid | Field::Gid)).count();
        for fields in [fields, &fields[..fields.len() - users]] {
            let classes: Vec<Vec<Class>> =
                fields.iter().map(|&field| classes(field, family, &conditions)).collect();
            let differing = differing(now, wanted, hook, fields, &classes)?;
            let kinds = merged(differing, fields.len());
            let describe =
                |(outcome, kinds)| described(hook, fields, &classes, &kinds, family, outcome);
            found.extend(kinds.into_iter().map(describe));
            if !found.is_empty() {
                break;
            }
        }
    }
    Ok(found)
}

fn differing(
    now: &[Nat],
    wanted: &Nat,
    hook: Hook,
    fields: &[Field],
    classes: &[Vec<Class>],
) -> Result<Vec<(Outcome, Kinds)>, String> {
    let count =
        classes.iter().try_fold(1_usize, |count, of_field| count.checked_mul(of_field.len()));
    let count = count.filter(|count| *count <= KINDS_LIMIT).ok_or("too many kinds of packets")?;
    let mut found = Vec::new();
    for mut number in 0..count {
        let mut packet = Packet::default();
        let mut kinds = Kinds::new();
        for (field, of_field) in fields.iter().zip(classes) {
            let index = number % of_field.len();
            number /= of_field.len();
            packet[*field as usize] = of_field[index].first().map(|(first, _)| *first);
            kinds.push(BTreeSet::from([index]));
        }
        let outcome = (
            now.iter().find_map(|table| table.redirected_to(hook, &packet)),
            wanted.redirected_to(hook, &packet),
        );
        if outcome.0 != outcome.1 {
            found.push((outcome, kinds));
        }
    }
    Ok(found)
}

/// Splits all numbers of a field into classes.
fn classes(field: Field, family: Family, conditions: &[&Condition]) -> Vec<Class> {
    let largest = match (field, family) {
        (Field::Protocol, _) => u8::MAX.into(),
        (Field::Port, _) => u16::MAX.into(),
        (Field::Uid | Field::Gid, _) | (Field::Source | Field::Destination, Family::Ipv4) => {
            u32::MAX.into()
        }
        _ => u128::MAX,
    };
    let conditions = || conditions.iter().filter(|condition| condition.field == field);
    let edges = conditions().flat_map(|condition| &condition.ranges);
    let mut starts: BTreeSet<u128> =
        edges.flat_map(|(first, last)| [*first, last.saturating_add(1)]).collect();
    starts.insert(0);
    starts.retain(|start| *start <= largest);
    let mut classes: BTreeMap<Vec<bool>, Class> = BTreeMap::new();
    let mut ends = starts.iter().skip(1).map(|next| next - 1).chain([largest]);
    for &start in &starts {
        let signature = conditions().map(|condition| condition.has(start)).collect();
        classes.entry(signature).or_default().push((start, ends.next().unwrap_or(largest)));
    }
    classes.into_values().collect()
}

/// Joins kinds that differ in one field only, field by field.
fn merged(mut found: Vec<(Outcome, Kinds)>, fields: usize) -> Vec<(Outcome, Kinds)> {
    for field in 0..fields {
        let mut joined: BTreeMap<(Outcome, Kinds), BTreeSet<usize>> = BTreeMap::new();
        for (outcome, mut kinds) in found {
            let of_field = std::mem::take(&mut kinds[field]);
            joined.entry((outcome, kinds)).or_default().extend(of_field);
        }
        let restored = joined.into_iter().map(|((outcome, mut kinds), of_field)| {
            kinds[field] = of_field;
            (outcome, kinds)
        });
        found = restored.collect();
    }
    found
}

fn described(
    hook: Hook,
    fields: &[Field],
    classes: &[Vec<Class>],
    kinds: &Kinds,
    family: Family,
    outcome: Outcome,
) -> String {
    let direction = if hook == Hook::Prerouting { "inbound" } else { "outbound" };
    let mut text =
        if family == Family::Ipv6 { format!("{direction} IPv6") } else { direction.to_owned() };
    for ((&field, classes), indexes) in fields.iter().zip(classes).zip(kinds) {
        let is_all = indexes.len() == classes.len();
        let chosen = indexes.iter().flat_map(|index| classes[*index].iter().copied()).collect();
        let ranges = super::ports::merged::<u128>(chosen);
        let list = || list(&ranges, field, family);
        match field {
            Field::Protocol if ranges == [(TCP.into(), TCP.into())] => text.push_str(" TCP"),
            Field::Protocol if ranges == [(UDP.into(), UDP.into())] => text.push_str(" UDP"),
            Field::Protocol if is_all => text.push_str(" packets"),
            Field::Protocol => text.push_str(&format!(" packets of protocol {}", list())),
            _ if is_all => {}
            Field::Port => text.push_str(&format!(" to port {}", list())),
            Field::Source => text.push_str(&format!(" from {}", list())),
            Field::Destination => text.push_str(&format!(" to {}", list())),
            Field::Uid => text.push_str(&format!(" of UID {}", list())),
            Field::Gid => text.push_str(&format!(" of GID {}", list())),
            Field::Input | Field::Output => text.push_str(&format!(" through {}", list())),
        }
    }
    if hook == Hook::Output && !fields.contains(&Field::Uid) {
        text.push_str(" that the kernel sends");
    }
    match outcome {
        (Some(now), None) => format!("{text} goes to the proxy's port {now} now, and would not"),
        (None, Some(port)) => {
            format!("{text} does not go to the proxy now, and would go to its port {port}")
        }
        (now, port) => {
            let [now, port] = [now, port].map(Option::unwrap_or_default);
            format!("{text} goes to port {now} now, and would go to port {port}")
        }
    }
}

fn list(ranges: &[Range], field: Field, family: Family) -> String {
    let one = |number: u128| match (field, family) {
        (Field::Source | Field::Destination, Family::Ipv4) => {
            Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).to_string()
        }
        (Field::Source | Field::Destination, Family::Ipv6) => {
            Ipv6Addr::from_bits(number).to_string()
        }
        (Field::Input | Field::Output, _) => {
            String::from_utf8_lossy(&number.to_be_bytes()).trim_start_matches('\0').to_owned()
        }
        _ => number.to_string(),
    };
    if matches!(field, Field::Input | Field::Output)
        && ranges.iter().any(|(first, last)| first < last)
    {
        return "other interfaces".to_owned();
    }
    let texts = ranges.iter().take(RANGES_NAMED).map(|&(first, last)| match first == last {
        true => one(first),
        false => format!("{}-{}", one(first), one(last)),
    });
    let text = texts.collect::<Vec<_>>().join(",");
    match ranges.len().checked_sub(RANGES_NAMED) {
        Some(more @ 1..) => format!("{text} and {more} more ranges"),
        _ => text,
    }
}
