//! Files of the project that have to agree: Rust version, dependencies and workflows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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

/// Returns a variable of `scripts/release.d/base`.
fn base(name: &str) -> String {
    let start = format!("{name}=");
    let base = read("scripts/release.d/base");
    let value = base.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or_else(|| panic!("scripts/release.d/base has no {name}")).to_owned()
}

#[test]
fn every_build_uses_the_rust_and_the_debian_of_scripts_release_d_base() {
    let rust = base("rust");
    let codename = base("codename");
    let image = base("image");
    let slim_image = base("slim_image");
    assert!(image.starts_with(&format!("rust:{rust}-{codename}@sha256:")), "{image}");
    assert!(slim_image.starts_with(&format!("rust:{rust}-slim-{codename}@sha256:")));
    assert_eq!(env!("CARGO_PKG_RUST_VERSION"), rust);
    assert!(read("rust-toolchain.toml").contains(&format!("channel = \"{rust}.0\"")));
    let from = format!("FROM --platform=$BUILDPLATFORM {slim_image} AS build\n");
    assert!(read("Dockerfile").contains(&from));
    for path in workflows() {
        for used in read(&path).split("image: ").skip(1) {
            assert_eq!(used.lines().next().unwrap(), image, "{}", path.display());
        }
    }
}

/// Runs `scripts/checks/support` as if it were this day.
fn check_support_on(day: &str) -> Output {
    let script = repository().join("scripts/checks/support");
    Command::new(script).arg(day).output().unwrap()
}

#[test]
fn support_check_fails_in_the_last_90_days_and_after_the_end() {
    let rust_end = base("rust_until");
    let debian_end = base("debian_lts_until");
    let supported_lines = [
        format!("Debian {} is supported until {debian_end}", base("debian")),
        format!("Rust {} is supported until {rust_end}", base("rust")),
    ];
    let output = check_support_on("2026-06-01");
    let text = crate::printed(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.lines().collect::<Vec<_>>(), supported_lines);

    let output = check_support_on(&debian_end);
    assert!(!output.status.success());
    let text = crate::printed(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let security_end = base("debian_security_until");
    assert!(lines[0].contains(&format!("ended its support on {security_end}")), "{text}");
    for (line, supported) in lines[1..].iter().zip(&supported_lines) {
        let warning = format!("{supported} only; move releases to a newer ");
        assert!(line.starts_with(&warning), "{line}");
    }
}

#[test]
fn support_check_refuses_a_word_that_is_no_day() {
    let output = check_support_on("tomorrow");
    assert!(!output.status.success());
    let text = crate::printed(&output);
    assert!(text.contains("\"tomorrow\" is not a day"), "{text}");
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

#[test]
fn workflows_run_every_test_and_check_the_dependencies_each_day() {
    assert_eq!(commands(&workflow("test"), "test").last(), Some(&".ci/run"));
    let run = "\nexec \"$(dirname \"${BASH_SOURCE[0]}\")/../scripts/test\"\n";
    assert!(read(".ci/run").ends_with(run));
    let weekly = workflow("matrix");
    assert_eq!(weekly["on"]["schedule"], json!([{"cron": "17 3 * * 1"}]));
    for (job, script) in [
        ("matrix", "scripts/matrix"),
        ("long-tests", "scripts/test --matrix"),
        ("soak", "scripts/maintainers/soak "),
        ("fleet", "scripts/maintainers/fleet --check "),
    ] {
        let command = commands(&weekly, job)[0];
        assert!(command.starts_with(script), "{job}: {command}");
    }
    let daily = workflow("advisories");
    assert_eq!(commands(&daily, "advisories"), [SUPPORT, DENY]);
    assert_eq!(daily["on"]["schedule"], json!([{"cron": "5 6 * * *"}]));
}

/// A disabled step would still satisfy a test that looks for its commands.
#[test]
fn workflows_skip_no_step_and_ignore_no_failure() {
    let mut skippable = Vec::new();
    for path in workflows() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let workflow = workflow(name);
        for (job, settings) in workflow["jobs"].as_object().unwrap() {
            for key in present_keys(settings) {
                skippable.push(format!("{name} {job}: {key}"));
            }
            for (index, step) in settings["steps"].as_array().unwrap().iter().enumerate() {
                for key in present_keys(step) {
                    skippable.push(format!("{name} {job}, step {index}: {key}"));
                }
            }
        }
    }
    assert!(skippable.is_empty(), "{skippable:?}");
}

/// Returns the keys of a job or step with which it may be skipped, or may fail in a green run.
fn present_keys(object: &Value) -> Vec<&'static str> {
    let mut keys = vec!["if", "continue-on-error"];
    keys.retain(|key| object.get(key).is_some());
    keys
}

