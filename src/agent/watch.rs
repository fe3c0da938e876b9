//! Waiting: for a change in the watched directories, a signal to stop, or the time.
//!
//! A change is only a reason to look again, never a fact to act on, so lost, doubled and
//! late events do no harm. Where the node has no inotify left, waits are kept short.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::files;

/// The longest wait where changes are not announced.
const POLLING: Duration = Duration::from_secs(1);
/// A writer is left alone until it paused for this long,
const QUIET: Duration = Duration::from_millis(5);
/// but no longer than this.
const PATIENCE: Duration = Duration::from_millis(40);

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// SIGTERM or SIGINT.
    Stop,
    /// Something changed, or the time is over.
    Look,
}

/// Ends a wait from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<UnixDatagram>);

impl Waker {
    /// There is something new to look at.
    pub fn wake(&self) {
        // Full means that there are calls enough already.
        let _ = self.0.send(&[0]);
    }
}

/// The signals that stop the agent and the directories it waits on.
pub struct Watch {
    signals: SignalFd,
    inotify: Option<Inotify>,
    calls: UnixDatagram,
    waker: Waker,
    /// Whether every directory that exists is announced.
    announced: bool,
}

impl Watch {
    /// Takes SIGTERM and SIGINT over. Call it before the first thread is started.
    pub fn start() -> io::Result<Watch> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        mask.add(Signal::SIGINT);
        mask.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let (calls, caller) = UnixDatagram::pair()?;
        calls.set_nonblocking(true)?;
        caller.set_nonblocking(true)?;
        Ok(Watch {
            calls,
            waker: Waker(Arc::new(caller)),
            signals: SignalFd::with_flags(&mask, flags)?,
            inotify: None,
            announced: false,
        })
    }

    /// What ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Watches `dirs`, also those that came back under their name. To be called before
    /// each look, since the kernel forgets a directory that is gone. A missing one is no
    /// error; the error is why changes cannot be announced.
    pub fn renew(&mut self, dirs: &[&Path]) -> Result<(), String> {
        let result = self.add(dirs).map_err(|errno| match errno {
            Errno::EMFILE => "all inotify instances are in use (fs.inotify.max_user_instances)",
            Errno::ENOSPC => "all inotify watches are in use (fs.inotify.max_user_watches)",
            errno => errno.desc(),
        });
        self.announced = result.is_ok();
        result.map_err(|why| format!("changes are looked for every second: {why}"))
    }

    fn add(&mut self, dirs: &[&Path]) -> Result<(), Errno> {
        let inotify = match &mut self.inotify {
            Some(inotify) => inotify,
            none => none.insert(Inotify::init(
                InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK,
            )?),
        };
        let events = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        for dir in dirs {
            match inotify.add_watch(*dir, events) {
                Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Waits until something is to be done, at most for `longest`.
    pub fn wait(&self, longest: Duration) -> io::Result<Wake> {
        let longest = if self.announced {
            longest
        } else {
            longest.min(POLLING)
        };
        let end = Instant::now() + longest;
        loop {
            let ready = self.poll(end.saturating_duration_since(Instant::now()))?;
            if ready.stop {
                return Ok(Wake::Stop);
            }
            if ready.changed && self.drain() {
                return self.settle();
            }
            if ready.called {
                while self.calls.recv(&mut [0]).is_ok() {}
                return Ok(Wake::Look);
            }
            if Instant::now() >= end {
                return Ok(Wake::Look);
            }
        }
    }

    /// Does nothing for `time`, or until told to stop; changes are kept for the next wait.
    pub fn rest(&self, time: Duration) -> io::Result<Wake> {
        let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(0) | Err(Errno::EINTR) => Ok(Wake::Look),
            Ok(_) => Ok(Wake::Stop),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Lets a writer finish, so that a file is not read while it is half there.
    fn settle(&self) -> io::Result<Wake> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let ready = self.poll(QUIET)?;
            if ready.stop {
                return Ok(Wake::Stop);
            }
            if !ready.changed || !self.drain() {
                break;
            }
        }
        Ok(Wake::Look)
    }

    fn poll(&self, longest: Duration) -> io::Result<Ready> {
        let fd = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![fd(self.signals.as_fd()), fd(self.calls.as_fd())];
        let inotify: Option<BorrowedFd<'_>> = self.inotify.as_ref().map(AsFd::as_fd);
        fds.extend(inotify.map(fd));
        // Rounded up: the last fraction of a millisecond is not to be spun through.
        let longest = longest + Duration::from_micros(999);
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let readable = |fd: &PollFd<'_>| fd.any().unwrap_or_default();
        Ok(Ready {
            stop: fds.first().is_some_and(readable),
            called: fds.get(1).is_some_and(readable),
            changed: fds.get(2).is_some_and(readable),
        })
    }

    /// Takes all events; whether one was not about our own temporary files.
    fn drain(&self) -> bool {
        let mut foreign = false;
        while let Some(Ok(events)) = self.inotify.as_ref().map(Inotify::read_events) {
            foreign |= events.iter().any(|event| {
                let name = event.name.as_ref().map(|name| name.to_string_lossy());
                !name.is_some_and(|name| files::is_temporary(&name))
            });
        }
        foreign
    }
}

struct Ready {
    stop: bool,
    called: bool,
    changed: bool,
}
