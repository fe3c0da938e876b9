//! What a build of `scripts/release` sees of the checkout, of the caller's environment and of the
//! machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::chart::yaml;

use crate::versions::Checkout;
use crate::{must, repository, said};

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    testkit::write_program(path, format!("#!/usr/bin/env bash\n{text}\n"));
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

/// A committed repository whose scripts, except `scripts/release` itself, are replaced. `toolchain`
/// is the first script that runs in the directory of the build.
fn checkout(toolchain: &str) -> Checkout {
    let checkout = Checkout::with(&["scripts/common", "scripts/release"]);
    script(&checkout.path("scripts/release.d/check"), "");
    script(&checkout.path("scripts/release.d/toolchain"), toolchain);
    script(&checkout.path("scripts/tools"), "echo /nonexistent");
    checkout.write(".gitignore", "*.orig\n/dist\n");
    checkout.write("Chart.yaml", "name: a\n");
    checkout.commit();
    checkout
}

/// Runs `scripts/release` of the checkout with these variables, and returns what it prints.
fn release(checkout: &Checkout, variables: &[&str]) -> String {
    let mut release = Command::new(checkout.path("scripts/release"));
    release.arg("2.0.0").envs(variables.iter().map(|name| (name, "set-by-the-test")));
    said(&release.output().unwrap())
}

#[test]
fn an_ignored_file_of_the_checkout_is_not_built() {
    let checkout = checkout("ls >&2; exit 1");
    checkout.write("Chart.yaml.orig", "");
    let said = release(&checkout, &[]);
    assert!(said.lines().any(|line| line == "Chart.yaml"), "{said}");
    assert!(!said.contains("Chart.yaml.orig"), "{said}");
    // No unfinished directory is left.
    assert_eq!(fs::read_dir(checkout.path("dist")).unwrap().count(), 0);
}

#[test]
fn variables_that_change_the_bytes_do_not_reach_the_build() {
    let all = yaml(include_str!("build.yaml"));
    let [dropped, kept] = ["dropped", "kept"].map(|kind| texts(&all[kind]));
    let said = release(&checkout("env >&2; exit 1"), &[&dropped[..], &kept].concat());
    let has = |name: &str| said.lines().any(|line| line == format!("{name}=set-by-the-test"));
    assert_eq!(dropped.iter().find(|name| has(name)), None, "{said}");
    assert_eq!(kept.iter().find(|name| !has(name)), None, "{said}");
}

/// Runs the check of the toolchain with a Rust and a Debian of these versions.
fn toolchain(rust: &str, debian: &str) -> Output {
    let work = TempDir::new().unwrap();
    script(&work.path().join("rustc"), &format!("echo 'rustc {rust} (0 2026-01-01)'"));
    let system = work.path().join("os-release");
    fs::write(&system, format!("ID=debian\nVERSION_ID=\"{debian}\"\n")).unwrap();
    let mut toolchain = Command::new(repository().join("scripts/release.d/toolchain"));
    let path = format!("{}:{}", work.path().display(), std::env::var("PATH").unwrap());
    toolchain.arg(system).env("PATH", path).output().unwrap()
}

#[test]
fn a_build_with_another_rust_or_debian_is_refused() {
    let rust = env!("CARGO_PKG_RUST_VERSION");
    let output = toolchain(&format!("{rust}.3"), "12");
    assert!(!said(&output).contains("other bytes"), "{}", said(&output));
    for (rust, debian, reason) in [
        (format!("{rust}0.0"), "12", "gives other bytes; install Rust"),
        ("1.200.0".into(), "12", "gives other bytes; install Rust"),
        (format!("{rust}.0"), "13", "does not name Debian 12"),
    ] {
        let output = toolchain(&rust, debian);
        assert!(!output.status.success());
        assert!(said(&output).contains(reason), "{}", said(&output));
    }
}

