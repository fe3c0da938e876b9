//! `scripts/release`: what it refuses, and the folder that it writes.
//!
//! The tests of the folder fail unless `LINKERD2_CNI_RELEASE` names a release folder, as
//! `scripts/test` makes it with `scripts/release.d/reproduce`. The tests of the image use the image
//! that `LINKERD2_CNI_IMAGE` names, if it is set.

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

/// Returns stdout and stderr of a program.
fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}
