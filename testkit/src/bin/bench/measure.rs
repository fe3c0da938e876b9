//! What a call costs, counted from outside.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use testkit::benchmarks::{PORTMAP, Row};
use testkit::statistics::{median, percentile};

use crate::counters;
use crate::scene::{Call, Scene};

/// How often a call is run for what hardly varies.
const FEW: usize = 3;

#[derive(Clone, Default)]
pub struct Timings {
    wall: Vec<Duration>,
    cpu: Vec<Duration>,
    page_faults: Vec<u64>,
}

/// Runs all calls in turn, `rounds` times, so that a busy moment meets them all.
pub fn timings(scene: &Scene, rounds: usize) -> anyhow::Result<Vec<Timings>> {
    let mut all = vec![Timings::default(); scene.calls.len()];
    // Namespaces are kept until the end, so that the kernel's work to remove them is not measured.
    let mut namespaces = Vec::new();
    if rounds == 0 {
        return Ok(all);
    }
    for round in 0..=rounds {
        for (call, timings) in scene.calls.iter().zip(&mut all) {
            let netns = scene.netns(call)?;
            let mut command = scene.run(call, netns.as_ref(), &[])?;
            namespaces.push(netns);
            let before = children()?;
            let started = Instant::now();
            let status = command.status()?;
            let wall = started.elapsed();
            let after = children()?;
            ensure!(status.success(), scene.failure(call));
            // The first round fills the page cache.
            if round > 0 {
                timings.wall.push(wall);
                timings.cpu.push(cpu(&after).saturating_sub(cpu(&before)));
                let faults = after.minor_page_faults() - before.minor_page_faults();
                timings.page_faults.push(faults.unsigned_abs());
            }
        }
    }
    Ok(all)
}

/// The row of `call`: the medians of its timings, and counts, each of a run under the tool that can
/// see it. `yardstick_ms` is the median of the first row, and `debug_plugin` a build for counting
/// allocations.
pub fn row(
    scene: &Scene,
    call: &Call,
    mut timings: Timings,
    yardstick_ms: f64,
    debug_plugin: Option<&Path>,
) -> anyhow::Result<Row> {
    let requests = requests(scene, call)?;
    let is_ours = !call.name.starts_with(PORTMAP);
    let instructions = if is_ours && counters::has_valgrind() {
        Some(counters::instructions(scene, call, requests)?)
    } else {
        None
    };
    let allocations = match debug_plugin {
        Some(plugin) if is_ours => Some(counters::allocations(scene, call, plugin, requests)?),
        _ => None,
    };
    let wall_ms = ms(median(&mut timings.wall));
    Ok(Row {
        name: call.name.clone(),
        wall_ms,
        wall_p99_ms: ms(percentile(&mut timings.wall, 99)),
        wall_max_ms: ms(percentile(&mut timings.wall, 100)),
        ratio: if yardstick_ms > 0.0 { wall_ms / yardstick_ms } else { 1.0 },
        cpu_ms: ms(median(&mut timings.cpu)),
        requests: requests as u64,
        processes: processes(scene, call)? as u64,
        rss_mb: rss_kib(scene, call)? as f64 / 1024.0,
        page_faults: median(&mut timings.page_faults),
        instructions,
        allocations: allocations.map(|[number, _]| number),
        allocated_bytes: allocations.map(|[_, bytes]| bytes),
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The median of [`FEW`] runs: on a busy machine a request is repeated.
fn requests(scene: &Scene, call: &Call) -> anyhow::Result<usize> {
    let mut all = [0; FEW];
    for made in &mut all {
        let before = scene.api.requests().len();
        scene.run_once(call, &[])?;
        *made = scene.api.requests().len() - before;
    }
    Ok(median(&mut all))
}

/// Threads do not count: they are made with CLONE_THREAD.
fn processes(scene: &Scene, call: &Call) -> anyhow::Result<usize> {
    let notes = scene.notes();
    let trace = "trace=clone,clone3,fork,vfork";
    scene.run_once(call, &["strace", "-f", "-qq", "-e", trace, "-o", &notes])?;
    let trace = fs::read_to_string(&notes)?;
    Ok(trace.lines().filter(|line| makes_process(line)).count())
}

/// Whether a line of strace is a system call that makes a process.
fn makes_process(line: &str) -> bool {
    let starts = ["clone(", "clone3(", "fork(", "vfork("];
    starts.iter().any(|start| line.contains(start)) && !line.contains("CLONE_THREAD")
}

/// Returns the peak memory of `call` in KiB. The kernel counts the size of the parent for a new
/// process, so a small copy of this program starts the plugin.
fn rss_kib(scene: &Scene, call: &Call) -> anyhow::Result<u64> {
    let (notes, myself) = (scene.notes(), std::env::current_exe()?);
    let mut all = [0; FEW];
    for kib in &mut all {
        scene.run_once(call, &[&myself.to_string_lossy(), PEAK_OF, &notes])?;
        *kib = fs::read_to_string(&notes)?.trim().parse()?;
    }
    Ok(median(&mut all))
}

/// The argument that makes this program start another and note its size.
pub const PEAK_OF: &str = "--peak-of";

pub fn peak_of(notes: &str, program: &str) -> anyhow::Result<bool> {
    let status = Command::new(program).status()?;
    fs::write(notes, children()?.max_rss().to_string())?;
    Ok(status.success())
}

fn children() -> nix::Result<Usage> {
    getrusage(UsageWho::RUSAGE_CHILDREN)
}

fn cpu(usage: &Usage) -> Duration {
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}
