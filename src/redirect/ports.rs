//! Ports, port ranges, and the lists of them in annotations and the plugin entry.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::quote::quote;

/// Maximum number of ports in one iptables `multiport` match. A range counts as two.
const MULTIPORT_LIMIT: usize = 15;

/// Describes valid lists of ports, for error messages.
pub const GRAMMAR: &str = "a list of ports (0-65535) and ranges (lower-upper), comma-separated and \
                           without blanks, such as 25,3306,8000-8010";

/// A range of ports, both ends included. A single port is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// An invalid element of a list of ports or interfaces. Upstream drops invalid ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {why}", quote(.invalid_part))]
pub struct InvalidElement<'a> {
    /// The whole element.
    pub text: &'a str,
    /// The invalid part of the element, such as one bound of a range.
    pub(super) invalid_part: &'a str,
    pub(super) why: &'static str,
}

impl PortRange {
    /// Returns the number of ports that the range counts as in a `multiport` match.
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
            return Err(InvalidElement { text, invalid_part: text, why });
        }
        let (first, last) = (parse_port(first, text)?, parse_port(last, text)?);
        if first > last {
            let why = "is not a range: the upper bound is below the lower";
            return Err(InvalidElement { text, invalid_part: text, why });
        }
        Ok(PortRange { first, last })
    }
}

/// Parses a port, which is all or part of the list element `element`.
fn parse_port<'a>(port: &'a str, element: &'a str) -> Result<u16, InvalidElement<'a>> {
    if let Ok(number) = port.parse() {
        return Ok(number);
    }
    let why = if port.contains(char::is_whitespace) {
        "contains blanks: remove them"
    } else {
        "is not a port: expected a number from 0 to 65535"
    };
    Err(InvalidElement { text: element, invalid_part: port, why })
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        PortRange { first: port, last: port }
    }
}

/// Formats the range as in iptables rules: `80`, `100:200`.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}:{}", self.first, self.last)
        }
    }
}

/// Removes duplicate ranges. Keeps the order, so that a short list gets the same rules as upstream.
/// Merges ranges that overlap or adjoin if this saves `multiport` matches.
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

/// Merges ranges that overlap or adjoin. Each range is a pair of its first and last number. Returns
/// the ranges in ascending order.
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

/// Splits ranges into groups that each fit into one `multiport` match. Keeps the order.
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

/// Joins ranges with commas, as in iptables rules.
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
    fn list_with_every_port_twice_is_read_completely() {
        let text: Vec<String> = (0..=65_535).map(|port| port.to_string()).collect();
        let twice = format!("{0},{0}", text.join(","));
        let ranges = parse_list(&twice);
        assert_eq!(ranges.len(), 131_072);
        assert_eq!(joined(&distinct(&ranges)), "0:65535");
    }

    #[test]
    fn ranges_are_merged_only_if_that_saves_a_multiport_match() {
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
    fn merged_ranges_neither_overlap_nor_adjoin() {
        let ranges: Vec<(u16, u16)> =
            vec![(65535, 65535), (9, 9), (80, 90), (85, 95), (10, 10), (0, 0), (65534, 65534)];
        assert_eq!(merged(ranges), [(0, 0), (9, 10), (80, 95), (65534, 65535)]);
        assert_eq!(merged(vec![(7, 7), (0, u128::MAX), (9, 9)]), [(0, u128::MAX)]);
        assert_eq!(merged::<u16>(vec![]), []);
    }

    #[test]
    fn error_states_why_the_element_is_invalid() {
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
