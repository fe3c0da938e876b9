//! Which files of the checkout, which variables of the environment and which compilers a build of
//! `scripts/release` uses.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::chart::yaml;

use crate::versions::Checkout;
use crate::{must, printed, repository};

/// Writes a script of bash.
fn write_script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    testkit::write_program(path, format!("#!/usr/bin/env bash\n{text}\n"));
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

/// Creates a committed repository whose scripts, except `scripts/release` itself, are replaced.
/// `toolchain` is the first script that runs in the directory of the build.
fn create_checkout(toolchain: &str) -> Checkout {
    let checkout = Checkout::with(&["scripts/common", "scripts/release"]);
    write_script(&checkout.path("scripts/release.d/check"), "");
    write_script(&checkout.path("scripts/release.d/toolchain"), toolchain);
    write_script(&checkout.path("scripts/tools"), "echo /nonexistent");
    checkout.write(".gitignore", "*.orig\n/dist\n");
    checkout.write("Chart.yaml", "name: a\n");
    checkout.commit();
    checkout
}

/// Runs `scripts/release` of the checkout with these variables, and returns what it prints.
fn release(checkout: &Checkout, variables: &[&str]) -> String {
    let mut release = Command::new(checkout.path("scripts/release"));
    release.arg("2.0.0").envs(variables.iter().map(|name| (name, "set-by-the-test")));
    printed(&release.output().unwrap())
}

#[test]
fn build_ignores_files_that_git_ignores() {
    let checkout = create_checkout("ls >&2; exit 1");
    checkout.write("Chart.yaml.orig", "");
    let files = release(&checkout, &[]);
    assert!(files.lines().any(|line| line == "Chart.yaml"), "{files}");
    assert!(!files.contains("Chart.yaml.orig"), "{files}");
    // No unfinished directory is left.
    assert_eq!(fs::read_dir(checkout.path("dist")).unwrap().count(), 0);
}

#[test]
fn build_gets_no_variable_that_changes_the_bytes() {
    let table = yaml(include_str!("build.yaml"));
    let dropped = texts(&table["dropped"]);
    let kept = texts(&table["kept"]);
    let checkout = create_checkout("env >&2; exit 1");
    let environment = release(&checkout, &[&dropped[..], &kept].concat());
    let is_set =
        |name: &str| environment.lines().any(|line| line == format!("{name}=set-by-the-test"));
    assert_eq!(dropped.iter().find(|name| is_set(name)), None, "{environment}");
    assert_eq!(kept.iter().find(|name| !is_set(name)), None, "{environment}");
}

/// Runs the check of the toolchain with a Rust and a Debian of these versions.
fn check_toolchain(rust: &str, debian: &str) -> Output {
    let work = TempDir::new().unwrap();
    write_script(&work.path().join("rustc"), &format!("echo 'rustc {rust} (0 2026-01-01)'"));
    let system = work.path().join("os-release");
    fs::write(&system, format!("ID=debian\nVERSION_ID=\"{debian}\"\n")).unwrap();
    let mut toolchain = Command::new(repository().join("scripts/release.d/toolchain"));
    let path = format!("{}:{}", work.path().display(), std::env::var("PATH").unwrap());
    toolchain.arg(system).env("PATH", path).output().unwrap()
}

#[test]
fn build_is_refused_with_another_rust_or_debian() {
    let rust = env!("CARGO_PKG_RUST_VERSION");
    let output = check_toolchain(&format!("{rust}.3"), "12");
    assert!(!printed(&output).contains("other bytes"), "{}", printed(&output));
    for (rust, debian, reason) in [
        (format!("{rust}0.0"), "12", "gives other bytes; install Rust"),
        ("1.200.0".into(), "12", "gives other bytes; install Rust"),
        (format!("{rust}.0"), "13", "does not name Debian 12"),
    ] {
        let output = check_toolchain(&rust, debian);
        assert!(!output.status.success());
        assert!(printed(&output).contains(reason), "{}", printed(&output));
    }
}

