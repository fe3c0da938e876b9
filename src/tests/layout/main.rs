//! Checks the module graph of `src`: which module imports from which; and the one of `testkit` for
//! circles.
//!
//! The rules: no circle at any level, every module of the library on the map in `src/lib.rs`, each
//! importing only from modules above it there, and no import between the modules of [`SEPARATE`].
//! Also checks the pages of faults.

#![allow(clippy::unwrap_used)]

mod faults;
mod graph;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use graph::{Edges, circles, edges};

/// Modules that do not import from each other.
const SEPARATE: [&str; 2] = ["agent", "repair"];

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

fn library() -> Edges {
    edges(&source().join("lib.rs"))
}

fn assert_no_circles(root: &Path) {
    let edges = edges(root);
    assert!(edges.len() > 3, "{} has modules: {edges:?}", root.display());
    let mut parents: BTreeSet<String> = BTreeSet::from([String::new()]);
    parents.extend(edges.keys().cloned());
    for parent in parents {
        let circles = circles(&siblings(&edges, &parent));
        let root = root.display();
        assert!(
            circles.is_empty(),
            "{root}: modules of `{parent}` import in a circle: {circles:?}"
        );
    }
}

#[test]
fn no_module_imports_in_a_circle_at_any_level() {
    assert_no_circles(&source().join("lib.rs"));
}

#[test]
fn no_module_of_testkit_imports_in_a_circle() {
    let testkit = source().with_file_name("testkit").join("src");
    assert_no_circles(&testkit.join("lib.rs"));
    for program in ["bench", "fleet", "matrix", "soak"] {
        assert_no_circles(&testkit.join("bin").join(program).join("main.rs"));
    }
}

/// The modules of the map in `text`, the source of `lib.rs`, in its order.
fn map(text: &str) -> Vec<&str> {
    let entries = text.lines().filter_map(|line| line.strip_prefix("//! - [`"));
    entries.filter_map(|entry| entry.split('`').next()).collect()
}

/// Imports from a module that is not above the importer on the map: `(importer, imported)`.
fn upward(map: &[&str], graph: &Edges) -> Vec<(String, String)> {
    let position = |module: &str| map.iter().position(|entry| *entry == module);
    let imports = graph
        .iter()
        .flat_map(|(importer, modules)| modules.iter().map(move |module| (importer, module)));
    imports
        .filter(|(importer, imported)| position(imported) >= position(importer))
        .map(|(importer, imported)| (importer.clone(), imported.clone()))
        .collect()
}

#[test]
fn each_module_imports_only_from_modules_above_it() {
    let text = fs::read_to_string(source().join("lib.rs")).unwrap();
    let top = siblings(&library(), "");
    assert!(top["plugin"].contains("kube"), "the graph sees imports: {top:?}");
    assert_eq!(upward(&map(&text), &top), []);
    for importer in SEPARATE {
        let found = SEPARATE.iter().find(|module| top[importer].contains(**module));
        assert_eq!(found, None, "{importer} imports from it");
    }
}

#[test]
fn a_circle_and_an_import_from_a_module_below_are_found() {
    let graph = |edges: &[(&str, &str)]| -> Edges {
        let edge = |(from, to): &(&str, &str)| (from.to_string(), BTreeSet::from([to.to_string()]));
        edges.iter().map(edge).collect()
    };
    assert_eq!(circles(&graph(&[("a", "b"), ("b", "c")])), Edges::new());
    let closed = graph(&[("a", "b"), ("b", "c"), ("c", "a")]);
    assert_eq!(circles(&closed), closed);
    let text = "//! - [`a`]: first\n//! - [`b`]: uses [`a`]\n";
    assert_eq!(map(text), ["a", "b"]);
    assert_eq!(upward(&map(text), &graph(&[("b", "a")])), []);
    assert_eq!(upward(&map(text), &graph(&[("a", "b")])), [("a".to_owned(), "b".to_owned())]);
}

/// The modules that `text`, the source of `lib.rs` or its end, declares for Linux.
fn modules_on_linux(text: &str) -> Vec<&str> {
    let (linux, _) = text.split_once("} else {").unwrap();
    let declarations = linux.lines().filter_map(|line| line.trim_start().strip_prefix("pub mod "));
    declarations.filter_map(|rest| rest.strip_suffix(';')).collect()
}

/// The command has to compile on macOS.
#[test]
fn linkerd_cni_imports_no_module_that_only_linux_compiles() {
    let text = fs::read_to_string(source().join("lib.rs")).unwrap();
    let (_, gated) = text.split_once("if #[cfg(target_os = \"linux\")] {").unwrap();
    let gated = BTreeSet::from_iter(modules_on_linux(gated));
    assert!(gated.contains("netlink") && gated.len() > 5, "{gated:?}");
    let parts =
        ["agent::status_body", "agent::subject", "cli::extension", "repair::find::stranded"];
    let compiles = |module: &str| {
        let is_part = |part: &&str| format!("{module}::").starts_with(&format!("{part}::"));
        let top = module.split("::").next().unwrap();
        parts.iter().any(is_part) || !gated.contains(top)
    };
    for (module, imported) in library().iter().filter(|(module, _)| compiles(module)) {
        for other in imported {
            assert!(compiles(other), "{module} imports {other}");
        }
    }
}

/// The page for contributors is for people who look for a place to begin.
#[test]
fn the_maps_name_every_module_and_only_existing_files() {
    let text = fs::read_to_string(source().join("lib.rs")).unwrap();
    let modules = modules_on_linux(&text);
    assert!(modules.len() > 10, "{modules:?}");
    assert_eq!(map(&text).len(), modules.len(), "each entry of the map is a module");

    let repository = source().parent().unwrap();
    let page = fs::read_to_string(repository.join("docs/maintainers/development.md")).unwrap();
    let section = page.split("\n## Map of `src`\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let named: BTreeSet<&str> =
        section.split('`').filter(|text| text.starts_with("src/")).collect();
    let is_there = |path: &&str| repository.join(path).exists();
    assert_eq!(named.iter().find(|path| !is_there(path)), None, "a file of the page is missing");
    for module in modules {
        assert!(map(&text).contains(&module), "src/lib.rs does not name {module}");
        let paths = [format!("src/{module}"), format!("src/{module}.rs")];
        let is_named = paths.iter().any(|path| named.contains(path.as_str()));
        assert!(is_named, "docs/maintainers/development.md does not name src/{module}");
    }
}
