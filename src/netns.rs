//! Runs code inside a network namespace (netns).
//!
//! A thread enters the netns, runs the code and ends. The other threads stay in their netns, so the
//! process never has to switch back. Programs that the thread starts inherit the netns.

pub mod link;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{FileStat, fstat, stat};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

use crate::deadline::run_within;

/// Path of the calling thread's netns.
const CURRENT: &str = "/proc/thread-self/ns/net";
/// Time limit for creating a netns. Usually this takes milliseconds, but the kernel delays it while
/// it removes many other netns.
const CREATE_BUDGET: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot create a network namespace: {}", source.desc())]
    Create { source: nix::Error },
    #[error("cannot open network namespace {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot enter network namespace {}: {source}", path.display())]
    Enter { path: PathBuf, source: nix::Error },
    #[error("work in network namespace {} {problem}", path.display())]
    Work { path: PathBuf, problem: String },
}

/// An open netns. It remains the same netns even if another one is mounted at its path later. If no
/// netns was mounted at the path, this is only an open file, see [`Netns::made_without_netns`].
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
}

impl Netns {
    pub fn open(path: &Path) -> Result<Netns, Error> {
        let file = OpenOptions::new()
            .read(true)
            // Opening a FIFO must not block.
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)
            .map_err(|source| Error::Open { path: path.to_owned(), source })?;
        Ok(Netns { file, path: path.to_owned() })
    }

    /// Returns the path at which the netns was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether this is the netns of the calling thread.
    pub fn is_current(&self) -> bool {
        is_same_file(fstat(&self.file), stat(CURRENT))
    }

    /// Returns when the file at the path was created, if no netns was mounted on it. Returns `None`
    /// for a netns.
    pub fn made_without_netns(&self) -> Option<SystemTime> {
        if fstatfs(&self.file).ok()?.filesystem_type() == NSFS_MAGIC {
            return None;
        }
        self.file.metadata().and_then(|file| file.modified()).ok()
    }

    /// Runs `work` inside the netns, on a thread of its own, and waits at most `deadline` for its
    /// result. After a timeout, the thread keeps running until `work` returns or the process ends.
    pub fn run<T: Send + 'static>(
        &self,
        deadline: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let path = self.path.clone();
        let file = match self.file.try_clone() {
            Ok(file) => file,
            Err(source) => return Err(Error::Open { path, source }),
        };
        let entered = run_within("netns", deadline, move || {
            setns(&file, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        });
        match entered {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(source)) => Err(Error::Enter { path, source }),
            Err(problem) => Err(Error::Work { path, problem }),
        }
    }
}

/// Returns whether `path` is the netns of the calling thread. Returns `false` if `path` is not
/// accessible. Check [`Netns::is_current`] again after opening the netns, because another one may
/// have been mounted at the path meanwhile.
pub fn is_current(path: &Path) -> bool {
    is_same_file(stat(path), stat(CURRENT))
}

fn is_same_file(a: nix::Result<FileStat>, b: nix::Result<FileStat>) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
}

/// Creates a netns and returns a file that keeps it alive. Needs CAP_SYS_ADMIN.
pub fn create() -> Result<File, Error> {
    match run_within("netns", CREATE_BUDGET, unshare_netns) {
        Ok(created) => created,
        Err(problem) => Err(Error::Work { path: CURRENT.into(), problem }),
    }
}

/// Moves the calling thread into a new netns, and opens that netns.
fn unshare_netns() -> Result<File, Error> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|source| Error::Create { source })?;
    File::open(CURRENT).map_err(|source| Error::Open { path: CURRENT.into(), source })
}

/// Runs `work` inside the netns at `path`, see [`Netns::run`].
pub fn run<T: Send + 'static>(
    path: &Path,
    deadline: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    Netns::open(path)?.run(deadline, work)
}
