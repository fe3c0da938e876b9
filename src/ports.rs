//! Ports, ranges of ports, and lists of them as people write them.

use std::fmt;
use std::str::FromStr;

/// What one iptables `multiport` match holds; a range counts as two.
const MULTIPORT_LIMIT: usize = 15;

/// The grammar, for error messages.
pub const GRAMMAR: &str =
    "a comma-separated list of ports (0-65535) and ranges (lower-upper), such as 25,3306,8000-8010";

/// Ports from `first` to `last`, both included; a single port is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// Why a text is no port or range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("\"{0}\" is not a port: a number from 0 to 65535 is wanted")]
    Port(String),
    #[error("\"{0}\": the upper bound of a range must not be below the lower")]
    Reversed(String),
}

impl PortRange {
    fn is_single(self) -> bool {
        self.first == self.last
    }

    /// What it costs in a `multiport` match.
    fn slots(self) -> usize {
        if self.is_single() { 1 } else { 2 }
    }
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        PortRange {
            first: port,
            last: port,
        }
    }
}

impl FromStr for PortRange {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(text)?, port(text)?),
        };
        if first > last {
            return Err(Error::Reversed(text.to_owned()));
        }
        Ok(PortRange { first, last })
    }
}

/// As iptables writes it: `80`, `100:200`.
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
    let text = text.trim();
    // u16's own parser would take a leading plus.
    if text.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(port) = text.parse()
    {
        return Ok(port);
    }
    Err(Error::Port(text.to_owned()))
}

/// Reads a comma-separated list. Blanks around elements and empty elements do not
/// matter; anything else that is no port or range is an error (upstream drops it and
/// runs the pod with another policy than written, D-12).
pub fn list(text: &str) -> Result<Vec<PortRange>, Error> {
    text.split(',')
        .map(str::trim)
        .filter(|element| !element.is_empty())
        .map(str::parse)
        .collect()
}

/// The same ranges in the same order, each once.
pub fn distinct(ranges: impl IntoIterator<Item = PortRange>) -> Vec<PortRange> {
    let mut seen = Vec::new();
    for range in ranges {
        if !seen.contains(&range) {
            seen.push(range);
        }
    }
    seen
}

/// Splits into groups that each fit one `multiport` match, keeping the order
/// (contract 5.5).
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

/// Comma-separated, as iptables writes it.
pub fn joined(ranges: &[PortRange]) -> String {
    let texts: Vec<String> = ranges.iter().map(PortRange::to_string).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_people_write_them() {
        let cases = [
            ("", ""),
            ("80", "80"),
            ("22-22", "22"),
            ("25-27", "25:27"),
            ("25, 3306 ", "25,3306"),
            ("443,", "443"),
            (" , ", ""),
            ("0", "0"),
            ("0-65535", "0:65535"),
            ("100 - 200", "100:200"),
        ];
        for (text, wanted) in cases {
            assert_eq!(joined(&list(text).unwrap()), wanted, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_port_is_named() {
        let cases = [
            (
                "abc,25",
                "\"abc\" is not a port: a number from 0 to 65535 is wanted",
            ),
            (
                "70000",
                "\"70000\" is not a port: a number from 0 to 65535 is wanted",
            ),
            (
                "+80",
                "\"+80\" is not a port: a number from 0 to 65535 is wanted",
            ),
            (
                "-23",
                "\"\" is not a port: a number from 0 to 65535 is wanted",
            ),
            (
                "1-2-3",
                "\"2-3\" is not a port: a number from 0 to 65535 is wanted",
            ),
            (
                "30-20,5",
                "\"30-20\": the upper bound of a range must not be below the lower",
            ),
        ];
        for (text, wanted) in cases {
            assert_eq!(list(text).unwrap_err().to_string(), wanted, "{text:?}");
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
            let groups: Vec<String> = groups(&list(text).unwrap())
                .iter()
                .map(|group| joined(group))
                .collect();
            assert_eq!(groups, wanted, "{text:?}");
        }
    }
}
