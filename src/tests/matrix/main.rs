//! The job of one row of the matrix, on one kind of node. `scripts/matrix` creates the node, runs this program on it
//! and prints the table; docs/compatibility.md shows the results.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    dead_code,
    reason = "a test program that prints its results and uses a part of the cluster tests' modules"
)]

#[path = "../cluster/active.rs"]
mod active;
#[path = "../cluster/agent.rs"]
mod agent;
mod agents;
#[path = "../cluster/burst.rs"]
mod burst;
mod checks;
mod cilium;
#[path = "../support/cni.rs"]
mod cni;
#[path = "../cluster/connections.rs"]
mod connections;
mod expectations;
#[path = "../cluster/families.rs"]
mod families;
#[path = "../cluster/helm.rs"]
mod helm;
mod istio;
mod job;
mod machine;
mod multus;
mod network;
#[path = "../cluster/node.rs"]
mod node;
#[path = "../cluster/pods.rs"]
mod pods;
mod primary_cni;
mod runtime;
mod several_nodes;
#[path = "../support/until.rs"]
mod until;
#[path = "../cluster/upstream.rs"]
mod upstream;
mod versions;
#[path = "../cluster/watcher.rs"]
mod watcher;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use checks::Checks;

/// Runs the job on the cluster of `KUBECONFIG`, whose only node is this machine, or with --node the job for
/// several nodes.
#[derive(Parser)]
struct Options {
    /// Values of the chart, as for `helm --set`.
    #[arg(long, default_value = "")]
    set: String,
    /// File to write the results to, as JSON.
    #[arg(long)]
    json: PathBuf,
    /// Nodes of scripts/node: two that are in the cluster, and the name of one that joins it.
    #[arg(long = "node")]
    nodes: Vec<String>,
    /// Archive of the image, for the node that joins.
    #[arg(long, requires = "nodes")]
    image: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let mut checks = Checks::new(options.json, versions::of_node());
    match (&options.nodes[..], &options.image) {
        ([], _) => job::run(&options.set, &mut checks),
        ([first, second, third], Some(image)) => {
            several_nodes::run([first, second, third], image, &mut checks);
        }
        _ => panic!("several nodes: --node three times, and --image"),
    }
    if checks.all_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
