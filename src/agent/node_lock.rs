//! Lets only one agent at a time write to the node's files.
//!
//! Without the lock, an uninstall could rename the plugin binary after another agent's pass has
//! checked it and before that pass writes the network config. For a moment the network config would
//! name a plugin that cannot run. If the uninstalling agent were then killed, the originals that the
//! pass saved would be lost.
//!
//! The lock is `flock` on the CNI net dir itself. So it needs no file, every agent finds it, whatever
//! its container, and the kernel releases it if the process is killed. Upstream's agents and other
//! programs do not take it.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tracing::warn;

/// Longest time to wait for another agent. A pass takes milliseconds, and an uninstall holds the
/// lock for a quarter of a second. An agent that hangs must not keep others from their work.
const WAIT: Duration = Duration::from_secs(2);
/// Time between two attempts.
const RETRY: Duration = Duration::from_millis(5);

/// Held until it is dropped. Empty if the lock cannot be had, as agents also work without it.
pub struct NodeLock {
    _lock: Option<Flock<File>>,
}

impl NodeLock {
    /// Waits until no other agent holds the lock of `net_dir`, at most 2 s, and takes it.
    pub fn take(net_dir: &Path) -> NodeLock {
        NodeLock { _lock: lock(net_dir, WAIT) }
    }
}

fn lock(net_dir: &Path, wait: Duration) -> Option<Flock<File>> {
    // A missing directory is reported by the scan. Some file systems have no locks.
    let mut dir = File::open(net_dir).ok()?;
    let end = Instant::now() + wait;
    loop {
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Some(lock),
            Err((same, Errno::EAGAIN | Errno::EINTR)) if Instant::now() < end => dir = same,
            Err((_, Errno::EAGAIN)) => {
                let (path, seconds) = (net_dir.display(), wait.as_secs());
                warn!(
                    "another agent has locked {path} for {seconds} s; continuing without the lock"
                );
                return None;
            }
            Err(_) => return None,
        }
        thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_agent_holds_the_lock_of_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let held = NodeLock::take(dir.path());
        assert!(held._lock.is_some());
        assert!(lock(dir.path(), Duration::ZERO).is_none());
        drop(held);
        assert!(lock(dir.path(), Duration::ZERO).is_some());
    }

    #[test]
    fn a_missing_directory_is_not_locked() {
        let dir = tempfile::tempdir().unwrap();
        assert!(NodeLock::take(&dir.path().join("missing"))._lock.is_none());
    }
}
