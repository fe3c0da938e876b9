//! Files of the project that have to agree: Rust version, dependencies and workflows.

use std::fs;
use std::path::{Path, PathBuf};

use crate::repository;

fn read(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn workflows() -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(".github/workflows")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn every_build_uses_the_rust_version_of_cargo_toml() {
    let manifest = read("Cargo.toml");
    let version = manifest.split("rust-version = \"").nth(1).unwrap().split('"').next().unwrap();
    assert!(read("Dockerfile").contains(&format!("FROM rust:{version}-alpine")));
    for path in workflows() {
        for rest in read(&path).split("image: rust:").skip(1) {
            let used = rest.lines().next().unwrap();
            assert_eq!(used, format!("{version}-bookworm"), "{}", path.display());
        }
    }
}

#[test]
fn every_action_is_pinned_to_a_commit() {
    let mut found = 0;
    for path in workflows() {
        for rest in read(&path).split("uses: ").skip(1) {
            let action = rest.lines().next().unwrap();
            let commit = action.split('@').nth(1).unwrap_or_default();
            let is_hash = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(is_hash, "{}: {action}", path.display());
            found += 1;
        }
    }
    assert!(found > 5, "{found}");
}

#[test]
fn every_direct_dependency_has_a_reason() {
    let manifest = read("Cargo.toml");
    let section = manifest.split("[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let page = read("docs/dependencies.md");
    let rows: String = page.lines().filter(|line| line.starts_with("| `")).collect();
    let names = section.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
    for name in names.filter(|name| !name.starts_with('#')) {
        assert!(rows.contains(&format!("`{name}`")), "{name} has no row in docs/dependencies.md");
    }
}