/// Writes a release folder of this checkout's commit whose provenance names these compilers.
fn write_release_folder(checkout: &Checkout, compilers: &[&str]) -> TempDir {
    let folder = TempDir::new().unwrap();
    let commit = checkout.git(&["rev-parse", "HEAD"]);
    let mut sources = vec![json!({"digest": {"gitCommit": commit}}), json!({"digest": {}})];
    for compiler in compilers {
        let (name, version) = compiler.split_once('=').unwrap();
        sources.push(json!({"name": name, "annotations": {"version": version}}));
    }
    let statement = json!({"predicate": {"buildDefinition": {
        "externalParameters": {"command": ["scripts/release", "2.0.0"]},
        "resolvedDependencies": sources,
    }}});
    let name = "linkerd2-cni-v2.0.0.intoto.json";
    fs::write(folder.path().join(name), statement.to_string()).unwrap();
    let sums = must(Command::new("sha256sum").arg(name).current_dir(&folder));
    fs::write(folder.path().join("SHA256SUMS"), sums).unwrap();
    folder
}

/// Rebuilds a release whose provenance names these compilers, and returns what the script prints.
/// The machine has Rust 1.95.0 and gcc-12 12-2, and its mirror has 12-1 and 12-2. A script stands
/// for the build. It prints the installed compilers. `change` is called before the rebuild.
fn rebuild(compilers: &[&str], change: impl Fn(&Checkout, &Path)) -> String {
    let state = TempDir::new().unwrap();
    let gcc = state.path().join("gcc").display().to_string();
    let rust = state.path().join("rust").display().to_string();
    let checkout = create_checkout(&format!("sed 's/^/rustc=/' {rust}; sed 's/^/gcc-12=/' {gcc}"));
    write_script(
        &checkout.path("scripts/release.d/check"),
        &format!("cat {gcc} {rust} >&2; exit 1"),
    );
    checkout.commit();
    let folder = write_release_folder(&checkout, compilers);
    fs::write(state.path().join("gcc"), "12-2\n").unwrap();
    fs::write(state.path().join("rust"), "rustc 1.95.0 (a)\n").unwrap();
    for (program, text) in yaml(include_str!("build.yaml"))["programs"].as_object().unwrap() {
        write_script(&state.path().join(program), text.as_str().unwrap());
    }
    change(&checkout, folder.path());
    let mut release = Command::new(checkout.path("scripts/release"));
    let path = format!("{}:{}", state.path().display(), std::env::var("PATH").unwrap());
    release.env("PATH", path).env("STATE", state.path());
    printed(&release.arg("--rebuild").arg(folder.path()).output().unwrap())
}

#[test]
fn release_folder_is_rebuilt_only_with_its_recorded_compilers() {
    let no_change = |_: &Checkout, _: &Path| {};
    let same_versions = rebuild(&["rustc=rustc 1.95.0 (a)", "gcc-12=12-2"], no_change);
    assert!(same_versions.contains("12-2\nrustc 1.95.0"), "{same_versions}");
    let older_versions = rebuild(&["rustc=rustc 1.94.1 (a)", "gcc-12=12-1"], no_change);
    assert!(older_versions.contains("12-1\nrustc 1.94.1"), "{older_versions}");
    let missing_version = rebuild(&["rustc=rustc 1.95.0 (a)", "gcc-12=12-0"], no_change);
    let error = "does not have cpp-12=12-0 gcc-12=12-0 any more";
    assert!(missing_version.contains(error), "{missing_version}");
    let changed_folder = rebuild(&["gcc-12=12-2"], |_, folder| {
        fs::write(folder.join("linkerd2-cni-v2.0.0.intoto.json"), "{}").unwrap();
    });
    assert!(changed_folder.contains("differs from its SHA256SUMS"), "{changed_folder}");
}

