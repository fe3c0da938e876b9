//! Instructions of one call, counted by valgrind, and heap allocations, counted by the C library's `libmemusage.so`.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use crate::measure::finish;
use crate::scene::{Call, Scene};

/// Successful runs whose smallest figures count: a busy machine only adds.
const RUNS: usize = 3;
/// Runs that are tried for them. On a busy machine the plugin's budget for API requests runs out under valgrind.
const TRIES: usize = 8;

pub fn has_valgrind() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

pub fn instructions(scene: &Scene, call: &Call, requests: usize) -> anyhow::Result<u64> {
    let log = format!("--log-file={}", scene.notes());
    let tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", &log];
    let read = |log: &str| {
        let collected = log.lines().find_map(|line| line.split_once("Collected :"));
        collected.and_then(|(_, number)| Some([number.trim().parse().ok()?]))
    };
    let [count] = smallest(scene, call, requests, || finish(scene, call, &tool), read)?;
    Ok(count)
}

/// Number and bytes of heap allocations of `call` by `plugin`, a build that links the C library dynamically.
pub fn allocations(
    scene: &Scene,
    call: &Call,
    plugin: &Path,
    requests: usize,
) -> anyhow::Result<[u64; 2]> {
    let call = call.by(plugin);
    // Standard error becomes the summary.
    let run = || {
        let netns = scene.netns(&call)?;
        let mut command = scene.run(&call, netns.as_ref(), &[])?;
        command
            .env("LD_PRELOAD", "libmemusage.so")
            // Not of the programs that the plugin runs.
            .env("MEMUSAGE_PROG_NAME", "linkerd-cni")
            .stderr(File::create(scene.notes())?);
        scene.succeed(&call, &mut command)
    };
    smallest(scene, &call, requests, run, allocations_of)
}

/// Sums the rows of malloc, realloc and calloc, such as `malloc|  19  11562  0`, between sequences for colours.
fn allocations_of(summary: &str) -> Option<[u64; 2]> {
    let mut sum = [0, 0];
    for function in ["malloc|", "realloc|", "calloc|"] {
        let line = summary.lines().find(|line| line.contains(function))?;
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        for figure in &mut sum {
            *figure += numbers.next()?;
        }
    }
    // Valgrind or an allocator of the program's own would leave the rows empty.
    (sum[0] > 0).then_some(sum)
}

fn smallest<const COUNT: usize>(
    scene: &Scene,
    call: &Call,
    requests: usize,
    run: impl Fn() -> anyhow::Result<()>,
    read: impl Fn(&str) -> Option<[u64; COUNT]>,
) -> anyhow::Result<[u64; COUNT]> {
    // A run with another number of API requests does not count: a repeated request adds millions of instructions, and a
    // failed one saves some.
    let once = || {
        let before = scene.api.requests().len();
        run()?;
        let made = scene.api.requests().len() - before;
        ensure!(made == requests, "{made} API requests instead of {requests}");
        let text = fs::read_to_string(scene.notes())?;
        read(&text).with_context(|| format!("no figure in the output: {text}"))
    };
    let (mut smallest, mut runs, mut failures) = ([u64::MAX; COUNT], 0, Vec::new());
    for _ in 0..TRIES {
        match once() {
            Ok(figures) => {
                smallest = std::array::from_fn(|index| smallest[index].min(figures[index]));
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
