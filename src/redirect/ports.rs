//! Ports, port ranges, and the lists of them in annotations and the plugin entry.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::quote::quote;

/// Number of ports in one iptables `multiport` match. A range counts as two.
const MULTIPORT_LIMIT: usize = 15;

/// Describes the form of a list of ports, for error messages.
pub const GRAMMAR: &str = "a list of ports (0-65535) and ranges (lower-upper), comma-separated and \
                           without blanks, such as 25,3306,8000-8010";

/// A range of ports, both ends included. A single port is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// An invalid element of a list of ports or interfaces. Upstream drops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {why}", quote(.at_fault))]
pub struct InvalidElement<'a> {
    pub text: &'a str,
    pub(super) at_fault: &'a str,
    pub(super) why: &'static str,
}

impl PortRange {
    /// Number of ports that the range counts for in a `multiport` match.
    fn slots(self) -> usize {
        if self.first == self.last { 1 } else { 2 }
    }

    /// Formats the range as in annotations: `80`, `100-200`.
    pub fn annotation_text(&self) -> String {
        self.to_string().replace(':', "-")
    }

    /// Parses an element of a list: a port or a range. Accepts exactly what upstream's
    /// `ParsePortRange` accepts: a leading `+` and leading zeros are valid, blanks are not.
    pub fn parse(text: &str) -> Result<Self, InvalidElement<'_>> {
        let Some((first, last)) = text.split_once('-') else {
            return parse_port(text, text).map(PortRange::from);
        };
        if last.contains('-') {
            let why = "is not a range: expected lower-upper";
            return Err(InvalidElement { text, at_fault: text, why });
        }
        let (first, last) = (parse_port(first, text)?, parse_port(last, text)?);
        if first > last {
            let why = "is not a range: the upper bound is below the lower";
            return Err(InvalidElement { text, at_fault: text, why });
        }
        Ok(PortRange { first, last })
    }
}

/// Parses a port of the list element `element`.
fn parse_port<'a>(port: &'a str, element: &'a str) -> Result<u16, InvalidElement<'a>> {
    port.parse().map_err(|_| InvalidElement {
        text: element,
        at_fault: port,
        why: if port.contains(char::is_whitespace) {
            "contains blanks: remove them"
        } else {
            "is not a port: expected a number from 0 to 65535"
        },
    })
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        PortRange { first: port, last: port }
    }
}

/// Formats the range as iptables has it: `80`, `100:200`.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}:{}", self.first, self.last)
        }
    }
}

/// Removes repeated ranges and keeps the order, so that a short list has upstream's rules. If the
/// list then needs fewer `multiport` matches, merges ranges that overlap or adjoin.
pub fn distinct(ranges: &[PortRange]) -> Vec<PortRange> {
    let mut seen = BTreeSet::new();
    let distinct: Vec<_> = ranges.iter().copied().filter(|range| seen.insert(*range)).collect();
    if distinct.len() <= MULTIPORT_LIMIT / 2 {
        return distinct;
    }
    let pairs = ranges.iter().map(|range| (range.first, range.last)).collect();
    let merged: Vec<PortRange> =
        merged(pairs).into_iter().map(|(first, last)| PortRange { first, last }).collect();
    if groups(&distinct).len() <= groups(&merged).len() { distinct } else { merged }
}

/// Returns the fewest ranges, from first to last number, with the same numbers, in ascending order.
pub fn merged<T: Copy + Ord + Into<u128>>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut merged: Vec<(T, T)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first.into() <= (*end).into().saturating_add(1) => {
                *end = last.max(*end);
            }
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// Splits ranges into groups that each fit one `multiport` match, and keeps the order.
pub fn groups(ranges: &[PortRange]) -> Vec<Vec<PortRange>> {
    let mut groups: Vec<Vec<PortRange>> = Vec::new();
    let mut free = 0;
    for &range in ranges {
        match groups.last_mut() {
            Some(group) if range.slots() <= free => group.push(range),
            _ => {
                groups.push(vec![range]);
                free = MULTIPORT_LIMIT;
            }
        }
        free -= range.slots();
    }
    groups
}

/// Joins ranges with commas, as iptables has them.
pub fn joined(ranges: &[PortRange]) -> String {
    let texts: Vec<String> = ranges.iter().map(PortRange::to_string).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    fn parse_list(text: &str) -> Vec<PortRange> {
        text.split(',').filter_map(|element| PortRange::parse(element).ok()).collect()
    }

    /// A row of `ports.yaml`.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ListRow {
        list: String,
        #[serde(default)]
        kept: String,
        #[serde(default)]
        dropped: Vec<String>,
    }

    #[test]
    fn lists_are_parsed_as_in_upstream() {
        for (name, row) in testkit::table::rows::<ListRow>(include_str!("ports.yaml")) {
            let invalid = row.list.split(',').filter_map(|element| PortRange::parse(element).err());
            let invalid: Vec<_> = invalid.map(|element| element.text.to_owned()).collect();
            assert_eq!(joined(&parse_list(&row.list)), row.kept, "{name}");
            assert_eq!(invalid, row.dropped, "{name}");
        }
    }

    #[test]
    fn a_port_list_with_every_port_twice_is_read_completely() {
        let text: Vec<String> = (0..=65_535).map(|port| port.to_string()).collect();
        let twice = format!("{0},{0}", text.join(","));
        let ranges = parse_list(&twice);
        assert_eq!(ranges.len(), 131_072);
        assert_eq!(joined(&distinct(&ranges)), "0:65535");
    }

    #[test]
    fn ranges_are_merged_if_that_saves_a_match_and_else_keep_their_order() {
        for (text, wanted) in [
            ("9,80-90,9,80,80-90", "9,80:90,80"),
            ("4191,4190,1,2,3,4,5,6,7,8,9,10,11,12,13", "4191,4190,1,2,3,4,5,6,7,8,9,10,11,12,13"),
            ("4191,4190,1,2,3,4,5,6,7,8,9,10,11,12,13,14", "1:14,4190:4191"),
            ("17,16,15,14,13,12,11,10,9,8,1-7,2-3,0-65535", "0:65535"),
        ] {
            assert_eq!(joined(&distinct(&parse_list(text))), wanted, "{text}");
        }
        let scattered: Vec<PortRange> = (0..8192).rev().step_by(2).map(PortRange::from).collect();
        assert_eq!(distinct(&scattered), scattered);
    }

    #[test]
    fn merged_ranges_do_not_adjoin() {
        let ranges: Vec<(u16, u16)> =
            vec![(65535, 65535), (9, 9), (80, 90), (85, 95), (10, 10), (0, 0), (65534, 65534)];
        assert_eq!(merged(ranges), [(0, 0), (9, 10), (80, 95), (65534, 65535)]);
        assert_eq!(merged(vec![(7, 7), (0, u128::MAX), (9, 9)]), [(0, u128::MAX)]);
        assert_eq!(merged::<u16>(vec![]), []);
    }

    #[test]
    fn an_error_states_why_the_element_is_invalid() {
        for (text, wanted) in [
            ("abc", "\"abc\" is not a port: expected a number from 0 to 65535"),
            ("23-x", "\"x\" is not a port: expected a number from 0 to 65535"),
            ("-23", "\"\" is not a port: expected a number from 0 to 65535"),
            (" 80", "\" 80\" contains blanks: remove them"),
            ("1-2-3", "\"1-2-3\" is not a range: expected lower-upper"),
            ("30-20", "\"30-20\" is not a range: the upper bound is below the lower"),
        ] {
            assert_eq!(PortRange::parse(text).unwrap_err().to_string(), wanted, "{text:?}");
        }
    }
}
