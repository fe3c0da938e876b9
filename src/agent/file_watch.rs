//! Waits for a change in the watched directories, a stop signal or a wake from another thread.
//!
//! A change only triggers a reconcile pass, which reads the files itself. So events that are lost,
//! repeated or late do no harm. If the node has no inotify watches left, the agent polls every
//! second.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::deadline::Deadline;
use crate::files;

/// Time between two passes if inotify is not available.
const POLL_PERIOD: Duration = Duration::from_secs(1);
/// Longest time for which a pass waits until the writer of a file has closed it, so that the pass
/// does not read half of the file. If the writer is slower, its close triggers another pass.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// Time between two checks whether the writer has closed the file.
const SETTLE_PERIOD: Duration = Duration::from_millis(1);

/// Ends a wait of [`FileWatch`] from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<UnixDatagram>);

impl Waker {
    /// Triggers a reconcile pass.
    pub fn wake(&self) {
        // The error is ignored: sending fails if the socket buffer is full, and then a wake is
        // pending already.
        let _ = self.0.send(&[0]);
    }
}

/// Everything that ends a wait: stop signals, changes in directories, wakes from threads.
pub struct FileWatch {
    signals: SignalFd,
    inotify: Option<Inotify>,
    wakes: UnixDatagram,
    pub waker: Waker,
    /// Whether inotify watches every directory that exists. If it does not, the agent polls.
    is_complete: bool,
}

impl FileWatch {
    /// Blocks SIGTERM and SIGINT, to receive them through a signalfd. Must be called before the
    /// first thread starts, because threads inherit the signal mask.
    pub fn start() -> io::Result<FileWatch> {
        let mask = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        mask.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let (wakes, waker) = UnixDatagram::pair()?;
        wakes.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        Ok(FileWatch {
            wakes,
            waker: Waker(Arc::new(waker)),
            signals: SignalFd::with_flags(&mask, flags)?,
            inotify: None,
            is_complete: false,
        })
    }

    /// Watches those of the `dirs` that exist. Call this before each pass, because the kernel drops
    /// the watch of a directory that is removed, and does not renew the watch if the directory is
    /// created again. After a failure, the agent polls every second.
    pub fn watch_dirs(&mut self, dirs: &[&Path]) -> Result<(), String> {
        let result = self.add(dirs);
        self.is_complete = result.is_ok();
        result.map_err(|errno| {
            let why = match errno {
                Errno::EMFILE => "all inotify instances are in use (fs.inotify.max_user_instances)",
                Errno::ENOSPC => "all inotify watches are in use (fs.inotify.max_user_watches)",
                errno => errno.desc(),
            };
            format!("not usable, so the agent polls every second: {why}")
        })
    }

