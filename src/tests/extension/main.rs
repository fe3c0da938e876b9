//! The program of `linkerd cni` with a kubectl that fails. `src/tests/cluster` runs it with a real one.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// Runs the program with only `dir` in `PATH`.
fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli"))
        .args(args)
        .env("PATH", dir)
        .output()
        .unwrap()
}

/// A directory with a kubectl that runs this shell script.
fn with_kubectl(script: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    // Another process writes the file: a file that a child of another test has open for writing
    // cannot be executed (ETXTBSY).
    let written = Command::new("/bin/sh")
        .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\""])
        .args([dir.path().join("kubectl").as_os_str(), script.as_ref()])
        .status()
        .unwrap();
    assert!(written.success());
    dir
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn the_metadata_make_linkerd_check_run_the_extension() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["_extension-metadata"]);
    assert!(output.status.success());
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(metadata, json!({"name": "linkerd-cni", "checks": "always"}));
}

#[test]
fn without_kubectl_the_checks_fail_in_the_format_of_linkerd_check() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["check", "--output=json", "--wait=5m0s"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["success"], false);
    let check = &report["categories"][0]["checks"][0];
    let error = check["error"].as_str().unwrap();
    assert!(error.starts_with("cannot run kubectl: "), "{error}");
    assert!(check["hint"].as_str().unwrap().ends_with("/docs/cli.md#kubernetes-api"), "{check}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn an_unreachable_api_server_fails_each_command_once() {
    let dir = with_kubectl("echo 'The connection to the server x was refused' >&2; exit 1");
    for args in [&["check"][..], &["check", "--pre"], &["nodes"], &["explain", "web"]] {
        let output = run(dir.path(), args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let all = [text(&output.stdout), text(&output.stderr)].concat();
        assert_eq!(all.matches("The connection to the server x was refused").count(), 1, "{all}");
        assert!(!all.contains('\x1b'), "{all}");
    }
}

#[test]
fn cluster_flags_reach_kubectl() {
    let dir = with_kubectl("echo \"$*\" >&2; exit 1");
    let output = run(dir.path(), &["nodes", "--context=kind", "--as=jane", "--as-group=[a]"]);
    let error = text(&output.stderr);
    let passed = "--context=kind --as=jane --as-group=a --request-timeout=15s get --raw /version";
    assert!(error.contains(passed), "{error}");
}
