//! Writes log lines to stderr without failing and without waiting.
//!
//! Whoever reads stderr (a container runtime, its shim, a terminal) may have stopped to
//! read, and its device may be full. A line that cannot be written at once is dropped:
//! neither a pod's ADD nor a reconcile pass may depend on its log.

use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::Mode;
use nix::unistd::write;
use rustix::fs::FileType;
use rustix::io::{ReadWriteFlags, pwritev2};

/// A pipe takes up to this many bytes at once or not at all (`PIPE_BUF` in pipe(7)).
const PIPE_BUF: usize = 4096;

static STDERR: Mutex<Option<Lines>> = Mutex::new(None);
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Number of lines that stderr did not take, or took only in part.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// A writer for `tracing`, which passes one whole line to each call.
#[derive(Debug)]
pub struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes `line`, newline included, or drops it.
pub fn write_line(line: &[u8]) {
    let stderr = io::stderr();
    let mut lines = STDERR.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = lines.get_or_insert_with(|| Lines::to(stderr.as_fd()));
    if !lines.write(stderr.as_fd(), line) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lines on one descriptor.
#[derive(Debug)]
struct Lines {
    kind: Kind,
    /// The last line was written only in part, so the next one starts with a newline.
    torn: bool,
}

/// What a descriptor refers to, which decides how to write without waiting. `O_NONBLOCK`
/// is never set on the descriptor itself: other processes share it.
#[derive(Debug)]
enum Kind {
    Socket,
    Pipe,
    /// A terminal or another character device, opened once more with `O_NONBLOCK`.
    Device(OwnedFd),
    /// A regular file, or a device that cannot be opened again. A file's write waits for
    /// its file system, which no flag changes.
    Other,
}

impl Lines {
    fn to(fd: BorrowedFd<'_>) -> Lines {
        let kind = match rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Socket) => Kind::Socket,
            Ok(FileType::Fifo) => Kind::Pipe,
            Ok(FileType::CharacterDevice) => reopen(fd).map_or(Kind::Other, Kind::Device),
            _ => Kind::Other,
        };
        Lines { kind, torn: false }
    }

    /// Whether all of `line` was written.
    fn write(&mut self, fd: BorrowedFd<'_>, line: &[u8]) -> bool {
        let separated;
        let line = match self.torn {
            true => {
                separated = [b"\n", line].concat();
                &separated
            }
            false => line,
        };
        let mut rest = line;
        while !rest.is_empty() {
            match self.kind.write_some(fd, rest) {
                Ok(written @ 1..) => rest = rest.get(written..).unwrap_or_default(),
                Err(Errno::EINTR) => {}
                Ok(0) | Err(_) => break,
            }
        }
        // With nothing written the line before this one is as whole or torn as it was.
        if rest.len() < line.len() {
            self.torn = !rest.is_empty();
        }
        rest.is_empty()
    }
}

impl Kind {
    /// Writes the first bytes of `bytes`, as many as can be written at once.
    fn write_some(&self, fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Kind::Socket => {
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                send(fd.as_raw_fd(), bytes, flags)
            }
            Kind::Pipe => {
                refuse_unwritable(fd)?;
                write_pipe(fd, bytes.get(..PIPE_BUF).unwrap_or(bytes))
            }
            Kind::Device(device) => write(device, bytes),
            Kind::Other => {
                refuse_unwritable(fd)?;
                block_file_size_signal();
                write(fd, bytes)
            }
        }
    }
}

/// Fails with `EAGAIN` if a write would wait, or if nobody reads.
fn refuse_unwritable(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO)?;
    let events = fds[0].revents().unwrap_or(PollFlags::empty());
    match events == PollFlags::POLLOUT {
        true => Ok(()),
        false => Err(Errno::EAGAIN),
    }
}

/// Lets a write to a file beyond `RLIMIT_FSIZE` fail with `EFBIG`: unblocked, SIGXFSZ ends
/// the process.
fn block_file_size_signal() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    // Fails only for an unknown signal.
    let _ = signals.thread_block();
}

/// Another process may have filled the pipe since the poll. Linux 6.4 and later refuse
/// such a write; older kernels wait.
fn write_pipe(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = ReadWriteFlags::NOWAIT;
    match pwritev2(fd, &[IoSlice::new(bytes)], u64::MAX, flags) {
        Ok(written) => Ok(written),
        Err(rustix::io::Errno::AGAIN) => Err(Errno::EAGAIN),
        Err(_) => write(fd, bytes),
    }
}

/// Opens the device behind `fd` for this process alone.
fn reopen(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    open(path.as_str(), flags, Mode::empty()).ok()
}

#[cfg(test)]
mod tests;
