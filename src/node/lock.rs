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
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tracing::warn;

use crate::deadline::Deadline;

/// Longest time to wait for another agent. A pass takes milliseconds, and an uninstall holds the
/// lock for a quarter of a second. An agent that hangs must not keep others from their work.
pub const WAIT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(5);

/// Waits at most for `wait` until no other agent holds the lock, and takes it until it is dropped. Agents
/// also work without it.
/// Fails with `EAGAIN` if another process holds it, and otherwise where it cannot be had: a missing
/// directory is reported by the scan, and some file systems have no locks.
pub fn lock(net_dir: &Path, wait: Duration) -> Result<Flock<File>, Errno> {
    let mut dir = File::open(net_dir).map_err(|_| Errno::ENOENT)?;
    let end = Deadline::after(wait);
    loop {
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((same, Errno::EAGAIN | Errno::EINTR)) if !end.has_passed() => dir = same,
            Err((_, errno)) => {
                if errno == Errno::EAGAIN && !wait.is_zero() {
                    let (path, seconds) = (net_dir.display(), wait.as_secs());
                    warn!(
                        "another process has locked {path} for {seconds} s; continuing without the lock"
                    );
                }
                return Err(errno);
            }
        }
        thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_agent_holds_the_lock_of_a_directory_and_another_waits_for_it() {
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
}
