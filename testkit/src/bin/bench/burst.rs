//! Many ADDs at the same time, as when all pods of a node start.

use std::io;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use testkit::benchmarks::Burst;

use crate::measure::percentile_ms;
use crate::scene::{Call, Scene};

/// Runs `adds` ADDs, `at_once` of them at a time. Each has a netns of its own, which is made before the first ADD.
pub fn burst(scene: &Scene, call: &Call, adds: usize, at_once: usize) -> io::Result<Burst> {
    raise_open_files()?;
    let mut namespaces = Vec::new();
    let mut commands = Vec::new();
    for _ in 0..adds {
        let netns = scene.netns(call)?;
        commands.push(scene.run(call, netns.as_ref(), &[])?);
        namespaces.push(netns);
    }
    let commands = Mutex::new(commands);
    let mut times = thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(|| worker(&commands))).collect();
        workers.into_iter().try_fold(Vec::new(), |mut all, worker| {
            all.extend(worker.join().map_err(|_| io::Error::other("a panic"))??);
            Ok::<_, io::Error>(all)
        })
    })
    .map_err(|error| io::Error::other(format!("{}: {error}", call.name)))?;
    Ok(Burst {
        name: call.name.to_owned(),
        adds,
        at_once,
        p50_ms: percentile_ms(&mut times, 50),
        p99_ms: percentile_ms(&mut times, 99),
        max_ms: percentile_ms(&mut times, 100),
    })
}

/// Runs commands until none is left, and returns the time of each.
fn worker(commands: &Mutex<Vec<Command>>) -> io::Result<Vec<Duration>> {
    let next = || commands.lock().map(|mut commands| commands.pop()).unwrap_or_default();
    let mut times = Vec::new();
    while let Some(mut command) = next() {
        let started = Instant::now();
        let status = command.status()?;
        times.push(started.elapsed());
        if !status.success() {
            return Err(io::Error::other("an ADD of the burst failed"));
        }
    }
    Ok(times)
}

/// Each ADD has three open files: its netns, stdin and stdout.
fn raise_open_files() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
