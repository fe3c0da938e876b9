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
    read(root, root.parent().unwrap(), &[], &mut files);
    let modules: BTreeSet<Vec<String>> = files.keys().cloned().collect();
    let mut edges = Edges::new();
    for (module, file) in &files {
        let mut paths = Paths { module, found: Vec::new() };
        paths.visit_file(file);
        let imported = paths.found.iter().filter_map(|path| owner(&modules, path));
        let imported = imported.filter(|owner| owner != module).map(|owner| owner.join("::"));
        edges.insert(module.join("::"), imported.collect());
    }
    edges.remove("");
    edges
}

/// Parses `file`, the module `module`, and the modules that it declares.
fn read(file: &Path, dir: &Path, module: &[String], files: &mut BTreeMap<Vec<String>, File>) {
    let parsed = fs::read_to_string(file).map(|text| syn::parse_file(&text).unwrap());
    let parsed = parsed.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for name in declared_modules(&parsed.items) {
        let below: PathBuf = dir.join(&name);
        let path = [module, &[name]].concat();
        read(&below.with_extension("rs"), &below, &path, files);
    }
    files.insert(module.to_vec(), parsed);
}

/// The modules with a file of their own, also those that `cfg_if!` declares for Linux.
fn declared_modules(items: &[Item]) -> Vec<String> {
    let mut names = Vec::new();
    for item in items {
        match item {
            Item::Mod(ItemMod { ident, content: None, attrs, .. }) if !is_test(attrs) => {
                names.push(ident.to_string());
            }
            Item::Macro(call) if call.mac.path.segments.last().unwrap().ident == "cfg_if" => {
                let linux = call.mac.parse_body_with(first_branch).unwrap();
                names.extend(declared_modules(&linux));
            }
            _ => {}
        }
    }
    names
}

/// The items of the first branch of `cfg_if!`.
fn first_branch(body: ParseStream<'_>) -> syn::Result<Vec<Item>> {
    body.parse::<Token![if]>()?;
    body.call(Attribute::parse_outer)?;
    let items = branch(body)?;
    body.parse::<Token![else]>()?;
    branch(body)?;
    Ok(items)
}

fn branch(body: ParseStream<'_>) -> syn::Result<Vec<Item>> {
    let branch;
    braced!(branch in body);
    let mut items = Vec::new();
    while !branch.is_empty() {
        items.push(branch.parse()?);
    }
    Ok(items)
}

/// Code with another condition counts as compiled.
fn is_test(attributes: &[Attribute]) -> bool {
    let mut conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.any(|cfg| cfg.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test"))
}

/// The longest prefix of `path` that is a module.
fn owner(modules: &BTreeSet<Vec<String>>, path: &[String]) -> Option<Vec<String>> {
    (1..=path.len()).rev().map(|end| path[..end].to_vec()).find(|prefix| modules.contains(prefix))
}

/// Collects the paths in one module's code, as absolute paths within the crate.
struct Paths<'m> {
    module: &'m [String],
    found: Vec<Vec<String>>,
}

impl Paths<'_> {
    fn add(&mut self, path: &[String]) {
        let supers = path.iter().take_while(|segment| *segment == "super").count();
        let base = match path.first().map(String::as_str) {
            Some("crate") => return self.found.push(path[1..].to_vec()),
            Some("super") => &self.module[..self.module.len().saturating_sub(supers)],
            _ => self.module,
        };
        let rest = path.iter().skip(supers).filter(|segment| *segment != "self");
        self.found.push(base.iter().chain(rest).cloned().collect());
    }

    fn add_tree(&mut self, tree: &UseTree, prefix: &[String]) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_tree(&path.tree, &with(&path.ident)),
            UseTree::Name(name) => self.add(&with(&name.ident)),
            UseTree::Rename(rename) => self.add(&with(&rename.ident)),
            UseTree::Glob(_) => self.add(prefix),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(tree, prefix))
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

/// What is left of `edges` without the modules that import from no circle: nothing if there is
/// none.
pub fn circles(edges: &Edges) -> Edges {
    let mut left = edges.clone();
    loop {
        let importers: BTreeSet<String> = left.keys().cloned().collect();
        left.retain(|_, imported| !imported.is_disjoint(&importers));
        if left.len() == importers.len() {
            return left;
        }
    }
}
