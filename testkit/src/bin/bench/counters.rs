//! Instructions of one call, counted by valgrind, and heap allocations, counted by the C library's
//! `libmemusage.so`.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use crate::scene::{Call, Scene};

/// Number of successful runs of a call. The smallest figures of these runs are used, because other
/// work on the machine can only increase a figure.
const RUNS: usize = 3;
/// Largest number of runs, failed ones included. A run fails on a busy machine if the plugin's
/// budget for API requests ends while valgrind slows the plugin down.
const TRIES: usize = 8;

pub fn has_valgrind() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Returns the number of instructions of `call`, as valgrind counts them.
pub fn instructions(scene: &Scene, call: &Call, requests: usize) -> anyhow::Result<u64> {
    let log = format!("--log-file={}", scene.tool_output());
    let tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", &log];
    let run = || scene.run_once(call, &tool);
    let [count] = smallest_figures(scene, call, requests, run, parse_instructions)?;
    Ok(count)
}

/// Reads the number from the log of callgrind.
fn parse_instructions(log: &str) -> Option<[u64; 1]> {
    let (_, number) = log.lines().find_map(|line| line.split_once("Collected :"))?;
    Some([number.trim().parse().ok()?])
}

/// Returns number and bytes of the heap allocations of `call`. `plugin` is a build that links the C
/// library dynamically, so that `libmemusage.so` can count its allocations.
pub fn allocations(
    scene: &Scene,
    call: &Call,
    plugin: &Path,
    requests: usize,
) -> anyhow::Result<[u64; 2]> {
    let call = call.with_program(plugin);
    let run = || run_with_memusage(scene, &call);
    smallest_figures(scene, &call, requests, run, parse_allocations)
}

/// Runs `call` with `libmemusage.so`, which writes its summary to standard error.
fn run_with_memusage(scene: &Scene, call: &Call) -> anyhow::Result<()> {
    let netns = scene.netns(call)?;
    let mut command = scene.command(call, netns.as_ref(), &[])?;
    command
        .env("LD_PRELOAD", "libmemusage.so")
        // The programs that the plugin runs are not counted.
        .env("MEMUSAGE_PROG_NAME", "linkerd-cni")
        .stderr(File::create(scene.tool_output())?);
    scene.run(call, &mut command)
}

/// Sums number and bytes in the rows of malloc, realloc and calloc of libmemusage's summary, such
/// as `malloc|  19  11562  0`. Escape sequences for colours may surround a row.
fn parse_allocations(summary: &str) -> Option<[u64; 2]> {
    let mut sum = [0, 0];
    for function in ["malloc|", "realloc|", "calloc|"] {
        let line = summary.lines().find(|line| line.contains(function))?;
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        for figure in &mut sum {
            *figure += numbers.next()?;
        }
    }
    // Without any allocation, nothing was counted: the program uses another allocator than the C
    // library's.
    let [number, _bytes] = sum;
    if number == 0 { None } else { Some(sum) }
}

/// Runs the call [`RUNS`] times, and returns the smallest of each figure.
fn smallest_figures<const COUNT: usize>(
    scene: &Scene,
    call: &Call,
    requests: usize,
    run: impl Fn() -> anyhow::Result<()>,
    read: impl Fn(&str) -> Option<[u64; COUNT]>,
) -> anyhow::Result<[u64; COUNT]> {
    let mut smallest = [u64::MAX; COUNT];
    let mut runs = 0;
    let mut failures = Vec::new();
    for _ in 0..TRIES {
        match figures_of_one_run(scene, requests, &run, &read) {
            Ok(figures) => {
                for (minimum, figure) in smallest.iter_mut().zip(figures) {
                    *minimum = figure.min(*minimum);
                }
                runs += 1;
            }
            Err(error) => failures.push(format!("{error:#}")),
        }
        if runs == RUNS {
            break;
        }
    }
    if runs == 0 {
        bail!("{}: {TRIES} counted runs failed: {}", call.name, failures.join("; "));
    }
    Ok(smallest)
}

/// Runs the call once. Fails if the call sent another number of API requests than expected, because
/// a repeated request adds millions of instructions, and a failed one saves some.
fn figures_of_one_run<const COUNT: usize>(
    scene: &Scene,
    requests: usize,
    run: impl Fn() -> anyhow::Result<()>,
    read: impl Fn(&str) -> Option<[u64; COUNT]>,
) -> anyhow::Result<[u64; COUNT]> {
    let before = scene.api.requests().len();
    run()?;
    let sent = scene.api.requests().len() - before;
    ensure!(sent == requests, "{sent} API requests instead of {requests}");
    let text = fs::read_to_string(scene.tool_output())?;
    read(&text).with_context(|| format!("no figure in the output: {text}"))
}
