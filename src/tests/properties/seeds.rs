//! The properties of the fuzz targets, for their committed seeds. `scripts/checks/fuzz` goes on
//! from these.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use testkit::properties::fuzzed;

/// Seeds that were written by hand, and those that fuzzing found.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let found = TempDir::new().unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(folder.join(format!("{target}.tar.gz"))).arg("-C").arg(found.path());
    assert!(tar.status().unwrap().success());

    let mut seeds = Vec::new();
    for folder in [folder.join(target), found.path().to_owned()] {
        for entry in fs::read_dir(folder).unwrap() {
            seeds.push(fs::read(entry.unwrap().path()).unwrap());
        }
    }
    assert!(seeds.len() > 300, "{target} has {} seeds", seeds.len());
    seeds
}

#[test]
fn every_seed_on_stdin_gets_a_cni_output() {
    for seed in seeds("stdin") {
        fuzzed::stdin_gets_a_cni_output(&seed);
    }
}

#[test]
fn every_seed_of_a_pod_becomes_rules_or_an_error() {
    for seed in seeds("pod") {
        fuzzed::pod_becomes_rules_or_an_error(&seed);
    }
}

#[test]
fn no_seed_makes_a_meshed_pod_bare_without_reason() {
    for seed in seeds("decision") {
        if let Ok(text) = std::str::from_utf8(&seed) {
            fuzzed::meshed_pod_is_not_bare_without_reason(text);
        }
    }
}
