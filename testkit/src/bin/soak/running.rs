//! Pods that run, and their processes, which have to outlive a restart of the container runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::until::until;

use crate::ledger::{self, Invariant};

const PROBE: &str = "/probe\0";
/// Time after a restart in which kubelet starts containers again that it takes for dead.
const SETTLE: Duration = Duration::from_secs(5);

static RUNNING: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
static HOLD: Mutex<()> = Mutex::new(());

fn running() -> MutexGuard<'static, BTreeMap<String, PathBuf>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn insert(name: &str, netns: &Path) {
    running().insert(name.to_owned(), netns.to_owned());
}

/// Returns whether a deletion of the pod may begin. None may begin during [`survive`].
pub fn remove(name: &str) -> bool {
    let hold = HOLD.try_lock();
    let may = !matches!(hold, Err(TryLockError::WouldBlock));
    if may {
        running().remove(name);
    }
    may
}

pub fn survive(disturb: impl FnOnce()) {
    until("a pod has responded", || !running().is_empty());
    let _hold = HOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let before = running().clone();
    let processes: BTreeMap<_, _> =
        before.values().map(|netns| (netns, container_processes(netns))).collect();
    disturb();
    thread::sleep(SETTLE);
    for (name, netns) in &before {
        let (had, has) = (&processes[netns], container_processes(netns));
        if had.is_empty() || !had.is_subset(&has) {
            let seen = format!("pod {name} had processes {had:?} in {netns:?}, now {has:?}");
            ledger::violated(Invariant::Running, seen);
        }
    }
    println!("         {} pods ran before, and were compared", before.len());
}

/// Kills the last container of a pod, as a seeded bug. Kubelet starts it again in the same netns.
pub fn kill_container_of_one() {
    let netns = running().values().next().cloned().expect("a pod has responded");
    if let Some(pid) = container_processes(&netns).last() {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
}

fn container_processes(netns: &Path) -> BTreeSet<i32> {
    processes(netns).into_iter().filter(|pid| is_of_container(*pid)).collect()
}

fn is_of_container(pid: i32) -> bool {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
    line.is_ok_and(|line| line.starts_with(PROBE))
}

/// Kills all processes in a netns, as a seeded bug. Without the sandbox's process kubelet creates
/// another sandbox.
pub fn kill_all(netns: &Path) {
    for pid in processes(netns) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

fn processes(netns: &Path) -> Vec<i32> {
    let Some(inode) = device_and_inode(netns) else {
        return Vec::new();
    };
    let mut pids: Vec<i32> = testkit::pids().collect();
    pids.retain(|pid| device_and_inode(format!("/proc/{pid}/ns/net").as_ref()) == Some(inode));
    pids
}

fn device_and_inode(path: &Path) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}
