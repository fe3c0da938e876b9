//! Load that a fleet of agents and repair controllers puts on a real API server.
//! `scripts/maintainers/fleet` builds and runs it; docs/maintainers/fleet.md describes the method
//! and the results.
//!
//! A node is a Node object with meshed pods. Real nodes have two real processes each, the agent and
//! the repair controller. Simulated nodes send the requests that were recorded from real nodes. No
//! kubelet runs.

mod control_plane;
mod node;
mod objects;
mod phase;
mod recording;
mod replay;
mod requests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, thread};

use clap::Parser;
use serde_json::{Value, json};

use control_plane::ControlPlane;
use node::{Fleet, Nodes};
use phase::{Phase, Recorder};
use recording::Recording;
use replay::Replay;

/// Number of parts of the fleet that a rollout replaces one after the other.
const WAVES: usize = 10;
/// Time in which the old and the new programs of a part run side by side. It is longer than the
/// time over which the programs spread their first lists.
const WAVE_OVERLAP: Duration = Duration::from_secs(6);

/// Measures the load that agents and repair controllers put on an API server.
#[derive(Parser)]
struct Options {
    /// Numbers of real nodes, one run each. The first is recorded.
    #[arg(long, value_delimiter = ',', default_value = "20,100")]
    nodes: Vec<usize>,
    /// Numbers of simulated nodes, one run each.
    #[arg(long, value_delimiter = ',')]
    replay: Vec<usize>,
    /// Meshed pods on each node.
    #[arg(long, default_value_t = 30)]
    pods: usize,
    /// How long to count requests of the idle fleet.
    #[arg(long, default_value = "12m", value_parser = humantime::parse_duration)]
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
    /// Fail if the fleet breaks a limit, or if simulated nodes differ from real ones.
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
    let mut memory = Vec::new();
    let mut broken_limits = Vec::new();
    let mut recording = Recording::default();
    // The phases of the runs with real nodes, by the number of nodes.
    let mut real_phases = BTreeMap::new();
    let real_runs = options.nodes.iter().map(|nodes| (*nodes, "real"));
    let simulated_runs = options.replay.iter().map(|nodes| (*nodes, "simulated"));
    for (nodes, kind) in real_runs.chain(simulated_runs) {
        let state = options.state.join(format!("{nodes}-{kind}"));
        fs::create_dir_all(&state)?;
        let control_plane = ControlPlane::start(&options.state, &state)?;
        objects::create(&control_plane, &options.manifests, nodes, options.pods)?;
        let mut fleet: Box<dyn Nodes> = match kind {
            "real" => Box::new(Fleet::prepare(&control_plane, &options.programs, &state, nodes)?),
            _ => Box::new(Replay::prepare(&control_plane, recording.clone(), nodes)?),
        };
        println!("\n## {nodes} {kind} nodes with {} meshed pods each\n", options.pods);
        let recorder = Recorder::new(control_plane, nodes)?;
        let is_compared = kind != "real" && real_phases.contains_key(&nodes);
        // The idle phase is not compared.
        let idle = if is_compared { Duration::ZERO } else { options.idle };
        let (phases, sizes) = run(nodes, idle, recorder, &mut *fleet)?;
        if let Some([agent, controller]) = sizes {
            memory.push(json!({
                "nodes": nodes, "pods": options.pods, "agent_kib": agent,
                "repair_controller_kib": controller,
            }));
        }
        for phase in &phases {
            broken_limits.extend(phase.broken_limits(nodes, options.pods));
        }
        if kind == "real" {
            if real_phases.is_empty() {
                let requests = phases.iter().flat_map(|phase| &phase.requests);
                recording = recording::record(requests, &fleet.start_times());
            }
            real_phases.insert(nodes, phases);
        } else if let Some(real) = real_phases.get(&nodes) {
            broken_limits.extend(phase::compare(real, &phases, nodes));
        }
        drop(fleet);
        fs::remove_dir_all(state)?;
    }
    if let Some(path) = &options.json {
        fs::write(path, Value::from(memory).to_string())?;
    }
    for limit in &broken_limits {
        eprintln!("fleet: {limit}");
    }
    if options.check && !broken_limits.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs all phases of a fleet. Returns the phases, and the memory of the first node's programs.
fn run(
    nodes: usize,
    idle: Duration,
    mut recorder: Recorder,
    fleet: &mut dyn Nodes,
) -> anyhow::Result<(Vec<Phase>, Option<[u64; 2]>)> {
    recorder.observe("before the start", idle.min(Duration::from_secs(20)))?;
    fleet.start(0..nodes)?;
    let mut phases = vec![recorder.until_connected(phase::START)?];
    let sizes = fleet.memory();
    phases.push(recorder.observe(phase::IDLE, idle)?);
    for wave in 0..WAVES {
        let first = nodes * wave / WAVES;
        let end = nodes * (wave + 1) / WAVES;
        if first < end {
            fleet.start(first..end)?;
            thread::sleep(WAVE_OVERLAP);
            fleet.stop_replaced(first..end)?;
        }
    }
    phases.push(recorder.until_connected(phase::ROLLOUT)?);
    recorder.restart()?;
    phases.push(recorder.until_connected(phase::RESTART)?);
    Ok((phases, sizes))
}
