//! Lets only one agent at a time write to the node's files.
//!
//! Without the lock, an uninstall could rename the plugin binary after another agent's pass has
//! checked it and before that pass writes the network config. For a moment the network config would
//! name a plugin that cannot run. If the uninstalling agent were then killed, the originals that
//! the pass saved would be lost.
//!
//! The locks are `flock`, which the kernel releases if the process is killed. One lock is on a file
//! in the run dir, which only root can open. The other lock is on the CNI net dir itself, for
//! agents that have no run dir. Any process that can read the net dir can take this lock and keep
//! it. For that case agents with a run dir also take the first lock, so that they still write one
//! at a time. Upstream's agents and other programs take neither lock.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use tracing::warn;

use super::NodeSettings;
use crate::deadline::Deadline;
use crate::files;

/// Longest time to wait for another agent that holds a lock. This agent then works without the
/// lock, so that another agent that hangs does not stop it. A pass usually holds the lock for
/// milliseconds, but for up to 5 s if the plugin hangs in the run check. An uninstall holds the
/// lock for a quarter of a second.
const WAIT: Duration = Duration::from_secs(1);
/// Time between two attempts to take a lock.
const RETRY: Duration = Duration::from_millis(5);

/// Name of the lock file in the run dir.
const RUN_LOCK: &str = "node.lock";

/// Takes the locks of the node, once for each pass.
pub struct NodeLocker {
    run_dir: Option<Locker>,
    net_dir: Locker,
}

/// The locks that a pass holds until it drops this.
pub struct NodeLock {
    run_dir: Option<Flock<File>>,
    _net_dir: Option<Flock<File>>,
    /// Whether no other agent of this project writes to the node's files meanwhile. False if
    /// another process holds one of the locks. A process that holds the lock of the net dir may be
    /// an agent without a run dir.
    pub is_exclusive: bool,
}

impl NodeLocker {
    pub fn new(settings: &NodeSettings) -> NodeLocker {
        let run_lock = settings.run_dir.as_ref().map(|run_dir| run_dir.join(RUN_LOCK));
        NodeLocker {
            run_dir: run_lock.map(|path| Locker { path, is_dir: false, is_locked_out: false }),
            net_dir: Locker { path: settings.net_dir.clone(), is_dir: true, is_locked_out: false },
        }
    }

    /// Takes the locks. Waits at most 1 s for each. If a lock cannot be taken, that is no error,
    /// because agents work without locks too: the scan of the net dir reports a missing directory,
    /// and some file systems have no locks.
    pub fn take(&mut self) -> NodeLock {
        let mut run_dir = None;
        let mut other_agent_has_lock = false;
        if let Some(locker) = &mut self.run_dir {
            match locker.take() {
                Ok(lock) => run_dir = Some(lock),
                Err(errno) => other_agent_has_lock = errno == Errno::EAGAIN,
            }
        }
        let net_dir = self.net_dir.take();
        let is_exclusive = net_dir.is_ok() && !other_agent_has_lock;
        NodeLock { run_dir, _net_dir: net_dir.ok(), is_exclusive }
    }
}

impl NodeLock {
    /// Removes the lock file in `run_dir`, and returns whether there was one. The file stays if
    /// this agent does not hold the lock, because another agent may hold it and write to the node.
    pub fn remove_file(&self, run_dir: &Path) -> Result<bool, files::Error> {
        if self.run_dir.is_none() {
            return Ok(false);
        }
        files::remove(&run_dir.join(RUN_LOCK))
    }
}

/// Takes one lock.
struct Locker {
    path: PathBuf,
    is_dir: bool,
    /// Whether another process held the lock at the last attempt. The next attempt then does not
    /// wait, so that a lock that is never released delays only one pass.
    is_locked_out: bool,
}

impl Locker {
    /// Takes the lock. Waits for it, unless the last attempt failed. Fails with `EAGAIN` if another
    /// process holds the lock.
    fn take(&mut self) -> Result<Flock<File>, Errno> {
        let wait = if self.is_locked_out { Duration::ZERO } else { WAIT };
        let lock = self.lock(wait);
        let is_locked_out = matches!(lock, Err(Errno::EAGAIN));
        if is_locked_out && !self.is_locked_out {
            let path = self.path.display();
            let seconds = WAIT.as_secs();
            warn!("another process has locked {path} for {seconds} s; continuing without the lock");
        }
        self.is_locked_out = is_locked_out;
        lock
    }

