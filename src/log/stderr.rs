//! Writes log lines to stderr without failing and without blocking.
//!
//! The reader of stderr (a container runtime, its shim, a terminal) may have stopped reading,
//! or the disk behind it may be full. A line that cannot be written at once is dropped, so that
//! neither a pod's ADD nor a reconcile pass depends on the log.

use std::io::{self, Write};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::write;

/// A pipe that poll reports as writable takes this many bytes at once (`PIPE_BUF` in pipe(7)).
const PIPE_BUF: usize = 4096;

/// Locked while a line is written, so that lines of several threads do not mix.
static STDERR: Mutex<()> = Mutex::new(());
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of lines that were dropped or only partly written.
pub fn dropped_line_count() -> u64 {
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
    let _guard = STDERR.lock().unwrap_or_else(PoisonError::into_inner);
    if !write_all(io::stderr().as_fd(), line) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes `line`. Returns whether all of it was written.
fn write_all(fd: BorrowedFd<'_>, mut line: &[u8]) -> bool {
    while !line.is_empty() {
        match write_some(fd, line) {
            Ok(0) => return false,
            Ok(written) => line = &line[written..],
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Writes as many bytes from the start of `bytes` as possible without blocking, and returns their
/// number. `O_NONBLOCK` cannot be set on stderr instead, because other processes share the open
/// file.
///
/// A pipe that another process fills at the same time still blocks, and so does a regular file
/// until the file system takes the bytes. No flag changes that on every kernel.
fn write_some(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    match send(fd.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
        Err(Errno::ENOTSOCK) => {}
        result => return result,
    }
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO)?;
    // Without POLLOUT, a write would block. With a further event, the reader has closed its end.
    if fds[0].revents() != Some(PollFlags::POLLOUT) {
        return Err(Errno::EAGAIN);
    }
    // A write to a file beyond `RLIMIT_FSIZE` raises SIGXFSZ, which ends the process. With the
    // signal blocked, the write fails with `EFBIG`.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    // Blocking a signal fails only if the signal is unknown.
    let _ = signals.thread_block();
    write(fd, bytes.get(..PIPE_BUF).unwrap_or(bytes))
}

#[cfg(test)]
mod tests;
