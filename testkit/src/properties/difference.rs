//! Finds a packet that two sets of rules redirect differently. No such packet is overlooked: the
//! values of a field are grouped so that no condition of either set distinguishes two values of a
//! group, and one packet of each combination of groups is evaluated.

use std::collections::BTreeSet;

use linkerd2_cni::redirect::Family;
use linkerd2_cni::redirect::rules::Chain;

use super::evaluator::{Condition, Field, Fields, Rules};

/// Largest number of packets that are evaluated, because more packets would take minutes.
const PACKETS_LIMIT: usize = 1 << 22;

const INBOUND: [Field; 5] =
    [Field::Protocol, Field::Port, Field::Source, Field::Destination, Field::Interface];
const OUTBOUND: [Field; 7] = [
    Field::Protocol,
    Field::Port,
    Field::Source,
    Field::Destination,
    Field::Interface,
    Field::Uid,
    Field::Gid,
];

/// A packet that two sets of rules redirect differently.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    pub hook: Chain,
    pub packet: Fields,
    /// The port to which each set redirects the packet. `None`: the packet is not redirected.
    pub ports: [Option<u16>; 2],
}

/// Returns the first difference. `None`: both sets do the same with every packet of the family.
pub fn difference(first: &Rules, second: &Rules, family: Family) -> Option<Difference> {
    let conditions: Vec<&Condition> = first.conditions().chain(second.conditions()).collect();
    for (hook, fields) in [(Chain::Prerouting, &INBOUND[..]), (Chain::Output, &OUTBOUND[..])] {
        let mut values = Vec::new();
        for field in fields {
            values.push(distinct_values(*field, family, &conditions));
        }
        let count: usize = values.iter().map(Vec::len).product();
        assert!(count <= PACKETS_LIMIT, "{count} packets are too many to evaluate");
        for number in 0..count {
            let packet = make_packet(number, fields, &values);
            let ports = [first.redirected_to(hook, &packet), second.redirected_to(hook, &packet)];
            if ports[0] != ports[1] {
                return Some(Difference { hook, packet, ports });
            }
        }
    }
    None
}

/// Returns the packet with this number among all combinations of the fields' values.
fn make_packet(mut number: usize, fields: &[Field], values: &[Vec<Option<u128>>]) -> Fields {
    let mut packet = Fields::default();
    for (field, field_values) in fields.iter().zip(values) {
        packet.set(*field, field_values[number % field_values.len()]);
        number /= field_values.len();
    }
    packet
}

/// Returns one value of each group: the values of a group meet the same conditions on the field.
fn distinct_values(field: Field, family: Family, conditions: &[&Condition]) -> Vec<Option<u128>> {
    let mut field_conditions = conditions.to_vec();
    field_conditions.retain(|condition| condition.field == field);
    // The values from one start to the next meet the same conditions.
    let mut starts = BTreeSet::from([0]);
    for condition in &field_conditions {
        for (first, last) in &condition.ranges {
            starts.insert(*first);
            starts.insert(last.saturating_add(1));
        }
    }
    let mut groups = BTreeSet::new();
    let mut values = Vec::new();
    for start in starts.range(..=largest_value(field, family)) {
        let conditions_met: Vec<bool> =
            field_conditions.iter().map(|condition| condition.contains(*start)).collect();
        if groups.insert(conditions_met) {
            values.push(Some(*start));
        }
    }
    if matches!(field, Field::Uid | Field::Gid) {
        // Packets that the kernel itself sends have no socket, and so no user.
        values.push(None);
    }
    values
}

fn largest_value(field: Field, family: Family) -> u128 {
    match (field, family) {
        (Field::Protocol, _) => u8::MAX.into(),
        (Field::Port, _) => u16::MAX.into(),
        (Field::Uid | Field::Gid, _) => u32::MAX.into(),
        (Field::Interface, _) => u128::MAX,
        (Field::Source | Field::Destination, Family::Ipv4) => u32::MAX.into(),
        (Field::Source | Field::Destination, Family::Ipv6) => u128::MAX,
    }
}
