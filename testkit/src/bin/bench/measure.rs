//! Measures the cost of a call from outside of the plugin.

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

/// Number of runs of a call for figures that hardly vary from run to run.
const FEW_RUNS: usize = 3;

#[derive(Clone, Default)]
pub struct Timings {
    wall: Vec<Duration>,
    cpu: Vec<Duration>,
    page_faults: Vec<u64>,
}

/// Times the calls. All calls run in turn, `rounds` times, so that a busy moment of the machine
/// affects all of them alike.
pub fn time_calls(scene: &Scene, rounds: usize) -> anyhow::Result<Vec<Timings>> {
    let mut all = vec![Timings::default(); scene.calls.len()];
    // Namespaces are kept until the end, so that the kernel's work to remove them is not measured.
    let mut namespaces = Vec::new();
    if rounds == 0 {
        return Ok(all);
    }
    for round in 0..=rounds {
        for (call, timings) in scene.calls.iter().zip(&mut all) {
            let netns = scene.netns(call)?;
            let mut command = scene.command(call, netns.as_ref(), &[])?;
            namespaces.push(netns);
            let before = usage_of_children()?;
            let begin = Instant::now();
            let status = command.status()?;
            let wall = begin.elapsed();
            let after = usage_of_children()?;
            ensure!(status.success(), scene.failure(call));
            // The first round is not timed, because it fills the page cache.
            if round > 0 {
                timings.wall.push(wall);
                timings.cpu.push(cpu_time(&after).saturating_sub(cpu_time(&before)));
                let faults = after.minor_page_faults() - before.minor_page_faults();
                timings.page_faults.push(faults.unsigned_abs());
            }
        }
    }
    Ok(all)
}

/// Returns the row of `call`. The times are the medians of `timings`. Each other figure is counted
/// in further runs, under the tool that can count it. `yardstick_ms` is the median time of the
/// first row, and `debug_plugin` a build whose allocations can be counted.
pub fn measure_row(
    scene: &Scene,
    call: &Call,
    mut timings: Timings,
    yardstick_ms: f64,
    debug_plugin: Option<&Path>,
) -> anyhow::Result<Row> {
    let requests = count_requests(scene, call)?;
    let is_portmap = call.name.starts_with(PORTMAP);
    let instructions = if !is_portmap && counters::has_valgrind() {
        Some(counters::instructions(scene, call, requests)?)
    } else {
        None
    };
    let allocations = match debug_plugin {
        Some(plugin) if !is_portmap => Some(counters::allocations(scene, call, plugin, requests)?),
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
        processes: count_processes(scene, call)? as u64,
        rss_mb: measure_rss_kib(scene, call)? as f64 / 1024.0,
        page_faults: median(&mut timings.page_faults),
        instructions,
        allocations: allocations.map(|[number, _]| number),
        allocated_bytes: allocations.map(|[_, bytes]| bytes),
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Returns the number of API requests of `call`. It is the median of [`FEW_RUNS`] runs, because a
/// request is repeated on a busy machine.
fn count_requests(scene: &Scene, call: &Call) -> anyhow::Result<usize> {
    let mut counts = [0; FEW_RUNS];
    for count in &mut counts {
        let before = scene.api.requests().len();
        scene.run_once(call, &[])?;
        *count = scene.api.requests().len() - before;
    }
    Ok(median(&mut counts))
}

/// Returns the number of processes that `call` starts.
fn count_processes(scene: &Scene, call: &Call) -> anyhow::Result<usize> {
    let output = scene.tool_output();
    let system_calls = "trace=clone,clone3,fork,vfork";
    scene.run_once(call, &["strace", "-f", "-qq", "-e", system_calls, "-o", &output])?;
    let trace = fs::read_to_string(&output)?;
    Ok(trace.lines().filter(|line| makes_process(line)).count())
}

/// Whether a line of strace is a system call that makes a process. With `CLONE_THREAD`, the call
/// makes a thread.
fn makes_process(line: &str) -> bool {
    let starts = ["clone(", "clone3(", "fork(", "vfork("];
    starts.iter().any(|start| line.contains(start)) && !line.contains("CLONE_THREAD")
}

/// Returns the peak memory of `call` in KiB. The plugin is started by a new process of this program
/// that is still small, because the kernel counts the memory of the parent for a new process.
fn measure_rss_kib(scene: &Scene, call: &Call) -> anyhow::Result<u64> {
    let output = scene.tool_output();
    let bench = std::env::current_exe()?;
    let mut peaks = [0; FEW_RUNS];
    for kib in &mut peaks {
        scene.run_once(call, &[&bench.to_string_lossy(), PEAK_OF, &output])?;
        *kib = fs::read_to_string(&output)?.trim().parse()?;
    }
    Ok(median(&mut peaks))
}

/// Argument with which this program does only the work of [`write_peak_of`].
pub const PEAK_OF: &str = "--peak-of";

/// Runs `program`, and writes its peak memory in KiB to the file `output`. Returns whether the
/// program succeeded.
pub fn write_peak_of(output: &str, program: &str) -> anyhow::Result<bool> {
    let status = Command::new(program).status()?;
    fs::write(output, usage_of_children()?.max_rss().to_string())?;
    Ok(status.success())
}

fn usage_of_children() -> nix::Result<Usage> {
    getrusage(UsageWho::RUSAGE_CHILDREN)
}

fn cpu_time(usage: &Usage) -> Duration {
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}
