//! Ports, port ranges, and the lists of them in annotations and the plugin entry.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::quote::quote;

/// Number of ports in one iptables `multiport` match. A range counts as two.
const MULTIPORT_LIMIT: usize = 15;

/// Grammar of a port list, for error messages.
pub const GRAMMAR: &str = "a list of ports (0-65535) and ranges (lower-upper), comma-separated and without blanks, such as 25,3306,8000-8010";

/// Ports from `first` to `last`, both included; a single port is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// Why an element of a list is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{} is not a port: expected a number from 0 to 65535", quote(.0))]
    Port(String),
    #[error("{} contains blanks: remove them", quote(.0))]
    Blanks(String),
    #[error("{} is not a range: expected lower-upper", quote(.0))]
    Range(String),
    #[error("{} is not a range: the upper bound is below the lower", quote(.0))]
    Reversed(String),
}

/// An invalid element of a list. Upstream drops it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidElement {
    pub text: String,
    pub error: Error,
}

impl PortRange {
    fn is_single(self) -> bool {
        self.first == self.last
    }

    /// Number of ports that the range counts for in a `multiport` match.
    fn slots(self) -> usize {
        if self.is_single() { 1 } else { 2 }
    }
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        PortRange { first: port, last: port }
    }
}

/// Accepts exactly what upstream's `ParsePortRange` accepts: a leading `+` and leading zeros
/// are valid, blanks are not.
impl FromStr for PortRange {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (first, last) = match text.split_once('-') {
            Some((_, rest)) if rest.contains('-') => return Err(Error::Range(text.to_owned())),
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(text)?, port(text)?),
        };
        if first > last {
            return Err(Error::Reversed(text.to_owned()));
        }
        Ok(PortRange { first, last })
    }
}

/// Formats the range as iptables does: `80`, `100:200`.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}:{}", self.first, self.last)
        }
    }
}

fn port(text: &str) -> Result<u16, Error> {
    text.parse().map_err(|_| match text.contains(char::is_whitespace) {
        true => Error::Blanks(text.to_owned()),
        false => Error::Port(text.to_owned()),
    })
}

/// Parses the elements of a list. Returns the ranges and the invalid elements, which include
/// empty elements and those with blanks. Upstream logs and drops the same elements.
pub fn elements<'a>(
    elements: impl IntoIterator<Item = &'a str>,
) -> (Vec<PortRange>, Vec<InvalidElement>) {
    let (mut ranges, mut invalid) = (Vec::new(), Vec::new());
    for text in elements {
        match text.parse() {
            Ok(range) => ranges.push(range),
            Err(error) => invalid.push(InvalidElement { text: text.to_owned(), error }),
        }
    }
    (ranges, invalid)
}

/// Parses a comma-separated list, as [`elements`] does.
pub fn list(text: &str) -> (Vec<PortRange>, Vec<InvalidElement>) {
    elements(text.split(','))
}

/// Removes repeated ranges and keeps the order.
pub fn distinct(ranges: impl IntoIterator<Item = PortRange>) -> Vec<PortRange> {
    let mut seen = BTreeSet::new();
    let is_new = |range: &PortRange| seen.insert((range.first, range.last));
    ranges.into_iter().filter(is_new).collect()
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

/// Formats ranges as a comma-separated list, as iptables does.
pub fn joined(ranges: &[PortRange]) -> String {
    let texts: Vec<String> = ranges.iter().map(PortRange::to_string).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists, with the elements that upstream's `makeMultiportDestinations` keeps and drops. The
    /// results come from running linkerd2-proxy-init's `pkg/iptables` and `pkg/util`.
    const UPSTREAM_RESULTS: [(&str, &str, &[&str]); 40] = [
        ("80", "80", &[]),
        ("22-22", "22", &[]),
        ("25-27", "25:27", &[]),
        ("0", "0", &[]),
        ("65535", "65535", &[]),
        ("0-65535", "0:65535", &[]),
        ("+80", "80", &[]),
        ("80-+90", "80:90", &[]),
        ("0080", "80", &[]),
        ("000000000000000000000000000080", "80", &[]),
        ("80,80,70-90", "80,80,70:90", &[]),
        ("443,", "443", &[""]),
        (",", "", &["", ""]),
        ("25, 3306", "25", &[" 3306"]),
        (" 80 ,81", "81", &[" 80 "]),
        ("80\t,81\n", "", &["80\t", "81\n"]),
        ("\u{a0}80", "", &["\u{a0}80"]),
        ("100 - 200,1", "1", &["100 - 200"]),
        ("http,25", "25", &["http"]),
        ("65536", "", &["65536"]),
        ("65536-65539,1", "1", &["65536-65539"]),
        ("1-65536", "", &["1-65536"]),
        ("99999999999999999999999", "", &["99999999999999999999999"]),
        ("30-20,5", "5", &["30-20"]),
        ("80-", "", &["80-"]),
        ("-80", "", &["-80"]),
        ("-", "", &["-"]),
        ("--", "", &["--"]),
        ("80--90", "", &["80--90"]),
        ("1-2-3,4", "4", &["1-2-3"]),
        ("-23-25", "", &["-23-25"]),
        ("+", "", &["+"]),
        ("++80", "", &["++80"]),
        ("80+", "", &["80+"]),
        ("0x50", "", &["0x50"]),
        ("1_000", "", &["1_000"]),
        ("8.0,1e3", "", &["8.0", "1e3"]),
        ("８０,٨٠", "", &["８０", "٨٠"]),
        ("80–90", "", &["80–90"]),
        ("80;90:100", "", &["80;90:100"]),
    ];

    #[test]
    fn lists_are_parsed_as_in_upstream() {
        for (text, kept, dropped) in UPSTREAM_RESULTS {
            let (ranges, invalid) = list(text);
            let invalid: Vec<&str> = invalid.iter().map(|element| &*element.text).collect();
            assert_eq!((joined(&ranges).as_str(), &*invalid), (kept, dropped), "{text:?}");
        }
    }

    #[test]
    fn a_list_of_every_port_twice_is_read_completely() {
        let text: Vec<String> = (0..=65_535).map(|port| port.to_string()).collect();
        let twice = format!("{0},{0}", text.join(","));
        let (ranges, invalid) = list(&twice);
        assert_eq!((ranges.len(), invalid.len()), (131_072, 0));
        assert_eq!(distinct(ranges).len(), 65_536);
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
            assert_eq!(text.parse::<PortRange>().unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn groups_hold_fifteen_ports_with_ranges_counting_twice() {
        let cases = [
            ("", vec![]),
            ("22,25-27,33", vec!["22,25:27,33"]),
            (
                "22-23,25-27,33-34,35-35,37-38,50-54,56-57,60-63",
                vec!["22:23,25:27,33:34,35,37:38,50:54,56:57,60:63"],
            ),
            (
                "22-23,25-27,33-34,35-35,37-38,50-54,56,58,60,63,70-72",
                vec!["22:23,25:27,33:34,35,37:38,50:54,56,58,60,63", "70:72"],
            ),
            (
                "1,2,3,4,5,6,7,8,9,10,11,12,13,14,20-30,40",
                vec!["1,2,3,4,5,6,7,8,9,10,11,12,13,14", "20:30,40"],
            ),
        ];
        for (text, wanted) in cases {
            let ranges = list(text).0;
            let groups: Vec<String> = groups(&ranges).iter().map(|group| joined(group)).collect();
            assert_eq!(groups, wanted, "{text:?}");
        }
    }
}