#[test]
fn release_workflow_publishes_the_build_after_tests_and_approval() {
    let workflow = workflow("release");
    let publish = &workflow["jobs"]["publish"];
    assert_eq!(publish["needs"], json!(["build", "rebuild", "dependencies", "test"]));
    assert_eq!(publish["environment"], "release");
    // The output of the step that hashes the folder, which no other job can change.
    for job in ["build", "rebuild"] {
        let output = &workflow["jobs"][job]["outputs"]["checksum"];
        assert_eq!(output, "${{ steps.checksum.outputs.checksum }}");
    }
    let script = steps(&workflow, "publish").last().unwrap();
    assert_eq!(script["run"], "scripts/release.d/publish \"dist/${GITHUB_REF_NAME#v}\"");
    assert_eq!(script["env"]["CHECKSUM"], "${{ needs.build.outputs.checksum }}");
    assert_eq!(script["env"]["REBUILD_CHECKSUM"], "${{ needs.rebuild.outputs.checksum }}");
    // The rebuild gets nothing that the build made.
    let build = &workflow["jobs"]["build"];
    let rebuild = &workflow["jobs"]["rebuild"];
    assert!(rebuild.get("needs").is_none() && !rebuild.to_string().contains("artifact"));
    assert_eq!(rebuild["container"], build["container"]);
    // Only GitHub's registry gets GitHub's token.
    let token = script["env"]["REGISTRY_TOKEN"].as_str().unwrap();
    let github = "(vars.REGISTRY_IS_GITHUBS == 'true' && github.token)";
    assert_eq!(token.replace(github, "").matches("github.token").count(), 0);
    assert!(publish.to_string().matches("github.token").count() == 2, "{publish}");
    // A failure on the left of a pipe fails the step.
    assert_eq!(workflow["defaults"]["run"]["shell"], "bash");
    // GitHub keeps one running and one pending run of a concurrency group. With one group for all
    // tags, a third tag would cancel the second one.
    // https://docs.github.com/en/actions/using-jobs/using-concurrency
    assert_eq!(workflow["concurrency"], "release-${{ github.ref }}");

    // The job that makes the release compiles and runs only what is part of the release.
    let build_commands = commands(&workflow, "build");
    assert_eq!(build_commands[1], "git merge-base --is-ancestor HEAD origin/main");
    assert!(build_commands[2].starts_with("scripts/release.d/check "), "{build_commands:?}");
    assert!(
        !build.to_string().contains("scripts/checks/deny")
            && build["container"]["options"].is_null()
    );
    assert_eq!(commands(&workflow, "dependencies"), [SUPPORT, DENY]);
    let cosign = steps(&workflow, "publish")[2]["with"]["cosign-release"].as_str().unwrap();
    assert!(read("scripts/tools").contains(&format!("cosign/v3/cmd/cosign {cosign} ")));
}

/// Runs the command with the variables of a workflow and `bash` as in its `defaults`.
fn run_step(step: &str, directory: &Path, path: &Path) -> Output {
    let mut shell = Command::new("bash");
    shell.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", step]).current_dir(directory);
    shell.env("GITHUB_REF_NAME", "v2.0.0").env("RUNNER_TEMP", directory);
    shell.env("GITHUB_OUTPUT", directory.join("output"));
    let search = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
    shell.env("PATH", search).output().unwrap()
}

