//! What the plugin costs, beside Debian's `portmap`. `scripts/bench` builds and runs it.

mod counters;
mod measure;
mod scene;
mod targets;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use testkit::benchmarks::{self, Figures, Row, Size};

use scene::Scene;

/// Measures the plugin and writes the figures as JSON.
#[derive(Parser)]
struct Options {
    /// The plugin, as it is shipped.
    #[arg(long)]
    plugin: PathBuf,
    /// A debug build of the plugin, for counting its allocations.
    #[arg(long)]
    debug_plugin: Option<PathBuf>,
    /// Debian's portmap, with whose times the plugin's are compared.
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
    /// Fail where a target is missed.
    #[arg(long)]
    check: bool,
    /// Fail where a counted figure is more than 5 % worse than in this file.
    #[arg(long)]
    baseline: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().collect();
    let result = match args.as_slice() {
        [_, flag, output, program] if flag == measure::PEAK_OF => {
            measure::write_peak_of(output, program)
        }
        _ => bench(&Options::parse()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures the plugin, and writes the figures. Returns whether the figures meet the targets and
/// the baseline, if the options ask for these checks.
fn bench(options: &Options) -> anyhow::Result<bool> {
    // The baseline is read before the measurements, so that an unreadable file is found at once,
    // and because the figures may be written to the same file.
    let baseline = match &options.baseline {
        Some(path) => Some(read_figures(path)?),
        None => None,
    };
    let scene = Scene::new(&options.plugin, &options.portmap)?;
    let timings = measure::time_calls(&scene, options.runs)?;
    let mut rows: Vec<Row> = Vec::new();
    for (call, timings) in scene.calls.iter().zip(timings) {
        let yardstick_ms = rows.first().map_or(0.0, |row| row.wall_ms);
        let debug_plugin = options.debug_plugin.as_deref();
        rows.push(measure::measure_row(&scene, call, timings, yardstick_ms, debug_plugin)?);
    }
    let mut sizes = Vec::new();
    for (name, path) in [
        ("portmap", Some(&options.portmap)),
        ("linkerd-cni", Some(&options.plugin)),
        ("image", options.image.as_ref()),
    ] {
        if let Some(path) = path {
            sizes.push(Size { name: name.to_owned(), bytes: path.metadata()?.len() });
        }
    }
    let figures = Figures {
        architecture: env::consts::ARCH.to_owned(),
        runs: options.runs,
        targets: targets::targets(&rows, &sizes),
        rows,
        unusable: scene.unusable.clone(),
        sizes,
    };
    fs::write(&options.json, serde_json::to_vec_pretty(&figures)?)?;
    let targets_hold = !options.check || figures.targets.iter().all(|target| target.holds);
    let Some(baseline) = baseline else {
        return Ok(targets_hold);
    };
    let comparison = benchmarks::compare(&baseline, &figures);
    print!("{}", comparison.text());
    Ok(targets_hold && comparison.holds())
}

fn read_figures(path: &Path) -> anyhow::Result<Figures> {
    let text = fs::read(path)?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}
