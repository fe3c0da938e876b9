//! `scripts/release.d/check`, on small repositories.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::{must, repository, said};

/// A committed repository with the files that the check reads, at version 2.1.0 after the tag v2.0.0.
struct Tree(TempDir);

const CHANGELOG: &str = "# Changelog\n\n## [Unreleased]\n\n## [2.1.0] - 2026-12-24\n\n- A change.\n\n## [2.0.0] - 2026-12-01\n\n- First.\n";

impl Tree {
    fn new() -> Self {
        let tree = Tree(TempDir::new().unwrap());
        for file in ["scripts/common", "scripts/release.d/check", "scripts/release.d/tree-commit"] {
            let to = tree.path().join(file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(repository().join(file), to).unwrap();
        }
        fs::create_dir_all(tree.path().join("charts/linkerd2-cni")).unwrap();
        tree.git(&["init", "--quiet"]);
        tree.write("CHANGELOG.md", "# Changelog\n\n## [2.0.0] - 2026-12-01\n\n- First.\n");
        tree.set_versions("2.0.0", "2026.12.0");
        tree.commit();
        tree.git(&["tag", "v2.0.0"]);
        tree.write("CHANGELOG.md", CHANGELOG);
        tree.set_versions("2.1.0", "2026.12.1");
        tree.commit();
        tree
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn git(&self, args: &[&str]) {
        let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
        must(Command::new("git").current_dir(self.path()).args(identity).args(args));
    }

    fn printed(&self, program: &str, args: &[&str]) -> String {
        let output = must(Command::new(program).current_dir(self.path()).args(args));
        String::from_utf8(output).unwrap().trim_end().to_owned()
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path().join(file), text).unwrap();
    }

    fn set_versions(&self, version: &str, chart: &str) {
        self.write("Cargo.toml", &format!("[package]\nversion = \"{version}\"\n"));
        let chart = format!("version: {chart}\nappVersion: \"v{version}\"\n");
        self.write("charts/linkerd2-cni/Chart.yaml", &chart);
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", "A change"]);
    }

    /// Returns what the check says if it refuses the version.
    fn refusal(&self, version: &str) -> Option<String> {
        self.refusal_of(&[version])
    }

    fn refusal_of(&self, args: &[&str]) -> Option<String> {
        let check = self.path().join("scripts/release.d/check");
        let output = Command::new(check).args(args).output().unwrap();
        (!output.status.success()).then(|| said(&output))
    }

    fn must_refuse(&self, version: &str, reason: &str) {
        let refusal = self.refusal(version).expect("the version is refused");
        assert!(refusal.contains(reason), "{refusal}");
    }
}

#[test]
fn a_version_above_the_last_tag_with_an_entry_is_released() {
    let tree = Tree::new();
    assert_eq!(tree.refusal("2.1.0"), None);
    // CI releases a commit that has the tag already.
    tree.git(&["tag", "v2.1.0"]);
    assert_eq!(tree.refusal("2.1.0"), None);
}

#[test]
fn this_tree_has_one_version_and_its_entry() {
    let tree = Tree::new();
    tree.git(&["tag", "--delete", "v2.0.0"]);
    for file in ["CHANGELOG.md", "Cargo.toml", "charts/linkerd2-cni/Chart.yaml"] {
        fs::copy(repository().join(file), tree.path().join(file)).unwrap();
    }
    tree.git(&["commit", "--quiet", "--all", "--message", "A change"]);
    assert_eq!(tree.refusal(crate::VERSION), None);
}

#[test]
fn uncommitted_changes_are_not_released() {
    let tree = Tree::new();
    tree.write("new", "");
    tree.must_refuse("2.1.0", "?? new");
    tree.commit();
    tree.write("new", "changed");
    tree.must_refuse("2.1.0", " M new");
}

#[test]
fn a_version_that_is_not_above_the_last_is_not_released() {
    let tree = Tree::new();
    for version in ["2.0.0", "1.99.0", "2.0.0-rc.1"] {
        tree.set_versions(version, "2026.12.1");
        tree.write("CHANGELOG.md", &CHANGELOG.replace("2.1.0", version));
        tree.commit();
        let reason = if version == "2.0.0" { "on another commit" } else { "is not above 2.0.0" };
        tree.must_refuse(version, reason);
    }
    // A release is above its pre-releases, and 2.10 above 2.9.
    tree.set_versions("2.1.0", "2026.12.1");
    tree.write("CHANGELOG.md", &CHANGELOG.replace("2.0.0", "2.1.0-rc.2"));
    tree.commit();
    assert_eq!(tree.refusal("2.1.0"), None);
    tree.set_versions("2.10.0", "2026.12.1");
    let entries = CHANGELOG.replace("2.0.0", "2.9.0").replace("2.1.0", "2.10.0");
    tree.write("CHANGELOG.md", &entries);
    tree.commit();
    assert_eq!(tree.refusal("2.10.0"), None);
}

#[test]
fn a_tag_counts_even_if_the_changelog_lacks_it() {
    let tree = Tree::new();
    tree.git(&["tag", "v3.0.0", "v2.0.0"]);
    tree.must_refuse("2.1.0", "2.1.0 is not above 3.0.0");
}

#[test]
fn a_chart_version_that_is_not_above_the_last_is_not_released() {
    let tree = Tree::new();
    tree.set_versions("2.1.0", "2026.12.0");
    tree.commit();
    tree.must_refuse("2.1.0", "2026.12.0, which is not above 2026.12.0");
}

#[test]
fn files_with_another_version_are_not_released() {
    let tree = Tree::new();
    tree.must_refuse("2.2.0", "Cargo.toml has version 2.1.0; set it to 2.2.0");
    tree.must_refuse("2.2.0", "Chart.yaml has appVersion v2.1.0; set it to v2.2.0");
    for version in ["v2.1.0", "2.1", "latest", "2.1.0 ", "02.1.0"] {
        tree.must_refuse(version, "is not a version such as");
    }
}

#[test]
fn a_version_without_entry_in_the_changelog_is_not_released() {
    let tree = Tree::new();
    for (text, reason) in [
        (CHANGELOG.replace("## [2.1.0] - 2026-12-24", "## [2.1.0]"), "has no heading"),
        (CHANGELOG.replace("2.1.0", "2.1.01"), "has no heading"),
        (CHANGELOG.replace("- A change.", ""), "lists no change"),
    ] {
        tree.write("CHANGELOG.md", &text);
        tree.commit();
        tree.must_refuse("2.1.0", reason);
    }
    fs::remove_file(tree.path().join("CHANGELOG.md")).unwrap();
    tree.commit();
    tree.must_refuse("2.1.0", "CHANGELOG.md is missing");
}

#[test]
fn a_clean_tree_is_released_from_its_own_commit_and_a_changed_one_from_a_child() {
    let tree = Tree::new();
    let head = tree.printed("git", &["rev-parse", "HEAD"]);
    let script = tree.path().join("scripts/release.d/tree-commit");
    let commit = || tree.printed(script.to_str().unwrap(), &[]);
    assert_eq!(commit(), head);

    tree.write("new", "a");
    let child = commit();
    assert_eq!(tree.printed("git", &["rev-parse", &format!("{child}^")]), head);
    assert_eq!(tree.printed("git", &["show", &format!("{child}:new")]), "a");
    // The tree is as before.
    assert_eq!(tree.printed("git", &["rev-parse", "HEAD"]), head);
    assert_eq!(tree.printed("git", &["status", "--porcelain"]), "?? new");
}

#[test]
fn files_that_repeat_the_version_have_to_agree() {
    let tree = Tree::new();
    fs::create_dir(tree.path().join("fuzz")).unwrap();
    tree.write("fuzz/Cargo.lock", "name = \"linkerd2-cni\"\nversion = \"2.0.0\"\n");
    let chart = "version: 2026.12.1\nappVersion: \"v2.1.0\"\n      image: a/cni-plugin:v2.0.0\n";
    tree.write("charts/linkerd2-cni/Chart.yaml", chart);
    tree.commit();
    tree.must_refuse("2.1.0", "fuzz/Cargo.lock has version 2.0.0");
    tree.must_refuse("2.1.0", "Chart.yaml has the tag v2.0.0");
}

#[test]
fn a_version_with_texts_of_an_unpublished_one_is_released_but_not_published() {
    let tree = Tree::new();
    let publish = || tree.refusal_of(&["2.1.0", "--publish"]);
    fs::create_dir(tree.path().join("docs")).unwrap();
    for (file, text, reason) in [
        ("docs/page.md", "The image is not published yet.\n", "docs/page.md:1"),
        ("docs/page.md", "Nothing is published yet.\n", "docs/page.md:1"),
        (
            "charts/linkerd2-cni/Chart.yaml",
            "version: 2026.12.1\nappVersion: \"v2.1.0\"\n  artifacthub.io/prerelease: \"true\"\n",
            "set it to \"false\"",
        ),
        (
            "CHANGELOG.md",
            &CHANGELOG.replace("[Unreleased]\n", "[Unreleased]\n\n- Later.\n"),
            "under \"Unreleased\"",
        ),
    ] {
        let before = fs::read_to_string(tree.path().join(file)).unwrap_or_default();
        tree.write(file, text);
        tree.commit();
        assert_eq!(tree.refusal("2.1.0"), None);
        let refusal = publish().expect("the version is refused");
        assert!(refusal.contains(reason), "{refusal}");
        tree.write(file, &before);
        tree.commit();
    }
    assert_eq!(publish(), None);
}
