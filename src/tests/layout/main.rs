//! Checks which module of `src` imports from which. The rules:
//!
//! - no module imports in a circle, at any level, also in `testkit`;
//! - every module of the library is on the map in `src/lib.rs`;
//! - each module imports only from modules above it on the map;
//! - the modules of [`SEPARATE`] do not import from each other.
//!
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

/// Returns the first `depth` segments of a module's path.
fn ancestor(module: &str, depth: usize) -> String {
    module.split("::").take(depth).collect::<Vec<_>>().join("::")
}

/// Returns the child of `parent` that contains the module. `None`: the module is not inside of
/// `parent`.
fn child_of(parent: &str, module: &str) -> Option<String> {
    if parent.is_empty() {
        return Some(ancestor(module, 1));
    }
    if !module.starts_with(&format!("{parent}::")) {
        return None;
    }
    let parent_depth = parent.split("::").count();
    Some(ancestor(module, parent_depth + 1))
}

/// Returns the graph between the children of `parent`. Each child stands for all modules inside of
/// it.
fn siblings(edges: &Edges, parent: &str) -> Edges {
    let mut graph = Edges::new();
    for (importer, imported) in edges {
        for module in imported {
            if let (Some(from), Some(to)) = (child_of(parent, importer), child_of(parent, module))
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

/// Returns the modules of the map in `text`, the source of `lib.rs`, in the order of the map.
fn map(text: &str) -> Vec<&str> {
    let entries = text.lines().filter_map(|line| line.strip_prefix("//! - [`"));
    entries.filter_map(|entry| entry.split('`').next()).collect()
}

/// Returns the imports from a module that is not above the importer on the map. Each has the
/// importer and the imported module.
fn imports_from_below(map: &[&str], graph: &Edges) -> Vec<(String, String)> {
    let position = |module: &str| map.iter().position(|entry| *entry == module);
    let mut imports = Vec::new();
    for (importer, modules) in graph {
        for imported in modules {
            if position(imported) >= position(importer) {
                imports.push((importer.clone(), imported.clone()));
            }
        }
    }
    imports
}

#[test]
fn each_module_imports_only_from_modules_above_it() {
    let text = fs::read_to_string(source().join("lib.rs")).unwrap();
    let top = siblings(&library(), "");
    assert!(top["plugin"].contains("kube"), "the graph sees imports: {top:?}");
    assert_eq!(imports_from_below(&map(&text), &top), []);
    for importer in SEPARATE {
        let found = SEPARATE.iter().find(|module| top[importer].contains(**module));
        assert_eq!(found, None, "{importer} imports from it");
    }
}

#[test]
fn layout_check_finds_a_circle_and_an_import_from_below() {
    assert_eq!(circles(&graph(&[("a", "b"), ("b", "c")])), Edges::new());
    let circle = graph(&[("a", "b"), ("b", "c"), ("c", "a")]);
    assert_eq!(circles(&circle), circle);
    let text = "//! - [`a`]: first\n//! - [`b`]: uses [`a`]\n";
    assert_eq!(map(text), ["a", "b"]);
    assert_eq!(imports_from_below(&map(text), &graph(&[("b", "a")])), []);
    let upward_import = ("a".to_owned(), "b".to_owned());
    assert_eq!(imports_from_below(&map(text), &graph(&[("a", "b")])), [upward_import]);
}

/// Makes a graph in which each importer imports from one module.
fn graph(imports: &[(&str, &str)]) -> Edges {
    let mut graph = Edges::new();
    for (importer, imported) in imports {
        graph.insert((*importer).to_owned(), BTreeSet::from([(*imported).to_owned()]));
    }
    graph
}

/// Returns the modules that `text`, the source of `lib.rs` or its end, declares for Linux.
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
    // Parts of these modules that every system compiles.
    let parts =
        ["agent::status_body", "agent::subject", "cli::extension", "repair::find::stranded"];
    let is_portable = |module: &str| {
        let is_part = |part: &&str| format!("{module}::").starts_with(&format!("{part}::"));
        let top = module.split("::").next().unwrap();
        parts.iter().any(is_part) || !gated.contains(top)
    };
    for (module, imported) in library() {
        if !is_portable(&module) {
            continue;
        }
        for other in imported {
            assert!(is_portable(&other), "{module} imports {other}");
        }
    }
}

#[test]
fn maps_name_every_module_and_only_existing_files() {
    let text = fs::read_to_string(source().join("lib.rs")).unwrap();
    let modules = modules_on_linux(&text);
    assert!(modules.len() > 10, "{modules:?}");
    assert_eq!(map(&text).len(), modules.len(), "each entry of the map is a module");

    let repository = source().parent().unwrap();
    let page = fs::read_to_string(repository.join("docs/maintainers/development.md")).unwrap();
    let section = page.split("\n## Map of `src`\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let named: BTreeSet<&str> =
        section.split('`').filter(|text| text.starts_with("src/")).collect();
    let missing = named.iter().find(|path| !repository.join(path).exists());
    assert_eq!(missing, None, "a file of the page is missing");
    for module in modules {
        assert!(map(&text).contains(&module), "src/lib.rs does not name {module}");
        let paths = [format!("src/{module}"), format!("src/{module}.rs")];
        let is_named = paths.iter().any(|path| named.contains(path.as_str()));
        assert!(is_named, "docs/maintainers/development.md does not name src/{module}");
    }
}
