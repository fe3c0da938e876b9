//! `scripts/release`: what it refuses, and the folder that it writes.
//!
//! Tests of the folder need one in `LINKERD2_CNI_RELEASE`, as `scripts/test` makes it with `scripts/release.d/reproduce`.
//! Without it they fail. Tests of the image take the one in `LINKERD2_CNI_IMAGE` instead.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod arm64;
mod benchmarks;
mod build;
mod docker;
mod folder;
mod project;
mod publish;
mod registry;
mod signature;
mod versions;

use std::process::{Command, Output};

use testkit::{cni, release, repository};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs a program and returns its standard output. Panics with its error if it fails.
fn must(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    output.stdout
}

/// Returns everything that a program printed.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}
