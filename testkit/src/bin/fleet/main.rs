//! Load that a fleet of agents and repair controllers puts on a real API server. `scripts/fleet`
//! builds and runs it; docs/maintainers/fleet.md describes the method and the results.
//!
//! Each simulated node is a Node object with meshed pods, and two real processes: the agent and
//! the repair controller, with directories of their own. No kubelet runs.

mod control_plane;
mod node;
mod objects;
mod phase;
mod requests;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};

use control_plane::ControlPlane;
use node::{AGENT, Fleet, REPAIR_CONTROLLER};
use phase::Recorder;

/// Measures the load that agents and repair controllers put on an API server.
#[derive(Parser)]
struct Options {
    /// Numbers of nodes, one run each.
    #[arg(long, value_delimiter = ',', default_value = "100,500,2000")]
    nodes: Vec<usize>,
    /// Meshed pods on each node.
    #[arg(long, default_value_t = 30)]
    pods: usize,
    /// How long to count requests of the idle fleet.
    #[arg(long, default_value = "5m", value_parser = humantime::parse_duration)]
    idle: Duration,
    /// Directory with the agent and the repair controller.
    #[arg(long)]
    programs: PathBuf,
    /// Directory for the state of all processes, readable by every user.
    #[arg(long)]
    state: PathBuf,
    /// Manifests of the chart, as `helm template` prints them.
    #[arg(long)]
    manifests: PathBuf,
    /// Fail if the fleet breaks a limit.
    #[arg(long)]
    check: bool,
    /// Where to write the memory of the programs as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run_all(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("fleet: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_all(options: &Options) -> anyhow::Result<ExitCode> {
    let (mut memory, mut broken) = (Vec::new(), Vec::new());
    for &nodes in &options.nodes {
        memory.push(run(options, nodes, &mut broken)?);
    }
    if let Some(path) = &options.json {
        fs::write(path, Value::from(memory).to_string())?;
    }
    for limit in &broken {
        eprintln!("fleet: {limit}");
    }
    Ok(ExitCode::from(u8::from(options.check && !broken.is_empty())))
}

/// Runs one fleet through all phases and prints the results as Markdown. Adds a sentence to `broken` for each limit that
/// the fleet breaks. Returns the memory of the programs, for scripts/benchmarks.
fn run(options: &Options, nodes: usize, broken: &mut Vec<String>) -> anyhow::Result<Value> {
    let (state, pods) = (options.state.join(nodes.to_string()), options.pods);
    fs::create_dir_all(&state)?;
    let control_plane = ControlPlane::start(&options.state, &state)?;
    objects::create(&control_plane, &options.manifests, nodes, pods)?;
    let mut fleet = Fleet::prepare(&control_plane, &options.programs, &state, nodes, pods)?;

    println!("\n## {nodes} nodes with {pods} meshed pods each\n\n{}", phase::HEADER);
    let mut recorder = Recorder::new(control_plane, nodes)?;
    let calm = options.idle.min(Duration::from_secs(20));
    let mut phases = vec![recorder.observe("before the start", calm)?];
    fleet.start()?;
    phases.push(recorder.until_connected(phase::START, &fleet)?);
    let [agent, controller] = [AGENT, REPAIR_CONTROLLER].map(|program| fleet.memory(program));
    phases.push(recorder.observe(phase::IDLE, options.idle)?);
    recorder.restart()?;
    phases.push(recorder.until_connected(phase::RESTART, &fleet)?);
    drop(fleet);
    for phase in &phases {
        phase.print_requests();
    }
    println!("- proportional set size: agent {agent} KiB, repair controller {controller} KiB");
    broken.extend(phases[1..].iter().flat_map(|phase| phase.broken_limits(nodes)));
    Ok(json!({
        "nodes": nodes, "pods": pods, "agent_kib": agent, "repair_controller_kib": controller,
    }))
}