/// Writes a folder of this checkout's commit whose provenance names these compilers.
fn released(checkout: &Checkout, compilers: &[&str]) -> TempDir {
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

/// A rebuild on a machine with gcc-12 12-2 of the source gcc, whose mirror has 12-1 and 12-2, and
/// with Rust 1.95.0. The build itself is replaced: it ends with the installed version.
fn rebuild(compilers: &[&str], change: impl Fn(&Checkout, &Path)) -> String {
    let state = TempDir::new().unwrap();
    let [gcc, rust] = ["gcc", "rust"].map(|name| state.path().join(name).display().to_string());
    let checkout = checkout(&format!("sed 's/^/rustc=/' {rust}; sed 's/^/gcc-12=/' {gcc}"));
    script(&checkout.path("scripts/release.d/check"), &format!("cat {gcc} {rust} >&2; exit 1"));
    checkout.commit();
    let folder = released(&checkout, compilers);
    fs::write(state.path().join("gcc"), "12-2\n").unwrap();
    fs::write(state.path().join("rust"), "rustc 1.95.0 (a)\n").unwrap();
    for (program, text) in yaml(include_str!("build.yaml"))["programs"].as_object().unwrap() {
        script(&state.path().join(program), text.as_str().unwrap());
    }
    change(&checkout, folder.path());
    let mut release = Command::new(checkout.path("scripts/release"));
    let path = format!("{}:{}", state.path().display(), std::env::var("PATH").unwrap());
    release.env("PATH", path).env("STATE", state.path());
    said(&release.arg("--rebuild").arg(folder.path()).output().unwrap())
}

#[test]
fn a_release_folder_is_rebuilt_only_with_its_recorded_compilers() {
    let nothing = |_: &Checkout, _: &Path| {};
    let same = rebuild(&["rustc=rustc 1.95.0 (a)", "gcc-12=12-2"], nothing);
    assert!(same.contains("12-2\nrustc 1.95.0"), "{same}");
    let older = rebuild(&["rustc=rustc 1.94.1 (a)", "gcc-12=12-1"], nothing);
    assert!(older.contains("12-1\nrustc 1.94.1"), "{older}");
    let gone = rebuild(&["rustc=rustc 1.95.0 (a)", "gcc-12=12-0"], nothing);
    assert!(gone.contains("does not have cpp-12=12-0 gcc-12=12-0 any more"), "{gone}");
    let changed = rebuild(&["gcc-12=12-2"], |_, folder| {
        fs::write(folder.join("linkerd2-cni-v2.0.0.intoto.json"), "{}").unwrap();
    });
    assert!(changed.contains("differs from its SHA256SUMS"), "{changed}");
}

/// Runs `scripts/checks/deny` with `cargo` and `govulncheck` that print what they check. The one
/// whose arguments contain `fails` fails. `govulncheck` reports these findings.
fn deny(checks: &[&str], fails: &str, findings: &[Value]) -> Output {
    let accepted = "scripts/checks/accepted-go-vulnerabilities";
    let checkout = Checkout::with(&["scripts/common", "scripts/checks/deny"]);
    let says = "echo \"${0##*/} $*\" >&2; [[ -z $FAILS || $* != *$FAILS* ]] || exit 1";
    script(&checkout.path("bin/cargo"), says);
    script(&checkout.path("bin/govulncheck"), &format!("{says}\ncat <<<\"$FINDINGS\""));
    script(&checkout.path("scripts/tools"), "echo /nonexistent");
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
fn advisories_of_programs_tests_fuzz_targets_and_go_modules_are_checked() {
    let offline = deny(&[], "", &[]);
    assert!(offline.status.success());
    assert!(!said(&offline).contains("advisories"), "{}", said(&offline));
    let all = yaml(include_str!("build.yaml"));
    let everything = deny(&CHECKS, "", &[]);
    assert!(everything.status.success(), "{}", said(&everything));
    for place in texts(&all["places"]) {
        assert!(said(&everything).contains(place), "{place}: {}", said(&everything));
        assert!(!deny(&CHECKS, place, &[]).status.success(), "{place}");
    }
    // The directories are those of the modules in this tree.
    for place in ["fuzz/Cargo.toml", "scripts/kubernetes/go.mod", "scripts/libcni/go.mod"] {
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
    assert!(output.status.success(), "{}", said(&output));
    let output =
        deny(&CHECKS, "", &[finding("GO-2025-1", package), finding("GO-2025-12", package)]);
    assert!(!output.status.success(), "{}", said(&output));
    let line = "vuln/GO-2025-12 in example.com/a v1.0.0, corrected in v1.0.1";
    assert!(said(&output).contains(line), "{}", said(&output));
    assert!(!said(&output).contains("vuln/GO-2025-1 "), "{}", said(&output));
}
