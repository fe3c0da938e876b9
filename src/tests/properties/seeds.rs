//! Runs the properties of the fuzz targets on their committed seeds. `scripts/checks/fuzz` starts
//! from the same seeds.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use testkit::properties::fuzzed;

/// Reads the seeds of a target, both those written by hand and those found by fuzzing.
fn read_seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let unpacked = TempDir::new().unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(folder.join(format!("{target}.tar.gz"))).arg("-C").arg(unpacked.path());
    assert!(tar.status().unwrap().success());

    let mut seeds = Vec::new();
    for folder in [folder.join(target), unpacked.path().to_owned()] {
        for entry in fs::read_dir(folder).unwrap() {
            seeds.push(fs::read(entry.unwrap().path()).unwrap());
        }
    }
    assert!(seeds.len() > 300, "{target} has {} seeds", seeds.len());
    seeds
}

#[test]
fn every_stdin_seed_produces_a_cni_output() {
    for seed in read_seeds("stdin") {
        fuzzed::stdin_gets_a_cni_output(&seed);
    }
}

#[test]
fn every_pod_seed_produces_rules_or_an_error() {
    for seed in read_seeds("pod") {
        fuzzed::pod_becomes_rules_or_an_error(&seed);
    }
}

#[test]
fn no_decision_seed_starts_a_meshed_pod_without_rules_unless_documented() {
    for seed in read_seeds("decision") {
        if let Ok(text) = std::str::from_utf8(&seed) {
            fuzzed::meshed_pod_is_not_bare_without_reason(text);
        }
    }
}
