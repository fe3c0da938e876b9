//! The job of one row of the matrix, on one kind of node. `scripts/matrix` creates the node, runs
//! this program on it and prints the table; docs/maintainers/compatibility.md shows the results.

mod agents;
mod checks;
mod cilium;
mod cni_checks;
mod istio;
mod job;
mod kubernetes_e2e;
mod machine;
mod multus;
mod network;
mod primary_cni;
mod restarts;
mod runtime;
mod several_nodes;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use testkit::cluster::node;

use checks::Checks;

/// Runs the job on the cluster of `KUBECONFIG`, whose only node is this machine, or with --node the
/// job for several nodes.
#[derive(Parser)]
struct Options {
    /// Values of the chart, as for `helm --set`.
    #[arg(long, default_value = "")]
    set: String,
    /// File to write the results to, as JSON.
    #[arg(long)]
    json: PathBuf,
    /// Number of the node's reboots, in a job of its own.
    #[arg(long, default_value_t = 0)]
    reboots: usize,
    /// Run Kubernetes' own network tests instead of the job.
    #[arg(long)]
    kubernetes_e2e: bool,
    /// Nodes of scripts/node: two that are in the cluster, and the name of one that joins it.
    #[arg(long = "node")]
    nodes: Vec<String>,
    /// Archive of the image, for the node that joins.
    #[arg(long, requires = "nodes")]
    image: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let mut checks = Checks::new(options.json, node::versions());
    match (&options.nodes[..], &options.image) {
        ([], _) if options.reboots > 0 => restarts::run(options.reboots, &mut checks),
        ([], _) if options.kubernetes_e2e => kubernetes_e2e::run(&mut checks),
        ([], _) => job::run(&options.set, &mut checks),
        ([first, second, third], Some(image)) => {
            several_nodes::run([first, second, third], image, &mut checks);
        }
        _ => panic!("several nodes: --node three times, and --image"),
    }
    if checks.all_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
