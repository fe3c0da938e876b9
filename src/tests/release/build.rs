//! What a build of `scripts/release` sees of the checkout, of the caller's environment and of the machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::checkout::Checkout;
use crate::{repository, said};

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    testkit::write_program(path, format!("#!/usr/bin/env bash\n{text}\n"));
}

/// A committed repository whose scripts, except `scripts/release` itself, are replaced. `toolchain` is the first script
/// that runs in the directory of the build.
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
    let dropped = [
        "LINKERD_DOCKER_REGISTRY",
        "CC",
        "CFLAGS",
        "CARGO_PROFILE_RELEASE_OPT_LEVEL",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTFLAGS",
        "RUSTC_WRAPPER",
        "HELM_NAMESPACE",
    ];
    let kept = ["CARGO_HOME", "RUSTUP_TOOLCHAIN", "https_proxy", "PIP_INDEX_URL"];
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
fn another_rust_or_debian_is_refused() {
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
