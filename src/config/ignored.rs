//! What has no effect of the lists that a pod's rules are made of.

use std::fmt;

use serde::Serialize;

use super::annotation;
use crate::ports;
use crate::quote::quote;

/// Keys of the plugin entry whose bad elements are ignored.
pub const OUTBOUND_KEY: &str = "outbound-ports-to-ignore";
pub const INBOUND_KEY: &str = "inbound-ports-to-ignore";

/// Where ignored elements can stand: annotations, and keys of the plugin entry.
pub const SOURCES: [&str; 8] = [
    annotation::SKIP_OUTBOUND_PORTS,
    annotation::SKIP_INBOUND_PORTS,
    annotation::INBOUND_PORT,
    annotation::OUTBOUND_PORT,
    annotation::CONTROL_PORT,
    annotation::ADMIN_PORT,
    OUTBOUND_KEY,
    INBOUND_KEY,
];

/// Grammar of an annotation that is one port.
pub(super) const ONE_PORT: &str = "a port from 1 to 65535";

/// How many elements [`cut`] leaves, and how much of each, in characters.
const ELEMENTS: usize = 10;
const ELEMENT_LENGTH: usize = 100;

/// The ignored elements of one list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ignored {
    /// One of [`SOURCES`].
    pub source: &'static str,
    pub elements: Vec<String>,
    /// How many elements are ignored besides these.
    pub more: usize,
}

impl Ignored {
    /// Whether the elements are the pod's or its namespace's, not the plugin entry's.
    pub fn is_annotated(&self) -> bool {
        ![OUTBOUND_KEY, INBOUND_KEY].contains(&self.source)
    }

    /// What may stand there.
    pub fn grammar(&self) -> &'static str {
        match annotation::PROXY_PORTS.contains(&self.source) {
            true => ONE_PORT,
            false => ports::GRAMMAR,
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

/// Shortens what others wrote: ten elements of all lists together are named, each cut.
pub fn cut(lists: Vec<Ignored>) -> Vec<Ignored> {
    let mut room = ELEMENTS;
    let shorten = |mut list: Ignored| {
        let named = list.elements.len().min(room);
        room -= named;
        list.more = list.more.saturating_add(list.elements.len() - named);
        list.elements.truncate(named);
        for text in &mut list.elements {
            *text = text.chars().take(ELEMENT_LENGTH).collect();
        }
        list
    };
    lists.into_iter().map(shorten).collect()
}

/// All lists on one line; `None` if there is none.
pub fn in_words(lists: &[Ignored]) -> Option<String> {
    let lists: Vec<String> = lists.iter().map(ToString::to_string).collect();
    (!lists.is_empty()).then(|| lists.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(source: usize, elements: &[&str]) -> Ignored {
        Ignored {
            source: SOURCES[source],
            elements: elements.iter().map(|text| (*text).to_owned()).collect(),
            more: 0,
        }
    }

    #[test]
    fn ignored_elements_are_named_on_one_line() {
        assert_eq!(in_words(&[]), None);
        let lists = [list(0, &["http", "30-20"]), list(7, &["a\nb"])];
        assert_eq!(
            in_words(&lists).unwrap(),
            "ignored in config.linkerd.io/skip-outbound-ports: \"http\", \"30-20\"; \
             ignored in inbound-ports-to-ignore: \"a\\nb\""
        );
    }

    #[test]
    fn ten_elements_are_named_and_the_others_counted() {
        let cut = cut(vec![
            list(0, &["x"; 8]),
            list(1, &["y"; 8]),
            list(7, &["z"; 8]),
        ]);
        let counts: Vec<_> = cut
            .iter()
            .map(|list| (list.elements.len(), list.more))
            .collect();
        assert_eq!(counts, [(8, 0), (2, 6), (0, 8)]);
        assert_eq!(
            cut[2].to_string(),
            "ignored in inbound-ports-to-ignore: 8 more"
        );
    }
}
