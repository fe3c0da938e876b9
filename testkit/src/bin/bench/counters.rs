//! Instructions of one call, counted by valgrind, and heap allocations, counted by the C library's `libmemusage.so`.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::measure::finish;
use crate::scene::{Call, Scene};

/// Successful runs whose smallest figure counts: a busy machine only adds.
const RUNS: usize = 3;
/// Runs that are tried for them. On a busy machine the plugin's budget for API requests runs out under valgrind.
const TRIES: usize = 8;

/// Heap allocations of one run.
#[derive(Clone, Copy)]
pub struct Allocations {
    pub number: u64,
    pub bytes: u64,
}

pub fn is_installed() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Instructions in user space of `call`, which makes `requests` API requests.
pub fn instructions(scene: &Scene, call: &Call, requests: usize) -> io::Result<u64> {
    let log = format!("--log-file={}", scene.notes());
    let tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", &log];
    let counts = repeat(
        scene,
        call,
        requests,
        || finish(scene, call, &tool),
        |log| {
            let collected = log.lines().find_map(|line| line.split_once("Collected :"));
            collected.and_then(|(_, number)| number.trim().parse().ok())
        },
    )?;
    Ok(smallest(counts))
}

/// Heap allocations of `call` by `plugin`, a build that links the C library dynamically.
pub fn allocations(
    scene: &Scene,
    call: &Call,
    plugin: &Path,
    requests: usize,
) -> io::Result<Allocations> {
    let call = call.by(plugin);
    let run = || memory_usage(scene, &call);
    let counts = repeat(scene, &call, requests, run, allocations_of)?;
    let number = smallest(counts.iter().map(|found| found.number));
    Ok(Allocations { number, bytes: smallest(counts.iter().map(|found| found.bytes)) })
}

/// Runs `call`, whose standard error becomes the summary.
fn memory_usage(scene: &Scene, call: &Call) -> io::Result<()> {
    let netns = scene.netns(call)?;
    let mut command = scene.run(call, netns.as_ref(), &[])?;
    command
        .env("LD_PRELOAD", "libmemusage.so")
        // Not of the programs that the plugin runs.
        .env("MEMUSAGE_PROG_NAME", "linkerd-cni")
        .stderr(File::create(scene.notes())?);
    if command.status()?.success() { Ok(()) } else { Err(scene.failure(call)) }
}

/// Sums the rows of malloc, realloc and calloc, such as `malloc|  19  11562  0`, between sequences for colours.
fn allocations_of(summary: &str) -> Option<Allocations> {
    let row = |function: &str| {
        let line = summary.lines().find(|line| line.contains(&format!("{function}|")))?;
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        Some((numbers.next()?, numbers.next()?))
    };
    let rows = [row("malloc")?, row("realloc")?, row("calloc")?];
    let number = rows.iter().map(|(calls, _)| calls).sum();
    // Valgrind or an allocator of the program's own would leave the rows empty.
    (number > 0).then(|| Allocations { number, bytes: rows.iter().map(|(_, bytes)| bytes).sum() })
}

fn smallest(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().min().unwrap_or_default()
}

/// Figures of [`RUNS`] runs that succeeded, or of fewer if [`TRIES`] runs have no more. A run with another number of
/// API requests does not count: a repeated request adds millions of instructions, and a failed one saves some.
fn repeat<T>(
    scene: &Scene,
    call: &Call,
    requests: usize,
    run: impl Fn() -> io::Result<()>,
    read: impl Fn(&str) -> Option<T>,
) -> io::Result<Vec<T>> {
    let mut counts = Vec::new();
    let mut failures = Vec::new();
    for _ in 0..TRIES {
        match one_run(scene, requests, &run, &read) {
            Ok(count) => counts.push(count),
            Err(error) => failures.push(error.to_string()),
        }
        if counts.len() == RUNS {
            break;
        }
    }
    if counts.is_empty() {
        let (name, failures) = (call.name, failures.join("; "));
        return Err(io::Error::other(format!("{name}: {TRIES} counted runs failed: {failures}")));
    }
    Ok(counts)
}

fn one_run<T>(
    scene: &Scene,
    requests: usize,
    run: impl Fn() -> io::Result<()>,
    read: impl Fn(&str) -> Option<T>,
) -> io::Result<T> {
    let before = scene.api.requests().len();
    run()?;
    let made = scene.api.requests().len() - before;
    if made != requests {
        return Err(io::Error::other(format!("{made} API requests instead of {requests}")));
    }
    let text = fs::read_to_string(scene.notes())?;
    read(&text).ok_or_else(|| io::Error::other(format!("no figure in the output: {text}")))
}