#[test]
fn release_workflow_outputs_the_checksum_that_publish_compares() {
    let workflow = workflow("release");
    for job in ["build", "rebuild"] {
        let step = steps(&workflow, job).iter().find(|step| step["id"] == "checksum").unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("dist/2.0.0")).unwrap();
        fs::write(directory.path().join("dist/2.0.0/SHA256SUMS"), "a").unwrap();
        let output = run_step(step["run"].as_str().unwrap(), directory.path(), directory.path());
        assert!(output.status.success(), "{}", crate::printed(&output));
        let sum = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        let written = fs::read_to_string(directory.path().join("output")).unwrap();
        assert_eq!(written, format!("checksum={sum}\n"), "{job}");
    }
}

/// GitHub keeps one running and one pending run of a concurrency group. With one group for all
/// pushes to main, a third push would cancel the run of the second one.
#[test]
fn each_commit_that_is_pushed_to_main_is_tested() {
    let workflow = workflow("test");
    assert_eq!(workflow["on"]["push"], json!({"branches": ["main"]}));
    let is_pull_request = "github.event_name == 'pull_request'";
    let group = format!("test-${{{{ {is_pull_request} && github.ref || github.sha }}}}");
    let cancels = format!("${{{{ {is_pull_request} }}}}");
    let concurrency = json!({"group": group, "cancel-in-progress": cancels});
    assert_eq!(workflow["concurrency"], concurrency);
    for path in workflows() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let has_group = read(&path).contains("concurrency:");
        assert_eq!(has_group, ["release", "test"].contains(&name), "{name}");
    }
}

/// A fake `docker` runs the programs of this build.
#[test]
fn workflow_hosted_fails_if_the_programs_of_the_image_fail() {
    let workflow = workflow("hosted");
    assert_eq!(commands(&workflow, "kind"), ["scripts/quickstart", "scripts/quickstart --down"]);
    let docker_commands = commands(&workflow, "docker");
    assert_eq!(docker_commands.len(), 2, "{docker_commands:?}");
    let build = docker_commands[0];
    let run = docker_commands[1];
    let directory = tempfile::tempdir().unwrap();
    let docker = include_str!("docker.sh");
    testkit::write_program(directory.path().join("docker"), docker);
    let programs = Path::new(env!("CARGO_BIN_EXE_linkerd-cni")).parent().unwrap();
    let run_with = |programs: &Path, step: &str| {
        let step = format!("export PROGRAMS={}\n{step}", programs.display());
        run_step(&step, repository(), directory.path())
    };
    for command in [build, run] {
        let command = command.replace("$RUNNER_TEMP", directory.path().to_str().unwrap());
        let output = run_with(programs, &command);
        assert!(output.status.success(), "{}", crate::printed(&output));
        // The directory `/bin` has none of the programs, which only the second command runs.
        let without_programs = run_with(Path::new("/bin"), &command);
        assert_eq!(without_programs.status.success(), command == build);
    }
}

/// The command that checks the dependencies. `scripts/test` runs it only with --release, and the
/// workflow `release` before it makes the folder.
const DENY: &str = "scripts/checks/deny licenses bans sources advisories";
const SUPPORT: &str = "scripts/checks/support";

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
fn third_party_notices_have_every_crate() {
    let notices = must(
        Command::new(repository().join("scripts/release.d/notices")).current_dir(repository()),
    );
    assert!(
        notices == read("THIRD-PARTY-NOTICES.txt"),
        "run scripts/release.d/notices >THIRD-PARTY-NOTICES.txt"
    );
}

