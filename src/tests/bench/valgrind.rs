//! Instructions and heap allocations of one call, counted by valgrind.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::measure::finish;
use crate::scene::{Call, Scene};

/// Successful runs whose smallest number of instructions counts: a busy machine only adds.
const RUNS: usize = 3;
/// Successful runs for allocations, whose number varies by 1 in 1,000. A run takes seconds.
const ALLOCATION_RUNS: usize = 1;
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
    let options = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let counts = repeat(scene, call, requests, RUNS, &options, |log| {
        let collected = log.lines().find_map(|line| line.split_once("Collected :"));
        collected.and_then(|(_, number)| parse(number))
    })?;
    Ok(smallest(counts))
}

/// Heap allocations of `call` by `plugin`, a build whose `malloc` valgrind can replace: not static, with symbols.
pub fn allocations(
    scene: &Scene,
    call: &Call,
    plugin: &Path,
    requests: usize,
) -> io::Result<Allocations> {
    let options = ["--tool=dhat", "--dhat-out-file=/dev/null"];
    let counts =
        repeat(scene, &call.by(plugin), requests, ALLOCATION_RUNS, &options, allocations_of)?;
    let number = smallest(counts.iter().map(|found| found.number));
    if number == 0 {
        let plugin = plugin.display();
        return Err(io::Error::other(format!("valgrind sees no allocations of {plugin}")));
    }
    Ok(Allocations { number, bytes: smallest(counts.iter().map(|found| found.bytes)) })
}

/// Reads `Total: 12,234 bytes in 31 blocks`.
fn allocations_of(log: &str) -> Option<Allocations> {
    let (_, total) = log.lines().find_map(|line| line.split_once("Total:"))?;
    let (bytes, number) = total.split_once(" bytes in ")?;
    let (number, _) = number.split_once(" block")?;
    Some(Allocations { number: parse(number)?, bytes: parse(bytes)? })
}

fn parse(number: &str) -> Option<u64> {
    number.trim().replace(',', "").parse().ok()
}

fn smallest(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().min().unwrap_or_default()
}

/// Figures of `runs` runs that succeeded, or of fewer if [`TRIES`] runs have no more. A run with another number of
/// API requests does not count: a repeated request adds millions of instructions, and a failed one saves some.
fn repeat<T>(
    scene: &Scene,
    call: &Call,
    requests: usize,
    runs: usize,
    options: &[&str],
    read: impl Fn(&str) -> Option<T>,
) -> io::Result<Vec<T>> {
    let mut counts = Vec::new();
    let mut failure = String::new();
    for _ in 0..TRIES {
        match one_run(scene, call, requests, options, &read) {
            Ok(count) => counts.push(count),
            Err(error) => failure = error.to_string(),
        }
        if counts.len() == runs {
            break;
        }
    }
    if counts.is_empty() {
        let name = call.name;
        let error = format!("{name}: {TRIES} runs under valgrind failed, the last with: {failure}");
        return Err(io::Error::other(error));
    }
    Ok(counts)
}

fn one_run<T>(
    scene: &Scene,
    call: &Call,
    requests: usize,
    options: &[&str],
    read: impl Fn(&str) -> Option<T>,
) -> io::Result<T> {
    let notes = scene.notes();
    let log = format!("--log-file={notes}");
    let tool = [&["valgrind", log.as_str()], options].concat();
    let before = scene.api.requests().len();
    finish(scene, call, &tool)?;
    let made = scene.api.requests().len() - before;
    if made != requests {
        return Err(io::Error::other(format!("{made} API requests instead of {requests}")));
    }
    let text = fs::read_to_string(&notes)?;
    read(&text).ok_or_else(|| io::Error::other(format!("no figure in the output: {text}")))
}
