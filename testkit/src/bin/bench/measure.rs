//! What a call costs, counted from outside.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use crate::counters::{self, Allocations};
use crate::scene::{Call, Scene};
use testkit::benchmarks::PORTMAP;

/// How often a call is run for what hardly varies.
const FEW: usize = 3;

/// Of many runs of one call.
#[derive(Default)]
pub struct Timings {
    pub wall: Vec<Duration>,
    pub cpu: Vec<Duration>,
    pub page_faults: Vec<u64>,
}

/// What hardly varies between runs of one call.
pub struct Counts {
    pub requests: usize,
    pub processes: usize,
    pub rss_kib: u64,
    pub instructions: Option<u64>,
    pub allocations: Option<Allocations>,
}

/// Runs all calls in turn, `rounds` times, so that a busy moment meets them all.
pub fn timings(scene: &Scene, rounds: usize) -> io::Result<Vec<Timings>> {
    let mut all: Vec<Timings> = scene.calls.iter().map(|_| Timings::default()).collect();
    // Namespaces live until the end: the kernel's work of taking them away is not ours.
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
            if !status.success() {
                return Err(scene.failure(call));
            }
            let after = children()?;
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

/// Counts of one call, each by a run under the tool that can see it. `debug_plugin` is a build for counting allocations.
pub fn counts(
    scene: &Scene,
    call: &Call,
    debug_plugin: Option<&Path>,
    myself: &str,
) -> io::Result<Counts> {
    let requests = requests(scene, call)?;
    let is_ours = !call.name.starts_with(PORTMAP);
    let with_valgrind = is_ours && counters::is_installed();
    let instructions = || counters::instructions(scene, call, requests);
    let allocations = |plugin| counters::allocations(scene, call, plugin, requests);
    Ok(Counts {
        requests,
        processes: processes(scene, call)?,
        rss_kib: rss(scene, call, myself)?,
        instructions: with_valgrind.then(instructions).transpose()?,
        allocations: debug_plugin.filter(|_| is_ours).map(allocations).transpose()?,
    })
}

/// The median of [`FEW`] runs: on a busy machine a request is repeated.
fn requests(scene: &Scene, call: &Call) -> io::Result<usize> {
    let mut all = Vec::new();
    for _ in 0..FEW {
        let before = scene.api.requests().len();
        finish(scene, call, &[])?;
        all.push(scene.api.requests().len() - before);
    }
    Ok(median(&mut all))
}

/// Threads do not count: they are made with CLONE_THREAD.
fn processes(scene: &Scene, call: &Call) -> io::Result<usize> {
    let notes = scene.notes();
    let tool = ["strace", "-f", "-qq", "-e", "trace=clone,clone3,fork,vfork", "-o"];
    let tool = [&tool[..], &[notes.as_str()]].concat();
    finish(scene, call, &tool)?;
    let is_process = |line: &&str| {
        let starts = ["clone(", "clone3(", "fork(", "vfork("];
        starts.iter().any(|start| line.contains(start)) && !line.contains("CLONE_THREAD")
    };
    let trace = fs::read_to_string(&notes)?;
    Ok(trace.lines().filter(is_process).count())
}

/// The kernel folds the size of the process that starts another into that other's, so a
/// small copy of this program starts it, see [`peak_of`].
fn rss(scene: &Scene, call: &Call, myself: &str) -> io::Result<u64> {
    let notes = scene.notes();
    let mut all = Vec::new();
    for _ in 0..FEW {
        finish(scene, call, &[myself, PEAK_OF, &notes])?;
        let text = fs::read_to_string(&notes)?;
        all.push(text.trim().parse().map_err(io::Error::other)?);
    }
    Ok(median(&mut all))
}

/// What [`rss`] says of a program that needs next to nothing, in KiB: the size of the copy
/// that starts it. Figures of about that size are upper bounds.
pub fn rss_floor(scene: &Scene, myself: &str) -> io::Result<u64> {
    let notes = scene.notes();
    let status = Command::new(myself).args([PEAK_OF, &notes, "/bin/true"]).status()?;
    if !status.success() {
        return Err(io::Error::other("/bin/true fails"));
    }
    let text = fs::read_to_string(&notes)?;
    text.trim().parse().map_err(io::Error::other)
}

/// Runs `call` to its end, by way of `wrapper`.
pub fn finish(scene: &Scene, call: &Call, wrapper: &[&str]) -> io::Result<()> {
    let netns = scene.netns(call)?;
    let status = scene.run(call, netns.as_ref(), wrapper)?.status()?;
    if status.success() { Ok(()) } else { Err(scene.failure(call)) }
}

/// The argument that makes this program start another and note its size.
pub const PEAK_OF: &str = "--peak-of";

/// Runs `program` and writes its largest resident set, in KiB, into the file `notes`.
pub fn peak_of(notes: &str, program: &str) -> io::Result<bool> {
    let status = Command::new(program).status()?;
    fs::write(notes, children()?.max_rss().to_string())?;
    Ok(status.success())
}

fn children() -> io::Result<Usage> {
    Ok(getrusage(UsageWho::RUSAGE_CHILDREN)?)
}

fn cpu(usage: &Usage) -> Duration {
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}

/// The middle one.
pub fn median<T: Copy + Ord + Default>(values: &mut [T]) -> T {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The smallest time that is not exceeded by `percent` of the times, in milliseconds.
pub fn percentile_ms(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(index).copied().unwrap_or_default().as_secs_f64() * 1000.0
}
