//! The main job on one kind of node: a row of the matrix. `scripts/matrix` creates the node, runs this program on it
//! and prints the table; docs/compatibility.md shows the results.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    dead_code,
    unused_imports,
    reason = "a test program that prints its results and uses a part of the cluster tests' modules"
)]

#[path = "../cluster/active.rs"]
mod active;
#[path = "../cluster/agent.rs"]
mod agent;
#[path = "../cluster/burst.rs"]
mod burst;
mod checks;
mod cilium;
#[path = "../support/cni.rs"]
mod cni;
#[path = "../cluster/connections.rs"]
mod connections;
#[path = "../cluster/families.rs"]
mod families;
#[path = "../cluster/helm.rs"]
mod helm;
mod job;
mod multus;
mod network;
#[path = "../cluster/node.rs"]
mod node;
#[path = "../cluster/pods.rs"]
mod pods;
mod primary_cni;
mod runtime;
#[path = "../support/until.rs"]
mod until;
#[path = "../cluster/upstream.rs"]
mod upstream;
mod versions;
#[path = "../cluster/watcher.rs"]
mod watcher;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;

use checks::Checks;

/// Runs the main job on the cluster of `KUBECONFIG`, whose only node is this machine.
#[derive(Parser)]
struct Options {
    /// Values of the chart, as for `helm --set`.
    #[arg(long, default_value = "")]
    set: String,
    /// File to write the results to, as JSON.
    #[arg(long)]
    json: PathBuf,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let mut checks = Checks::default();
    job::run(&options.set, &mut checks);
    let result = json!({"versions": versions::of_node(), "checks": checks});
    fs::write(&options.json, result.to_string()).expect("the file for the results can be written");
    if checks.all_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
