//! What the plugin costs, beside Debian's `portmap`. `scripts/bench` builds and runs it.

mod burst;
mod counters;
mod measure;
mod report;
mod scene;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use testkit::{benchmarks as gate, canned_api as api, cni};

use report::{Report, Row, Size};
use scene::{Call, Scene};

/// Measures the plugin and prints a table.
#[derive(Parser)]
struct Options {
    /// The plugin, as it is shipped.
    #[arg(long)]
    plugin: PathBuf,
    /// A debug build of the plugin, for counting its allocations.
    #[arg(long)]
    debug_plugin: Option<PathBuf>,
    /// The yardstick.
    #[arg(long)]
    portmap: PathBuf,
    /// The image's archive, for its size.
    #[arg(long)]
    image: Option<PathBuf>,
    /// Where the figures go as JSON.
    #[arg(long)]
    json: PathBuf,
    /// Runs of each call.
    #[arg(long, default_value_t = 50)]
    runs: usize,
    /// ADDs of each backend in a burst.
    #[arg(long, default_value_t = 0)]
    adds: usize,
    /// ADDs of a burst that run at the same time.
    #[arg(long, default_value_t = 110)]
    at_once: usize,
    /// Fail where a target is missed.
    #[arg(long)]
    check: bool,
    /// Fail where a counted figure is more than 5 % worse than in this file.
    #[arg(long)]
    baseline: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().collect();
    let outcome = match args.as_slice() {
        [_, flag, notes, program] if flag == measure::PEAK_OF => measure::peak_of(notes, program),
        _ => bench(&Options::parse()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: &Options) -> io::Result<bool> {
    // Before the measuring, as an unreadable file is an error and the file may be overwritten.
    let baseline = options.baseline.as_deref().map(figures).transpose()?;
    let scene = Scene::new(&options.plugin, &options.portmap)?;
    let timings = measure::timings(&scene, options.runs)?;
    let myself = env::current_exe()?;
    let debug_plugin = options.debug_plugin.as_deref();
    let mut rows: Vec<Row> = Vec::new();
    for (call, timings) in scene.calls.iter().zip(timings) {
        let counts = measure::counts(&scene, call, debug_plugin, &myself.to_string_lossy())?;
        let yardstick = rows.first().map_or(0.0, |row| row.wall_ms);
        rows.push(Row::new(call.name, yardstick, timings, &counts));
    }
    let mut sizes =
        vec![Size::of("portmap", &options.portmap)?, Size::of("linkerd-cni", &options.plugin)?];
    if let Some(image) = &options.image {
        sizes.push(Size::of("image", image)?);
    }
    let floor = measure::rss_floor(&scene, &myself.to_string_lossy())?;
    let mut bursts = Vec::new();
    let is_backend = |call: &&Call| scene::BACKENDS.iter().any(|(name, ..)| *name == call.name);
    for call in scene.calls.iter().filter(|call| options.adds > 0 && is_backend(call)) {
        bursts.push(burst::burst(&scene, call, options.adds, options.at_once)?);
    }
    let report = Report {
        architecture: env::consts::ARCH,
        runs: options.runs,
        rss_floor_mb: floor as f64 / 1024.0,
        targets: report::targets(&rows, &sizes),
        rows,
        unusable: scene.unusable.clone(),
        bursts,
        sizes,
    };
    fs::write(&options.json, serde_json::to_vec_pretty(&report)?)?;
    print!("{}", report.table());
    let is_kept = baseline.map(|baseline| is_kept(&baseline, &options.json)).transpose()?;
    Ok((report.holds() || !options.check) && is_kept.unwrap_or(true))
}

/// Prints how the figures of this run compare with the committed ones, and returns whether none is worse.
fn is_kept(committed: &gate::Figures, measured: &Path) -> io::Result<bool> {
    let comparison = gate::compare(committed, &figures(measured)?);
    print!("\n{}", comparison.text());
    Ok(comparison.holds())
}

fn figures(path: &Path) -> io::Result<gate::Figures> {
    let text = fs::read(path)?;
    serde_json::from_slice(&text)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}
