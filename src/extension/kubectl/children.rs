//! The kubectl processes that run, which a signal ends with this process.
//!
//! Ctrl-C sends SIGINT to the foreground process group only, and most kubectl processes run in
//! groups of their own.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command, exit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

use crate::child;

/// Processes by ID. A process in the group of this process has no group with its ID.
#[derive(Clone, Debug, Default)]
pub struct Children(Arc<Mutex<BTreeSet<i32>>>);

/// A process that runs. It is forgotten when this is dropped.
pub struct Entry {
    pid: i32,
    children: Children,
}

impl Children {
    /// Starts a process. After a signal, no process starts.
    pub fn spawn(&self, command: &mut Command) -> io::Result<(Child, Entry)> {
        let mut running = self.running();
        let child = command.spawn()?;
        let pid = child.id() as i32;
        running.insert(pid);
        Ok((child, Entry { pid, children: self.clone() }))
    }

    /// From now on, SIGINT, SIGTERM and SIGHUP kill the processes and end this process. To be called
    /// before other threads start, since they inherit the mask of blocked signals.
    pub fn end_on_signals(&self) {
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        // Fails only for an unknown signal. Signals then have their default effect.
        if signals.thread_block().is_err() {
            return;
        }
        let children = self.clone();
        thread::spawn(move || {
            let Ok(signal) = signals.wait() else {
                return;
            };
            // Held until the exit, so that no process starts.
            let running = children.running();
            running.iter().for_each(|&pid| child::kill_group(pid));
            exit(128 + signal as i32);
        });
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.children.running().remove(&self.pid);
    }
}
