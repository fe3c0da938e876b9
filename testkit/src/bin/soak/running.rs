//! Checks that the processes of running pods outlive a restart of the container runtime.

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
/// Wait after a restart. In this time kubelet would start a container again if it took it for dead.
const SETTLE: Duration = Duration::from_secs(5);

/// Pods that have responded and are not being deleted, with their netns.
static RUNNING: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
/// Locked during [`assert_processes_survive`], so that no deletion begins meanwhile.
static HOLD: Mutex<()> = Mutex::new(());

fn running() -> MutexGuard<'static, BTreeMap<String, PathBuf>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn insert(name: &str, netns: &Path) {
    running().insert(name.to_owned(), netns.to_owned());
}

/// Removes the pod from the running ones, and returns `true`. Returns `false` during
/// [`assert_processes_survive`], because the pod must not be deleted then.
pub fn remove(name: &str) -> bool {
    let hold = HOLD.try_lock();
    if matches!(hold, Err(TryLockError::WouldBlock)) {
        return false;
    }
    running().remove(name);
    true
}

/// Calls `action`, and checks that the running pods keep their processes.
pub fn assert_processes_survive(action: impl FnOnce()) {
    until("a pod has responded", || !running().is_empty());
    let _hold = HOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let before = running().clone();
    let processes: BTreeMap<_, _> =
        before.values().map(|netns| (netns, container_processes(netns))).collect();
    action();
    thread::sleep(SETTLE);
    for (name, netns) in &before {
        let old = &processes[netns];
        let new = container_processes(netns);
        if old.is_empty() || !old.is_subset(&new) {
            let description = format!("pod {name} had processes {old:?} in {netns:?}, now {new:?}");
            ledger::record_violation(Invariant::Running, description);
        }
    }
    println!("         {} pods ran before, and were compared", before.len());
}

/// Seeds a bug: kills the last container of a pod. Kubelet starts it again in the same netns.
pub fn kill_one_container() {
    let netns = running().values().next().cloned().expect("a pod has responded");
    if let Some(pid) = container_processes(&netns).last() {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
}

/// Returns the processes in a netns without the sandbox's own process.
fn container_processes(netns: &Path) -> BTreeSet<i32> {
    processes(netns).into_iter().filter(|pid| is_of_container(*pid)).collect()
}

fn is_of_container(pid: i32) -> bool {
    let command_line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
    command_line.is_ok_and(|line| line.starts_with(PROBE))
}

/// Seeds a bug: kills all processes in a netns. Kubelet then creates another sandbox, because the
/// sandbox's own process has ended, too.
pub fn kill_processes_in(netns: &Path) {
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
