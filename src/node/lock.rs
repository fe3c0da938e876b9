//! Lets only one agent at a time write to the node's files.
//!
//! Without the lock, an uninstall could rename the plugin binary after another agent's pass has
//! checked it and before that pass writes the network config. For a moment the network config would
//! name a plugin that cannot run. If the uninstalling agent were then killed, the originals that
//! the pass saved would be lost.
//!
//! The lock is `flock` on the CNI net dir itself. So every agent finds it, and the kernel releases
//! it if the process is killed. Upstream's agents and other programs do not take it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tracing::warn;

use crate::deadline::Deadline;

/// Longest time to wait for another agent. A pass takes milliseconds, and an uninstall holds the
/// lock for a quarter of a second. An agent that hangs must not keep others from their work.
const WAIT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(5);

/// Takes the lock of one net dir once for each pass.
pub struct NodeLocker {
    net_dir: PathBuf,
    /// Another process held the lock at the last attempt. The next attempt then does not wait:
    /// every process that can read the directory can hold the lock, and must not delay each pass.
    is_locked_out: bool,
}

impl NodeLocker {
    pub fn new(net_dir: &Path) -> NodeLocker {
        NodeLocker { net_dir: net_dir.to_owned(), is_locked_out: false }
    }

    /// Waits at most 1 s for the lock. Agents also work without it: a missing directory is reported
    /// by the scan, and some file systems have no locks.
    pub fn take(&mut self) -> Option<Flock<File>> {
        let wait = if self.is_locked_out { Duration::ZERO } else { WAIT };
        let lock = lock(&self.net_dir, wait);
        let is_locked_out = matches!(lock, Err(Errno::EAGAIN));
        if is_locked_out && !self.is_locked_out {
            let (path, seconds) = (self.net_dir.display(), WAIT.as_secs());
            warn!("another process has locked {path} for {seconds} s; continuing without the lock");
        }
        self.is_locked_out = is_locked_out;
        lock.ok()
    }
}

/// Fails with `EAGAIN` if another process holds the lock for the whole `wait`.
fn lock(net_dir: &Path, wait: Duration) -> Result<Flock<File>, Errno> {
    let mut dir = File::open(net_dir).map_err(|_| Errno::ENOENT)?;
    let end = Deadline::after(wait);
    loop {
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((same, Errno::EAGAIN | Errno::EINTR)) if !end.has_passed() => dir = same,
            Err((_, errno)) => return Err(errno),
        }
        thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn only_one_agent_at_a_time_holds_the_lock_of_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let take = |wait| lock(dir.path(), wait);
        let held = take(Duration::ZERO);
        assert!(held.is_ok());
        assert_eq!(take(Duration::ZERO).unwrap_err(), Errno::EAGAIN);
        assert_eq!(take(RETRY).unwrap_err(), Errno::EAGAIN);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| take(Duration::from_secs(60)));
            thread::sleep(RETRY);
            drop(held);
            assert!(waiting.join().unwrap().is_ok());
        });
        assert_eq!(lock(&dir.path().join("missing"), WAIT).unwrap_err(), Errno::ENOENT);
    }

    #[test]
    fn a_lock_that_another_process_keeps_delays_only_the_first_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path(), Duration::ZERO).unwrap();
        let mut locker = NodeLocker::new(dir.path());
        let begin = Instant::now();
        assert!(locker.take().is_none());
        assert!(begin.elapsed() >= WAIT);
        // Would take minutes if each attempt waited.
        assert!((0..200).all(|_| locker.take().is_none()));
        assert!(begin.elapsed() < 60 * WAIT);
        drop(held);
        assert!(locker.take().is_some());
    }
}
