//! Reads which module of a crate imports from which, from its source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::parse::ParseStream;
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemMod, ItemUse, Token, UseTree, braced};

/// Modules by path (`agent::reconcile`), each with the modules that it imports from.
pub type Edges = BTreeMap<String, BTreeSet<String>>;

/// Parses the crate whose root is this file, such as `lib.rs`. Code that only tests compile is left
/// out.
pub fn edges(root: &Path) -> Edges {
    let mut files = BTreeMap::new();
    parse_module(root, root.parent().unwrap(), &[], &mut files);
    let modules: BTreeSet<Vec<String>> = files.keys().cloned().collect();
    let mut edges = Edges::new();
    for (module, file) in &files {
        let mut paths = Paths { module, found: Vec::new() };
        paths.visit_file(file);
        let mut imported = BTreeSet::new();
        for path in &paths.found {
            if let Some(owner) = owner(&modules, path)
                && owner != *module
            {
                imported.insert(owner.join("::"));
            }
        }
        edges.insert(module.join("::"), imported);
    }
    edges.remove("");
    edges
}

/// Parses `file`, which has the module `module`, and the files of the modules that it declares.
/// These files are in `dir`.
fn parse_module(
    file: &Path,
    dir: &Path,
    module: &[String],
    files: &mut BTreeMap<Vec<String>, File>,
) {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let parsed = syn::parse_file(&text).unwrap();
    for name in declared_modules(&parsed.items) {
        let child_dir: PathBuf = dir.join(&name);
        let child_file = child_dir.with_extension("rs");
        let child = [module, &[name]].concat();
        parse_module(&child_file, &child_dir, &child, files);
    }
    files.insert(module.to_vec(), parsed);
}

/// Returns the modules with a file of their own, also those that `cfg_if!` declares for Linux.
fn declared_modules(items: &[Item]) -> Vec<String> {
    let mut names = Vec::new();
    for item in items {
        match item {
            Item::Mod(ItemMod { ident, content: None, attrs, .. }) if !is_test(attrs) => {
                names.push(ident.to_string());
            }
            Item::Macro(call) if call.mac.path.segments.last().unwrap().ident == "cfg_if" => {
                let linux_items = call.mac.parse_body_with(parse_cfg_if).unwrap();
                names.extend(declared_modules(&linux_items));
            }
            _ => {}
        }
    }
    names
}

/// Parses the body of `cfg_if!`. Returns the items of its first branch.
fn parse_cfg_if(body: ParseStream<'_>) -> syn::Result<Vec<Item>> {
    body.parse::<Token![if]>()?;
    body.call(Attribute::parse_outer)?;
    let items = parse_branch(body)?;
    body.parse::<Token![else]>()?;
    parse_branch(body)?;
    Ok(items)
}

fn parse_branch(body: ParseStream<'_>) -> syn::Result<Vec<Item>> {
    let branch;
    braced!(branch in body);
    let mut items = Vec::new();
    while !branch.is_empty() {
        items.push(branch.parse()?);
    }
    Ok(items)
}

/// Whether only tests compile the item. An item with another condition counts as compiled.
fn is_test(attributes: &[Attribute]) -> bool {
    let mut conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.any(|cfg| cfg.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test"))
}

/// Returns the module that contains the item with this path: the longest prefix of the path that is
/// a module.
fn owner(modules: &BTreeSet<Vec<String>>, path: &[String]) -> Option<Vec<String>> {
    for length in (1..=path.len()).rev() {
        let prefix = &path[..length];
        if modules.contains(prefix) {
            return Some(prefix.to_vec());
        }
    }
    None
}

/// Collects the paths in one module's code, as absolute paths within the crate.
struct Paths<'m> {
    module: &'m [String],
    found: Vec<Vec<String>>,
}

impl Paths<'_> {
    /// Adds a path, which may begin with `crate`, `super` or `self`.
    fn add(&mut self, path: &[String]) {
        if path.first().is_some_and(|segment| segment == "crate") {
            self.found.push(path[1..].to_vec());
            return;
        }
        // Each `super` leads to the parent of the module.
        let supers = path.iter().take_while(|segment| *segment == "super").count();
        let mut absolute_path = self.module.to_vec();
        absolute_path.truncate(self.module.len().saturating_sub(supers));
        for segment in &path[supers..] {
            if segment != "self" {
                absolute_path.push(segment.clone());
            }
        }
        self.found.push(absolute_path);
    }

    /// Adds the paths of a `use` declaration. `prefix` is the path before `tree`.
    fn add_tree(&mut self, tree: &UseTree, prefix: &[String]) {
        let append = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_tree(&path.tree, &append(&path.ident)),
            UseTree::Name(name) => self.add(&append(&name.ident)),
            UseTree::Rename(rename) => self.add(&append(&rename.ident)),
            UseTree::Glob(_) => self.add(prefix),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_tree(tree, prefix);
                }
            }
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            self.add(&segments);
        }
        visit::visit_path(self, path);
    }
}

/// Returns the modules that import from a circle. Empty if there is no circle.
pub fn circles(edges: &Edges) -> Edges {
    let mut candidates = edges.clone();
    loop {
        // A module that imports from no candidate is in no circle.
        let importers: BTreeSet<String> = candidates.keys().cloned().collect();
        candidates.retain(|_, imported| !imported.is_disjoint(&importers));
        if candidates.len() == importers.len() {
            return candidates;
        }
    }
}
