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
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tracing::{info, warn};

/// Longest time to wait for another agent. A pass takes milliseconds, and an uninstall holds the
/// lock for a quarter of a second. An agent that hangs must not keep others from their work.
const WAIT: Duration = Duration::from_secs(2);
/// Time after such a wait in which the lock is only tried. Every process that can read the directory
/// can hold the lock, so it must not delay each pass.
const NO_WAIT: Duration = Duration::from_secs(60);
/// Time between two attempts.
const RETRY: Duration = Duration::from_millis(5);

/// Another process holds the lock.
#[derive(Debug)]
struct Busy;

pub struct NodeLocker {
    net_dir: PathBuf,
    /// When the last wait was in vain, until the lock is taken again.
    timed_out: Option<Instant>,
}

impl NodeLocker {
    pub fn new(net_dir: &Path) -> NodeLocker {
        NodeLocker { net_dir: net_dir.to_owned(), timed_out: None }
    }

    /// Waits until no other agent holds the lock, at most 2 s, and takes it until it is dropped. Does
    /// not wait for a minute after a wait that was in vain. `None` if the lock cannot be had, as agents
    /// also work without it.
    pub fn take(&mut self) -> Option<Flock<File>> {
        self.take_within(WAIT)
    }

    fn take_within(&mut self, longest: Duration) -> Option<Flock<File>> {
        let wait = match self.timed_out {
            Some(at) if at.elapsed() < NO_WAIT => Duration::ZERO,
            _ => longest,
        };
        let path = self.net_dir.display();
        match lock(&self.net_dir, wait) {
            Ok(lock) => {
                if lock.is_some() && self.timed_out.take().is_some() {
                    info!("{path} can be locked again");
                }
                lock
            }
            Err(Busy) => {
                if self.timed_out.is_none() {
                    let seconds = wait.as_secs();
                    warn!(
                        "another process has locked {path} for {seconds} s; continuing without the lock"
                    );
                }
                if self.timed_out.is_none() || wait == longest {
                    self.timed_out = Some(Instant::now());
                }
                None
            }
        }
    }
}

/// Locks `net_dir`; `None` if that is impossible: a missing directory is reported by the scan, and
/// some file systems have no locks.
fn lock(net_dir: &Path, wait: Duration) -> Result<Option<Flock<File>>, Busy> {
    let Ok(mut dir) = File::open(net_dir) else {
        return Ok(None);
    };
    let end = Instant::now() + wait;
    loop {
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((same, Errno::EAGAIN | Errno::EINTR)) if Instant::now() < end => dir = same,
            Err((_, Errno::EAGAIN)) => return Err(Busy),
            Err(_) => return Ok(None),
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
        let held = NodeLocker::new(dir.path()).take();
        assert!(held.is_some());
        assert!(lock(dir.path(), Duration::ZERO).is_err());
        drop(held);
        assert!(matches!(lock(dir.path(), Duration::ZERO), Ok(Some(_))));
    }

    #[test]
    fn a_lock_that_another_process_keeps_delays_only_the_first_attempt_in_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let held = NodeLocker::new(dir.path()).take();
        let mut locker = NodeLocker::new(dir.path());
        assert!(locker.take_within(RETRY).is_none());
        let first = locker.timed_out.unwrap();
        // Would not end if it waited.
        assert!(locker.take_within(Duration::from_secs(3600)).is_none());
        assert_eq!(locker.timed_out, Some(first));
        drop(held);
        assert!(locker.take().is_some());
        assert_eq!(locker.timed_out, None);
    }

    #[test]
    fn a_missing_directory_is_not_locked() {
        let dir = tempfile::tempdir().unwrap();
        assert!(NodeLocker::new(&dir.path().join("missing")).take().is_none());
    }
}
