//! `scripts/release.d/check` and `scripts/release.d/reproduce --commit`, on small repositories.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use tempfile::TempDir;
use testkit::table;

use crate::{must, printed, repository};

const CHANGELOG: &str = "# Changelog\n\n## [Unreleased]\n\n## [2.1.0] - 2026-12-24\n\n- A change.\n\n## [2.0.0] - 2026-12-01\n\n- First.\n";
const CHART: &str = "charts/linkerd2-cni/Chart.yaml";

/// A small committed repository with copies of this project's scripts.
pub struct Checkout(TempDir);

impl Checkout {
    /// Creates a repository with copies of these scripts, and without commits.
    pub fn with(scripts: &[&str]) -> Checkout {
        let checkout = Checkout(TempDir::new().unwrap());
        for name in scripts {
            fs::create_dir_all(checkout.path(name).parent().unwrap()).unwrap();
            fs::copy(repository().join(name), checkout.path(name)).unwrap();
        }
        checkout.git(&["init", "--quiet"]);
        checkout
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, and its directory if that is missing.
    pub fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs git and returns what it prints.
    pub fn git(&self, args: &[&str]) -> String {
        let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
        let output = must(Command::new("git").current_dir(&self.0).args(identity).args(args));
        output.trim_end().to_owned()
    }

    pub fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "A change"]);
    }
}

impl AsRef<Path> for Checkout {
    fn as_ref(&self) -> &Path {
        self.0.path()
    }
}

/// Creates a committed repository with the files that the check reads. It has version 2.1.0, and
/// the tag v2.0.0 on an earlier commit.
fn create_tree() -> Checkout {
    let scripts = ["scripts/common", "scripts/release.d/check", "scripts/release.d/reproduce"];
    let tree = Checkout::with(&scripts);
    tree.write("CHANGELOG.md", "# Changelog\n\n## [2.0.0] - 2026-12-01\n\n- First.\n");
    set_versions(&tree, "2.0.0", "2026.12.0");
    tree.commit();
    tree.git(&["tag", "v2.0.0"]);
    tree.write("CHANGELOG.md", CHANGELOG);
    set_versions(&tree, "2.1.0", "2026.12.1");
    tree.commit();
    tree
}

fn set_versions(tree: &Checkout, version: &str, chart: &str) {
    tree.write("Cargo.toml", &format!("[package]\nversion = \"{version}\"\n"));
    tree.write(CHART, &format!("version: {chart}\nappVersion: \"v{version}\"\n"));
}

/// Runs the check. Returns what it prints if it refuses.
fn refusal(tree: &Checkout, args: &[&str]) -> Option<String> {
    let check = tree.path("scripts/release.d/check");
    let output = Command::new(check).args(args).output().unwrap();
    if output.status.success() { None } else { Some(printed(&output)) }
}

/// Runs the check. Fails unless it refuses for this reason.
fn must_refuse(tree: &Checkout, args: &[&str], reason: &str) {
    let Some(refusal) = refusal(tree, args) else {
        panic!("{args:?} is not refused: {reason}");
    };
    assert!(refusal.contains(reason), "{reason}: {refusal}");
}

#[test]
fn version_is_released_if_it_is_new_and_in_the_changelog() {
    let tree = create_tree();
    assert_eq!(refusal(&tree, &["2.1.0"]), None);
    // CI releases a commit that has the tag already.
    tree.git(&["tag", "v2.1.0"]);
    assert_eq!(refusal(&tree, &["2.1.0"]), None);
    tree.git(&["tag", "--delete", "v2.1.0"]);
    // A release is above its pre-releases, and 2.10 above 2.9.
    let after_candidate = CHANGELOG.replace("2.0.0", "2.1.0-rc.2");
    let two_digits = CHANGELOG.replace("2.0.0", "2.9.0").replace("2.1.0", "2.10.0");
    for (name, (version, changelog)) in table::named([
        ("after a release candidate", ("2.1.0", after_candidate)),
        ("with two digits", ("2.10.0", two_digits)),
    ]) {
        set_versions(&tree, version, "2026.12.1");
        tree.write("CHANGELOG.md", &changelog);
        tree.commit();
        assert_eq!(refusal(&tree, &[version]), None, "{name}");
    }
}

#[test]
fn version_of_this_tree_is_in_the_changelog() {
    let tree = create_tree();
    tree.git(&["tag", "--delete", "v2.0.0"]);
    for file in ["CHANGELOG.md", "Cargo.toml", CHART] {
        fs::copy(repository().join(file), tree.path(file)).unwrap();
    }
    tree.commit();
    assert_eq!(refusal(&tree, &[crate::VERSION]), None);
}

