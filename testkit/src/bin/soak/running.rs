//! Pods that run, and their processes, which have to outlive a restart of the container runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use testkit::cluster::containers::Sandbox;
use testkit::until::until;

use crate::ledger::{self, Invariant};

/// Program of the pods' containers.
const PROBE: &str = "/probe\0";
/// Time after a restart in which kubelet starts containers again that it takes for dead.
const SETTLE: Duration = Duration::from_secs(5);

/// Pods that have responded and are not being deleted. The load writes, an action reads.
static RUNNING: Mutex<Running> = Mutex::new(Running { netns: BTreeMap::new(), is_held: false });

struct Running {
    netns: BTreeMap<String, PathBuf>,
    /// Whether the load deletes no pods.
    is_held: bool,
}

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn insert(name: &str, sandbox: &Sandbox) {
    running().netns.insert(name.to_owned(), sandbox.netns.clone());
}

/// Called before a deletion begins. Returns whether it may: not during [`survive`].
pub fn remove(name: &str) -> bool {
    let mut running = running();
    if !running.is_held {
        running.netns.remove(name);
    }
    !running.is_held
}

/// Checks that `disturb` leaves all pods the netns and processes that they have. No pod is deleted meanwhile.
pub fn survive(disturb: impl FnOnce()) {
    until("a pod has responded", || !running().netns.is_empty());
    running().is_held = true;
    let _held = Held;
    let before = running().netns.clone();
    let processes: BTreeMap<_, _> = before.values().map(|netns| (netns, found(netns))).collect();
    disturb();
    thread::sleep(SETTLE);
    for (name, netns) in &before {
        let (had, has) = (&processes[netns], found(netns));
        if had.is_empty() || !had.is_subset(&has) {
            let seen = format!("pod {name} had processes {had:?} in {netns:?}, now {has:?}");
            ledger::violated(Invariant::Running, seen);
        }
    }
    println!("         {} pods ran before, and were compared", before.len());
}

/// Kills the last container of a pod, as a seeded bug. Kubelet starts it again in the same netns.
pub fn kill_container_of_one() {
    let netns = running().netns.values().next().cloned().expect("a pod has responded");
    if let Some(pid) = found(&netns).last() {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
}

/// Holds back deletions until it is dropped.
struct Held;

impl Drop for Held {
    fn drop(&mut self) {
        running().is_held = false;
    }
}

/// The processes of containers in a netns.
fn found(netns: &Path) -> BTreeSet<i32> {
    let is_of_container = |pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
        line.is_ok_and(|line| line.starts_with(PROBE))
    };
    processes(netns).into_iter().filter(is_of_container).collect()
}

/// Kills all processes in a netns, as a seeded bug. Without the sandbox's process kubelet creates another sandbox.
pub fn kill_all(netns: &Path) {
    for pid in processes(netns) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

fn processes(netns: &Path) -> Vec<i32> {
    let Ok(netns) = fs::metadata(netns) else {
        return Vec::new();
    };
    let is_inside = |pid: &i32| {
        let own = fs::metadata(format!("/proc/{pid}/ns/net"));
        own.is_ok_and(|own| (own.dev(), own.ino()) == (netns.dev(), netns.ino()))
    };
    testkit::pids().filter(is_inside).collect()
}