/// The releases of the committed results of `scripts/matrix`, such as `1.35`, from old to new.
/// `prefix` is what stands before the version.
fn tested_releases(versions: &str, prefix: &str) -> Vec<String> {
    let results: Value =
        serde_json::from_str(&read("docs/maintainers/compatibility.json")).unwrap();
    let mut releases = BTreeSet::new();
    for row in results["rows"].as_array().unwrap() {
        if let Some(version) = row["versions"][versions].as_str().unwrap().strip_prefix(prefix) {
            let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap());
            releases.insert((numbers.next().unwrap(), numbers.next().unwrap()));
        }
    }
    releases.into_iter().map(|(major, minor)| format!("{major}.{minor}")).collect()
}

#[test]
fn the_pages_for_users_name_exactly_the_releases_of_the_committed_results() {
    let [readme, page] = ["README.md", "docs/compatibility.md"].map(read);
    let kubernetes = tested_releases("kubernetes", "v");
    let containerd = tested_releases("runtime", "containerd://");
    let crio = tested_releases("runtime", "cri-o://");
    let oldest = "| Kubernetes | 1.31 or later";
    let list = kubernetes.join(", ");
    assert!(readme.contains(&format!("{oldest} | {list} |\n")), "README.md: Kubernetes {list}");
    assert!(page.contains(&format!("| Kubernetes | {list} |\n")), "the page: Kubernetes {list}");
    let [first, .., last] = &containerd[..] else { panic!("{containerd:?}") };
    let runtimes = format!("containerd {first} to {last}, CRI-O {}", crio.join(", "));
    assert!(readme.contains(&format!(" | {runtimes} |\n")), "README.md: {runtimes}");
    let [containerd, crio] = [containerd, crio].map(|releases| releases.join(", "));
    let runtimes = format!("containerd {containerd}; CRI-O {crio} with runc and with crun");
    assert!(page.contains(&format!("| container runtime | {runtimes} |\n")), "page: {runtimes}");
    // What the page calls not tested.
    for release in kubernetes {
        assert!(!page.contains(&format!("\n| Kubernetes {release} |")), "Kubernetes {release}");
    }
    assert!(!page.contains(&format!("\n| CRI-O {crio} |")), "CRI-O {crio}");
}

#[test]
fn compatibility_page_shows_the_committed_results() {
    let results: Value =
        serde_json::from_str(&read("docs/maintainers/compatibility.json")).unwrap();
    let page = read("docs/maintainers/compatibility.md");
    let headers: Vec<&str> = page.lines().filter(|line| line.starts_with("|   | `")).collect();
    assert_eq!(headers.len(), 2, "tables of kernels: without and with AppArmor");
    for (script, results) in [
        ("scripts/matrix", &results["rows"]),
        ("scripts/maintainers/kernels", &results["kernels"]["rows"]),
    ] {
        let results = results.as_array().unwrap();
        let names = results.iter().map(|row| row["row"].as_str().unwrap().to_owned());
        assert_eq!(names.collect::<BTreeSet<_>>(), listed_rows(script), "{script}");
        for row in results {
            let name = row["row"].as_str().unwrap();
            let checks = row["checks"].as_array().unwrap();
            assert!(checks.iter().all(|check| check["passed"] == true), "{name}");
            if let Some(kernel) = row["kernel"].as_str() {
                assert!(checks.len() >= 11, "{name}");
                let column = format!(" `{name}` ");
                assert!(page.contains(kernel), "{name}");
                assert!(headers.iter().any(|header| header.contains(&column)), "{name}");
                continue;
            }
            assert_eq!(row["failed"], "", "{name}");
            let start = format!("| `{name}` |");
            let line = page.lines().find(|line| line.starts_with(&start)).unwrap();
            assert!(line.contains(&format!("| {} checks passed |", checks.len())), "{line}");
        }
    }
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, results["rows"].as_array().unwrap().len(), "rows of the page");
}

/// Returns the rows that a script lists.
fn listed_rows(script: &str) -> BTreeSet<String> {
    let list = must(Command::new(repository().join(script)).arg("--list"));
    list.lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}
