//! Load that a fleet of agents and repair controllers puts on a real API server. `scripts/fleet`
//! builds and runs it; docs/maintainers/fleet.md describes the method and the results.
//!
//! Each simulated node is a Node object with meshed pods, and two real processes: the agent and
//! the repair controller, with directories of their own. No kubelet runs.

mod audit_log;
mod checks;
mod control_plane;
mod metrics;
mod node;
mod objects;
mod phase;
mod report;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use control_plane::ControlPlane;
use node::Fleet;
use phase::Recorder;
use report::Run;

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
    let options = Options::parse();
    let mut broken = Vec::new();
    let mut memory = Vec::new();
    for &nodes in &options.nodes {
        match run(&options, nodes) {
            Ok(run) => {
                println!("{}", run.markdown());
                memory.push(run.memory_json());
                broken.extend(checks::broken_limits(&run));
            }
            Err(error) => {
                eprintln!("fleet: {nodes} nodes: {error:#}");
                return ExitCode::FAILURE;
            }
        }
    }
    if let Some(path) = &options.json
        && let Err(error) = fs::write(path, serde_json::Value::from(memory).to_string())
    {
        eprintln!("fleet: {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    for limit in &broken {
        eprintln!("fleet: {limit}");
    }
    ExitCode::from(u8::from(options.check && !broken.is_empty()))
}

/// Runs one fleet through all phases.
fn run(options: &Options, nodes: usize) -> anyhow::Result<Run> {
    let state = options.state.join(nodes.to_string());
    fs::create_dir_all(&state)?;
    let mut control_plane = ControlPlane::start(&options.state, &state)?;
    objects::create(&control_plane, &options.manifests, nodes, options.pods)?;
    eprintln!("fleet: {nodes} nodes: created the objects");
    let mut fleet = Fleet::prepare(&control_plane, &options.programs, &state, nodes, options.pods)?;

    let mut recorder = Recorder::new(&control_plane, nodes)?;
    let baseline = recorder.observe(&control_plane, options.idle.min(Duration::from_secs(20)))?;
    eprintln!("fleet: {nodes} nodes: starting");
    fleet.start()?;
    let start = recorder.until_connected(&control_plane, &fleet)?;
    eprintln!("fleet: {nodes} nodes: start: {}", start.summary());
    let memory = fleet.memory();
    let idle = recorder.observe(&control_plane, options.idle)?;
    eprintln!("fleet: {nodes} nodes: idle: {}; restarting the API server", idle.summary());
    control_plane.restart()?;
    recorder.restarted(&control_plane)?;
    let restart = recorder.until_connected(&control_plane, &fleet)?;
    eprintln!("fleet: {nodes} nodes: restart: {}", restart.summary());
    drop(fleet);
    Ok(Run { nodes, pods: options.pods, memory, baseline, start, idle, restart })
}
