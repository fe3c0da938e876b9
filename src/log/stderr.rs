//! Writes log lines to stderr without failing and without blocking.
//!
//! The reader of stderr (a container runtime, its shim, a terminal) may have stopped reading,
//! or the disk behind it may be full. A line that cannot be written at once is dropped, so that
//! neither a pod's ADD nor a reconcile pass depends on the log.

use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::write;
use rustix::fs::FileType;
use rustix::io::{ReadWriteFlags, pwritev2};

/// A write of up to this many bytes to a pipe is atomic (`PIPE_BUF` in pipe(7)).
const PIPE_BUF: usize = 4096;

static STDERR: Mutex<Option<FdType>> = Mutex::new(None);
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Number of lines that were dropped or only partly written.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Writer for `tracing`, which calls it once for each line.
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

/// Writes `line`, which ends with a newline, or drops it.
pub fn write_line(line: &[u8]) {
    let stderr = io::stderr();
    let mut fd_type = STDERR.lock().unwrap_or_else(PoisonError::into_inner);
    let fd_type = fd_type.get_or_insert_with(|| FdType::of(stderr.as_fd()));
    if !fd_type.write(stderr.as_fd(), line) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Type of a file descriptor, which decides how to write without blocking. `O_NONBLOCK` is not
/// set on stderr itself, as other processes share it.
#[derive(Debug)]
enum FdType {
    Socket,
    Pipe,
    /// A regular file or a device. A write to a regular file blocks until the file system takes it; no
    /// flag changes that.
    Other,
}

impl FdType {
    fn of(fd: BorrowedFd<'_>) -> FdType {
        match rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Socket) => FdType::Socket,
            Ok(FileType::Fifo) => FdType::Pipe,
            _ => FdType::Other,
        }
    }

    /// Writes `line`. Returns whether all of it was written.
    fn write(&self, fd: BorrowedFd<'_>, mut line: &[u8]) -> bool {
        while !line.is_empty() {
            match self.write_some(fd, line) {
                Ok(written @ 1..) => line = line.get(written..).unwrap_or_default(),
                Err(Errno::EINTR) => {}
                Ok(0) | Err(_) => return false,
            }
        }
        true
    }

    /// Writes as many bytes from the start of `bytes` as do not block, and returns their number.
    fn write_some(&self, fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            FdType::Socket => {
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                send(fd.as_raw_fd(), bytes, flags)
            }
            FdType::Pipe => {
                check_writable(fd)?;
                write_pipe(fd, bytes.get(..PIPE_BUF).unwrap_or(bytes))
            }
            FdType::Other => {
                check_writable(fd)?;
                block_file_size_signal();
                write(fd, bytes)
            }
        }
    }
}

/// Fails with `EAGAIN` if a write would block, or if the reader has closed its end.
fn check_writable(fd: BorrowedFd<'_>) -> Result<(), Errno> {
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

/// Writes to a pipe without blocking, although another process may have filled it since the poll.
/// Kernels older than 6.4 lack the flag for that and can still block.
fn write_pipe(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = ReadWriteFlags::NOWAIT;
    match pwritev2(fd, &[IoSlice::new(bytes)], u64::MAX, flags) {
        Ok(written) => Ok(written),
        Err(rustix::io::Errno::AGAIN) => Err(Errno::EAGAIN),
        Err(_) => write(fd, bytes),
    }
}

#[cfg(test)]
mod tests;