    /// Takes the lock within the time `wait`. Fails with `EAGAIN` if another process holds the lock
    /// all that time.
    fn lock(&self, wait: Duration) -> Result<Flock<File>, Errno> {
        let mut file = self.open()?;
        let end = Deadline::after(wait);
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) if self.is_in_place(&lock) => return Ok(lock),
                // An agent that uninstalled has removed the file since it was opened here. Other
                // agents lock the new file, so this one has to lock the new file, too.
                Ok(_) => file = self.open()?,
                Err((same, Errno::EAGAIN | Errno::EINTR)) if !end.has_passed() => {
                    file = same;
                    thread::sleep(RETRY);
                }
                Err((_, errno)) => return Err(errno),
            }
        }
    }

    fn open(&self) -> Result<File, Errno> {
        let mut options = OpenOptions::new();
        // The file is not opened for writing. The agent watches the run dir, and closing a file
        // that was open for writing is a change that would trigger the next pass.
        options.read(true);
        if !self.is_dir {
            options.mode(0o600).custom_flags((OFlag::O_CREAT | OFlag::O_NOFOLLOW).bits());
        }
        // Every error becomes ENOENT, because callers only need to tell it from EAGAIN.
        options.open(&self.path).map_err(|_| Errno::ENOENT)
    }

    /// Returns whether `file` is still the file at the path of the lock.
    fn is_in_place(&self, file: &File) -> bool {
        match (file.metadata(), self.path.metadata()) {
            (Ok(file), Ok(at_path)) => (file.dev(), file.ino()) == (at_path.dev(), at_path.ino()),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::DirBuilder;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Instant;

    use super::*;

    fn locker(path: &Path, is_dir: bool) -> Locker {
        Locker { path: path.to_owned(), is_dir, is_locked_out: false }
    }

    /// Returns a locker for an agent whose net dir and run dir are in `dir`.
    fn node_locker(dir: &Path) -> NodeLocker {
        let net_dir = dir.join("net.d");
        let run_dir = dir.join("run");
        for path in [&net_dir, &run_dir] {
            DirBuilder::new().recursive(true).create(path).unwrap();
        }
        NodeLocker {
            run_dir: Some(locker(&run_dir.join(RUN_LOCK), false)),
            net_dir: locker(&net_dir, true),
        }
    }

    #[test]
    fn only_one_agent_at_a_time_holds_the_lock_of_a_directory_or_file() {
        let dir = tempfile::tempdir().unwrap();
        for (path, is_dir) in [(dir.path().to_owned(), true), (dir.path().join("lock"), false)] {
            let take = |wait| locker(&path, is_dir).lock(wait);
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
        }
        let missing = locker(&dir.path().join("missing"), true).lock(WAIT);
        assert_eq!(missing.unwrap_err(), Errno::ENOENT);
    }

    #[test]
    fn a_lock_that_another_process_keeps_delays_only_the_first_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let held = locker(dir.path(), true).lock(Duration::ZERO).unwrap();
        let mut waiting = locker(dir.path(), true);
        let begin = Instant::now();
        assert!(waiting.take().is_err());
        assert!(begin.elapsed() >= WAIT);
        // The attempts would take minutes if each of them waited.
        assert!((0..200).all(|_| waiting.take().is_err()));
        assert!(begin.elapsed() < 60 * WAIT);
        drop(held);
        assert!(waiting.take().is_ok());
    }

    /// Every user may open the net dir and lock it, so the lock in the run dir has to be enough.
    #[test]
    fn agents_write_one_at_a_time_while_another_program_locks_the_net_dir() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = node_locker(dir.path());
        let lock_of_net_dir = locker(&dir.path().join("net.d"), true).lock(Duration::ZERO).unwrap();
        let held = first.take();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut second = node_locker(dir.path());
                second.net_dir.is_locked_out = true;
                let begin = Instant::now();
                (second.take(), begin.elapsed())
            });
            thread::sleep(WAIT / 4);
            drop(held);
            let (second, waited) = waiting.join().unwrap();
            assert!(second.run_dir.is_some() && waited >= WAIT / 5, "{waited:?}");
        });
        drop(lock_of_net_dir);
        assert!(first.take().is_exclusive);
        let mode = dir.path().join("run").join(RUN_LOCK).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn without_a_run_dir_the_lock_of_the_net_dir_decides() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = node_locker(dir.path());
        let mut second = node_locker(dir.path());
        std::fs::remove_dir(dir.path().join("run")).unwrap();
        let held = first.take();
        assert!(held.is_exclusive);
        assert!(!second.take().is_exclusive);
        second.run_dir = None;
        assert!(!second.take().is_exclusive);
        drop(held);
        assert!(second.take().is_exclusive);
    }

    #[test]
    fn the_lock_file_of_another_agent_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run");
        let held = node_locker(dir.path()).take();
        let without_lock = node_locker(dir.path()).take();
        assert!(!without_lock.remove_file(&run_dir).unwrap());
        assert!(run_dir.join(RUN_LOCK).exists());
        assert!(held.remove_file(&run_dir).unwrap());
    }

    #[test]
    fn an_agent_that_waits_for_a_removed_lock_file_takes_the_lock_of_the_next_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = node_locker(dir.path());
        let held = first.take();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| node_locker(dir.path()).take());
            thread::sleep(RETRY);
            assert!(held.remove_file(&dir.path().join("run")).unwrap());
            drop(held);
            let next = waiting.join().unwrap();
            assert!(next.is_exclusive);
            assert!(!first.take().is_exclusive);
        });
    }
}
