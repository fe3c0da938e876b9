//! `scripts/release`: what it refuses, and the folder that it writes.
//!
//! Tests of the folder need one in `LINKERD2_CNI_RELEASE`, as `scripts/test` makes it with
//! `scripts/release.d/reproduce`. Without it they fail. Tests of the image take the one in
//! `LINKERD2_CNI_IMAGE` instead.

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

use std::process::Output;

use testkit::child::must;
use testkit::{release, repository};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns everything that a program printed.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}