#[test]
fn uncommitted_changes_are_not_released() {
    let tree = create_tree();
    tree.write("new", "");
    must_refuse(&tree, &["2.1.0"], "?? new");
    tree.commit();
    tree.write("new", "changed");
    must_refuse(&tree, &["2.1.0"], " M new");
}

const REFUSED: &str = include_str!("refused.yaml");

/// A row of `files` in `refused.yaml`: with a file or with a replacement in the changelog.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRow {
    version: String,
    file: Option<WrittenFile>,
    changelog: Option<Replacement>,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFile {
    name: String,
    text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Replacement {
    from: String,
    to: String,
}

/// A row of `versions` in `refused.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VersionRow {
    version: String,
    reason: String,
}

#[test]
fn version_is_refused_with_the_reason() {
    let tree = create_tree();
    for (_name, row) in table::rows_of::<FileRow>(REFUSED, "files") {
        if let Some(file) = &row.file {
            tree.write(&file.name, &file.text);
        }
        if let Some(Replacement { from, to }) = &row.changelog {
            tree.write("CHANGELOG.md", &CHANGELOG.replace(from, to));
        }
        tree.commit();
        must_refuse(&tree, &[&row.version], &row.reason);
        tree.git(&["reset", "--quiet", "--hard", "HEAD^"]);
    }
    for version in ["v2.1.0", "2.1", "latest", "2.1.0 ", "02.1.0"] {
        must_refuse(&tree, &[version], "is not a version such as");
    }
    for (_name, row) in table::rows_of::<VersionRow>(REFUSED, "versions") {
        set_versions(&tree, &row.version, "2026.12.1");
        tree.write("CHANGELOG.md", &CHANGELOG.replace("2.1.0", &row.version));
        tree.commit();
        must_refuse(&tree, &[&row.version], &row.reason);
    }
    // A tag counts, even if the changelog lacks it.
    set_versions(&tree, "2.1.0", "2026.12.1");
    tree.git(&["tag", "v3.0.0", "v2.0.0"]);
    must_refuse(&tree, &["2.1.0"], "2.1.0 is not above 3.0.0");
    fs::remove_file(tree.path("CHANGELOG.md")).unwrap();
    must_refuse(&tree, &["2.1.0"], "CHANGELOG.md is missing");
}

#[test]
fn release_of_uncommitted_files_is_built_from_a_child_commit() {
    let tree = create_tree();
    let head = tree.git(&["rev-parse", "HEAD"]);
    let commit = || {
        let mut script = Command::new(tree.path("scripts/release.d/reproduce"));
        must(script.arg("--commit")).trim_end().to_owned()
    };
    assert_eq!(commit(), head);

    tree.write("new", "a");
    let child = commit();
    assert_eq!(tree.git(&["rev-parse", &format!("{child}^")]), head);
    assert_eq!(tree.git(&["show", &format!("{child}:new")]), "a");
    // The tree is as before.
    assert_eq!(tree.git(&["rev-parse", "HEAD"]), head);
    assert_eq!(tree.git(&["status", "--porcelain"]), "?? new");
}

/// A row of `unpublished.yaml`, whose name is the path of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnpublishedText {
    refused: Vec<String>,
    text: String,
}

#[test]
fn version_is_not_published_if_a_text_says_unpublished() {
    let tree = create_tree();
    let publish = ["2.1.0", "--publish"];
    let digest = "a".repeat(64);
    tree.write(".github/workflows/release.yml", &format!("image: rust:1@sha256:{digest}\n"));
    tree.write("Dockerfile", &format!("FROM rust:1@sha256:{digest}\nFROM scratch\n"));
    tree.commit();
    assert_eq!(refusal(&tree, &publish), None);

    let mut reasons = vec!["\"Unreleased\"".to_owned()];
    for (file, row) in table::rows::<UnpublishedText>(include_str!("unpublished.yaml")) {
        tree.write(&file, &row.text.replace("SUM", &digest).replace("CUT", &digest[1..]));
        reasons.extend(row.refused);
    }
    tree.write("CHANGELOG.md", &CHANGELOG.replace("[Unreleased]\n", "[Unreleased]\n\n- Later.\n"));
    tree.commit();
    assert_eq!(refusal(&tree, &["2.1.0"]), None);
    let refused = refusal(&tree, &publish).unwrap();
    for reason in reasons {
        assert!(refused.contains(&reason), "{reason}: {refused}");
    }
}
