//! Writes the plugin's response, one JSON document, to stdout.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::unistd::write;

use crate::deadline::Deadline;

/// Time in which the runtime has to read the whole response. Most responses fit into the pipe's
/// buffer.
const READ_BUDGET: Duration = Duration::from_secs(10);
/// A writable pipe takes this many bytes without waiting (`PIPE_BUF` in pipe(7)).
const PIPE_BUF: usize = 4096;

/// Writes `text` to stdout. Fails if the runtime does not read it within 10 s.
pub fn print(text: &str) -> io::Result<()> {
    write_all(io::stdout().as_fd(), text.as_bytes(), READ_BUDGET)
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8], budget: Duration) -> io::Result<()> {
    let deadline = Deadline::after(budget);
    while !bytes.is_empty() {
        // A closed pipe also counts as ready: the write then fails and does not block.
        let writable = deadline.poll(&mut [PollFd::new(fd, PollFlags::POLLOUT)]);
        writable.map_err(|error| match error {
            Errno::ETIMEDOUT => io::Error::new(
                io::ErrorKind::TimedOut,
                "the runtime did not read the response in time",
            ),
            error => error.into(),
        })?;
        match write(fd, bytes.get(..PIPE_BUF).unwrap_or(bytes)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::thread;

    use super::*;

    #[test]
    fn a_response_larger_than_the_pipe_reaches_a_slow_reader_whole() {
        let response = vec![b'x'; 1 << 20];
        let (mut reader, writer) = io::pipe().unwrap();
        let read = thread::spawn(move || {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            read
        });
        write_all(writer.as_fd(), &response, Duration::from_secs(60)).unwrap();
        drop(writer);
        assert_eq!(read.join().unwrap(), response);
    }

    #[test]
    fn a_response_that_nobody_reads_is_an_error_within_the_budget() {
        let (reader, writer) = io::pipe().unwrap();
        let response = vec![b'x'; 1 << 20];
        let budget = Duration::from_millis(50);
        let error = write_all(writer.as_fd(), &response, budget).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(reader);
        let error = write_all(writer.as_fd(), b"x", budget).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