/// Runs `scripts/checks/deny` with `cargo` and `govulncheck` that print what they check. The one
/// whose arguments contain `fails` fails. `govulncheck` reports these findings.
fn deny(checks: &[&str], fails: &str, findings: &[Value]) -> Output {
    let accepted = "scripts/checks/accepted-go-vulnerabilities";
    let checkout = Checkout::with(&["scripts/common", "scripts/checks/deny"]);
    let says = "echo \"${0##*/} $*\" >&2; [[ -z $FAILS || $* != *$FAILS* ]] || exit 1";
    write_script(&checkout.path("bin/cargo"), says);
    write_script(&checkout.path("bin/govulncheck"), &format!("{says}\ncat <<<\"$FINDINGS\""));
    write_script(&checkout.path("scripts/tools"), "echo /nonexistent");
    checkout.write("deny.toml", "exclude-dev = true\n");
    checkout.write(accepted, "# Comment\nGO-2025-1 accepted: a reason\n");
    let path = format!("{}:{}", checkout.path("bin").display(), std::env::var("PATH").unwrap());
    let mut deny = Command::new(checkout.path("scripts/checks/deny"));
    // The real programs are in the usual cache, so the check gets another one.
    deny.env("LINKERD2_CNI_CACHE", checkout.path("cache")).env("PATH", path);
    let findings: Vec<String> = findings.iter().map(Value::to_string).collect();
    deny.args(checks).env("FAILS", fails).env("FINDINGS", findings.join("\n")).output().unwrap()
}

const CHECKS: [&str; 4] = ["licenses", "bans", "sources", "advisories"];

#[test]
fn deny_checks_advisories_of_all_crates_and_go_modules() {
    let offline = deny(&[], "", &[]);
    assert!(offline.status.success());
    assert!(!printed(&offline).contains("advisories"), "{}", printed(&offline));
    let table = yaml(include_str!("build.yaml"));
    let everything = deny(&CHECKS, "", &[]);
    assert!(everything.status.success(), "{}", printed(&everything));
    for place in texts(&table["places"]) {
        assert!(printed(&everything).contains(place), "{place}: {}", printed(&everything));
        assert!(!deny(&CHECKS, place, &[]).status.success(), "{place}");
    }
    // The directories are those of the modules in this tree.
    for place in [
        "fuzz/Cargo.toml",
        "scripts/kubernetes/go.mod",
        "scripts/libcni/go.mod",
        "scripts/apparmor/go.mod",
    ] {
        assert!(repository().join(place).is_file(), "{place}");
    }
}

/// A finding of `govulncheck`, in a package that is compiled in if there is one.
fn finding(id: &str, package: Option<&str>) -> Value {
    let mut frame = json!({"module": "example.com/a", "version": "v1.0.0"});
    if let Some(package) = package {
        frame["package"] = package.into();
    }
    json!({"finding": {"osv": id, "fixed_version": "v1.0.1", "trace": [frame]}})
}

#[test]
fn a_go_vulnerability_fails_the_check_unless_it_is_accepted_or_not_compiled_in() {
    let package = Some("example.com/a/b");
    let harmless = [
        json!({"config": {"scan_level": "package"}}),
        json!({"osv": {"id": "GO-2025-12"}}),
        finding("GO-2025-1", package),
        finding("GO-2025-12", None),
    ];
    let output = deny(&CHECKS, "", &harmless);
    assert!(output.status.success(), "{}", printed(&output));
    let output =
        deny(&CHECKS, "", &[finding("GO-2025-1", package), finding("GO-2025-12", package)]);
    assert!(!output.status.success(), "{}", printed(&output));
    let line = "vuln/GO-2025-12 in example.com/a v1.0.0, corrected in v1.0.1";
    assert!(printed(&output).contains(line), "{}", printed(&output));
    assert!(!printed(&output).contains("vuln/GO-2025-1 "), "{}", printed(&output));
}
