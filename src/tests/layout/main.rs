//! Checks the module graph of `src`: which module imports from which.
//!
//! The rules: no circle, no import listed in [`FORBIDDEN`], and every module of the library on the
//! map in `src/lib.rs`.

#![allow(clippy::unwrap_used)]

mod graph;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use graph::{Edges, circle, edges};

/// `(importer, imported)`: imports that must not exist.
const FORBIDDEN: [(&str, &str); 8] = [
    ("repair", "agent"),
    ("agent", "repair"),
    ("netns", "firewall"),
    ("netlink", "firewall"),
    ("plugin", "agent"),
    ("conflist", "agent"),
    ("files", "agent"),
    ("kube", "agent"),
];

fn source() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
}

/// The first `depth` segments of a module's path.
fn ancestor(module: &str, depth: usize) -> String {
    module.split("::").take(depth).collect::<Vec<_>>().join("::")
}

/// The graph between the children of `parent`, each standing for all modules below it.
fn siblings(edges: &Edges, parent: &str) -> Edges {
    let depth = if parent.is_empty() { 1 } else { parent.split("::").count() + 1 };
    let below = |module: &str| {
        let inside = parent.is_empty() || module.starts_with(&format!("{parent}::"));
        inside.then(|| ancestor(module, depth))
    };
    let mut graph = Edges::new();
    for (importer, imported) in edges {
        for module in imported {
            if let (Some(from), Some(to)) = (below(importer), below(module))
                && from != to
            {
                graph.entry(from).or_default().insert(to);
            }
        }
    }
    graph
}

#[test]
fn no_module_imports_in_a_circle_at_any_level() {
    let edges = edges(source());
    let mut parents: BTreeSet<String> = BTreeSet::from([String::new()]);
    parents.extend(edges.keys().cloned());
    for parent in parents {
        let circle = circle(&siblings(&edges, &parent));
        assert_eq!(circle, None, "modules of `{parent}` import from each other in a circle");
    }
}

#[test]
fn no_module_imports_from_one_that_stands_above_it() {
    let top = siblings(&edges(source()), "");
    assert!(top["plugin"].contains("kube"), "the graph sees imports: {top:?}");
    for (importer, imported) in FORBIDDEN {
        let found = top.get(importer).is_some_and(|modules| modules.contains(imported));
        assert!(!found, "{importer} imports from {imported}");
    }
}

#[test]
fn a_circle_is_found() {
    let edge = |from: &str, to: &str| (from.to_owned(), BTreeSet::from([to.to_owned()]));
    let open: Edges = BTreeMap::from([edge("a", "b"), edge("b", "c")]);
    assert_eq!(circle(&open), None);
    let closed: Edges = BTreeMap::from([edge("a", "b"), edge("b", "c"), edge("c", "a")]);
    assert_eq!(circle(&closed), Some(vec!["a".into(), "b".into(), "c".into()]));
}

#[test]
fn every_module_of_the_library_has_a_line_on_its_map() {
    let text = fs::read_to_string(source().join("lib.rs")).unwrap();
    let map: Vec<&str> = text.lines().filter(|line| line.starts_with("//!")).collect();
    let modules: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "))
        .map(|rest| rest.trim_end_matches(';'))
        .collect();
    assert!(modules.len() > 10, "{modules:?}");
    for module in modules {
        let entry = format!("[`{module}`]");
        let lines = map.iter().filter(|line| line.contains(&entry)).count();
        assert_eq!(lines, 1, "{entry} on the map in src/lib.rs");
    }
}