    /// Adds the directories to the inotify instance, and creates the instance if there is none.
    /// Skips missing directories.
    fn add(&mut self, dirs: &[&Path]) -> Result<(), Errno> {
        let inotify = match &mut self.inotify {
            Some(inotify) => inotify,
            missing => {
                let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
                missing.insert(Inotify::init(flags)?)
            }
        };
        // Reads are not watched, because the agent would wake after each of its own passes.
        let reads =
            AddWatchFlags::IN_ACCESS | AddWatchFlags::IN_OPEN | AddWatchFlags::IN_CLOSE_NOWRITE;
        let events = AddWatchFlags::IN_ALL_EVENTS.difference(reads) | AddWatchFlags::IN_ONLYDIR;
        for dir in dirs {
            match inotify.add_watch(*dir, events) {
                Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Waits until a directory changes or another thread calls [`Waker::wake`], at most for
    /// `timeout`. A reconcile pass is due then. A signal ends the wait too, and is returned.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<Signal>> {
        let timeout = if self.is_complete { timeout } else { timeout.min(POLL_PERIOD) };
        // The deadline must be later than now. If it had passed already, `poll` would not look at
        // the signals, and a pending signal would not be found.
        let end = Deadline::after(timeout.max(SETTLE_PERIOD));
        loop {
            let ready = self.poll(end)?;
            if ready.signals {
                return Ok(Some(self.read_signal()?));
            }
            if ready.inotify
                && let Some(change) = self.read_changes()
            {
                self.wait_for_writer(change);
                return Ok(None);
            }
            if ready.wakes {
                while self.wakes.recv(&mut [0]).is_ok() {}
                return Ok(None);
            }
            if end.has_passed() {
                return Ok(None);
            }
        }
    }

    /// Waits until a source has data, at most until `end`.
    fn poll(&self, end: Deadline) -> io::Result<ReadySources> {
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.wakes.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(inotify) = &self.inotify {
            fds.push(PollFd::new(inotify.as_fd(), PollFlags::POLLIN));
        }
        match end.poll(&mut fds) {
            Ok(()) | Err(Errno::ETIMEDOUT) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(ReadySources {
            signals: has_data(fds.first()),
            wakes: has_data(fds.get(1)),
            inotify: has_data(fds.get(2)),
        })
    }

    fn read_signal(&self) -> io::Result<Signal> {
        let Some(info) = self.signals.read_signal()? else { return Ok(Signal::SIGTERM) };
        Ok(Signal::try_from(info.ssi_signo as i32).unwrap_or(Signal::SIGTERM))
    }

    /// Waits until the writer of the file that changed last has closed the file, but not longer
    /// than [`SETTLE_TIME`].
    fn wait_for_writer(&self, mut last_change: Change) {
        let end = Deadline::after(SETTLE_TIME);
        while last_change == Change::MayContinue && !end.has_passed() {
            thread::sleep(SETTLE_PERIOD);
            if let Some(change) = self.read_changes() {
                last_change = change;
            }
        }
    }

    /// Reads all inotify events. Returns the last change, or `None` if nothing has changed. Changes
    /// of the agent's temporary files do not count.
    fn read_changes(&self) -> Option<Change> {
        let mut last_change = None;
        let Some(inotify) = &self.inotify else { return None };
        while let Ok(events) = inotify.read_events() {
            for event in events {
                let name = event.name.unwrap_or_default();
                if files::is_temporary(&name.to_string_lossy()) {
                    continue;
                }
                last_change = Some(Change::from_mask(event.mask));
            }
        }
        last_change
    }
}

/// A change of a file in a watched directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The file was created or written, and its writer may still have it open.
    MayContinue,
    /// The file was closed after a write, renamed or removed, or its metadata was changed.
    Finished,
}

impl Change {
    /// Returns the change that an inotify event with this mask reports.
    fn from_mask(mask: AddWatchFlags) -> Change {
        if mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MODIFY) {
            Change::MayContinue
        } else {
            Change::Finished
        }
    }
}

/// Which sources have data.
struct ReadySources {
    signals: bool,
    wakes: bool,
    inotify: bool,
}

fn has_data(fd: Option<&PollFd<'_>>) -> bool {
    fd.and_then(PollFd::any).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_change_is_finished_when_its_writer_has_closed_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-net.conflist");
        let mut watch = FileWatch::start().unwrap();
        watch.watch_dirs(&[dir.path()]).unwrap();
        assert_eq!(watch.read_changes(), None);
        let mut file = File::create(&path).unwrap();
        file.write_all(b"{").unwrap();
        assert_eq!(watch.read_changes(), Some(Change::MayContinue));
        drop(file);
        assert_eq!(watch.read_changes(), Some(Change::Finished));
        fs::write(dir.path().join(".linkerd-cni.1.2.3.tmp"), "").unwrap();
        assert_eq!(watch.read_changes(), None);
        fs::remove_file(&path).unwrap();
        assert_eq!(watch.read_changes(), Some(Change::Finished));
    }

    #[test]
    fn a_pending_signal_is_returned_even_if_the_timeout_is_zero() {
        let watch = FileWatch::start().unwrap();
        nix::sys::signal::raise(Signal::SIGTERM).unwrap();
        assert_eq!(watch.wait(Duration::ZERO).unwrap(), Some(Signal::SIGTERM));
    }
}
