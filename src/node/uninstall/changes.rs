//! Waits for changes in the net dir.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::deadline::Deadline;

/// Longest wait with inotify. Some file systems report no changes.
const RESYNC: Duration = Duration::from_millis(50);
/// Longest wait without inotify, as when all inotify instances of the node are in use.
const POLL_PERIOD: Duration = Duration::from_millis(5);

/// Reports changes in a net dir, at once where inotify is available.
pub struct NetDirChanges(Option<Inotify>);

impl NetDirChanges {
    /// Starts to watch the directory `net_dir`.
    pub fn watch(net_dir: &Path) -> NetDirChanges {
        let changes = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ONLYDIR;
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        NetDirChanges(inotify.ok().filter(|inotify| inotify.add_watch(net_dir, changes).is_ok()))
    }

    /// Waits for a change since the last call, or for a time after which the net dir has to be read
    /// in any case, at most `longest`.
    pub fn wait(&self, longest: Duration) {
        let Some(inotify) = &self.0 else {
            return thread::sleep(longest.min(POLL_PERIOD));
        };
        let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
        if Deadline::after(longest.min(RESYNC)).poll(&mut fds).is_ok() {
            while inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_change_ends_the_wait_before_the_next_resync() {
        let dir = tempfile::tempdir().unwrap();
        let changes = NetDirChanges::watch(dir.path());
        let ends_early = || {
            fs::write(dir.path().join("10-a.conflist"), "").unwrap();
            let start = Instant::now();
            changes.wait(Duration::from_secs(60));
            start.elapsed() < RESYNC / 2
        };
        // Repeated, as a busy machine may delay one wait.
        assert!((0..20).any(|_| ends_early()));
        let start = Instant::now();
        changes.wait(Duration::from_secs(60));
        assert!(start.elapsed() >= RESYNC, "the events before were not all read");
    }
}
