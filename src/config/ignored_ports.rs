//! Invalid elements of a pod's lists of ports and interfaces.
//!
//! [`Config::resolve`](super::Config::resolve) ignores and reports them. If the plugin entry has
//! `strict-annotations`, it fails the pod instead.

use std::fmt;

use serde::Serialize;

use crate::pod::annotation::{self, ValueKind};
use crate::quote::{self, quote};
use crate::redirect::{interfaces, ports};

pub const OUTBOUND_KEY: &str = "outbound-ports-to-ignore";
pub const INBOUND_KEY: &str = "inbound-ports-to-ignore";
pub const INNER_KEY: &str = "inner-interfaces";

/// Keys of the plugin entry whose invalid elements are ignored.
const KEYS: [&str; 3] = [OUTBOUND_KEY, INBOUND_KEY, INNER_KEY];

/// Returns the annotations and the keys of the plugin entry whose invalid elements are ignored.
pub fn sources() -> impl Iterator<Item = &'static str> {
    let annotations = annotation::TABLE.iter().filter(|row| match row.value {
        ValueKind::PortList | ValueKind::ProxyPort | ValueKind::InterfaceList => true,
        ValueKind::SubnetList | ValueKind::Id => false,
    });
    annotations.map(|row| row.key).chain(KEYS)
}

/// Maximum number of elements that logs and Events name. A list may contain hundreds of thousands
/// of invalid elements.
const MAX_NAMED_ELEMENTS: usize = 10;

/// Describes valid values of an annotation that holds one port, for error messages.
pub(super) const PORT_GRAMMAR: &str = "a port from 1 to 65535";

/// The invalid elements of one list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ignored {
    /// The annotation or the key of the plugin entry, one of [`sources`].
    pub source: &'static str,
    /// The first elements, each shortened.
    pub elements: Vec<String>,
    /// Number of further elements.
    pub more: usize,
}

impl Ignored {
    /// Adds an element in a shortened form. If there are already [`MAX_NAMED_ELEMENTS`], only
    /// counts the element.
    pub(super) fn add(&mut self, element: &str) {
        if self.elements.len() < MAX_NAMED_ELEMENTS {
            self.elements.push(quote::cut(element));
        } else {
            self.more += 1;
        }
    }

    /// Returns true if the list comes from an annotation, not from the plugin entry.
    pub fn is_annotated(&self) -> bool {
        !KEYS.contains(&self.source)
    }

    /// Describes valid elements of the list.
    pub fn grammar(&self) -> &'static str {
        if self.source == INNER_KEY {
            return interfaces::GRAMMAR;
        }
        match annotation::redirect_annotation(self.source).map(|row| row.value) {
            Some(ValueKind::ProxyPort) => PORT_GRAMMAR,
            Some(ValueKind::InterfaceList) => interfaces::GRAMMAR,
            _ => ports::GRAMMAR,
        }
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut named: Vec<String> = self.elements.iter().map(|text| quote(text)).collect();
        if self.more > 0 {
            named.push(format!("{} more", self.more));
        }
        write!(f, "ignored in {}: {}", self.source, named.join(", "))
    }
}

/// Shortens lists for logs and Events to [`MAX_NAMED_ELEMENTS`] elements in total.
pub fn cut(lists: Vec<Ignored>) -> Vec<Ignored> {
    cut_to(lists, MAX_NAMED_ELEMENTS)
}

/// Keeps the first `limit` elements of all lists together, and counts the others. Shortens each
/// element that it keeps.
pub fn cut_to(mut lists: Vec<Ignored>, limit: usize) -> Vec<Ignored> {
    let mut remaining = limit;
    for list in &mut lists {
        let kept = list.elements.len().min(remaining);
        remaining -= kept;
        list.more = list.more.saturating_add(list.elements.len() - kept);
        list.elements.truncate(kept);
        for text in &mut list.elements {
            *text = quote::cut(text);
        }
    }
    lists
}

/// Returns all lists on one line. `None` if `lists` is empty.
pub fn summary(lists: &[Ignored]) -> Option<String> {
    if lists.is_empty() {
        return None;
    }
    let lists: Vec<String> = lists.iter().map(ToString::to_string).collect();
    Some(lists.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(source: usize, elements: &[&str]) -> Ignored {
        Ignored {
            source: sources().nth(source).unwrap(),
            elements: elements.iter().map(|text| (*text).to_owned()).collect(),
            more: 0,
        }
    }

    #[test]
    fn ten_ignored_elements_are_quoted_and_the_others_counted() {
        let cut = cut(vec![list(0, &["x"; 8]), list(1, &["y"; 8]), list(8, &["z"; 8])]);
        let counts: Vec<_> = cut.iter().map(|list| (list.elements.len(), list.more)).collect();
        assert_eq!(counts, [(8, 0), (2, 6), (0, 8)]);
        assert_eq!(cut[2].to_string(), "ignored in inbound-ports-to-ignore: 8 more");
        let mut long = list(0, &[]);
        for _ in 0..50_000 {
            long.add("x");
        }
        assert_eq!((long.elements.len(), long.more), (10, 49_990));
    }
}
