//! Pipes to a program and from it, without blocking on either.
//!
//! SELinux policies let iptables use pipes of the process that starts it, but not files in memory. An
//! inherited file that the program may not use is replaced with `/dev/null`, without an error.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use rustix::io::{ioctl_fionbio, ioctl_fionread};

use crate::deadline::Deadline;

/// The stdin of a program and what is to be written to it.
pub struct Input<'a> {
    unwritten: &'a [u8],
    /// Closed after the last byte, so that the program sees the end.
    writer: Option<PipeWriter>,
    /// Shows what the program left unread, and keeps the pipe open for that.
    reader: Option<PipeReader>,
}

impl<'a> Input<'a> {
    /// Returns the input and the stdin for the program.
    pub fn new(text: &'a str) -> io::Result<(Self, Stdio)> {
        let (reader, writer) = io::pipe()?;
        ioctl_fionbio(&writer, true)?;
        let stdin = reader.try_clone()?.into();
        let unwritten = text.as_bytes();
        Ok((Input { unwritten, writer: Some(writer), reader: Some(reader) }, stdin))
    }

    /// The input of a program that reads none.
    pub fn none() -> Self {
        Input { unwritten: &[], writer: None, reader: None }
    }

    /// Returns whether the program has read the whole input.
    pub fn was_read(&self) -> bool {
        let left = self.reader.as_ref().map_or(Ok(0), ioctl_fionread);
        self.unwritten.is_empty() && left == Ok(0)
    }

    fn write(&mut self) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        match writer.write(self.unwritten) {
            Ok(length) => self.unwritten = &self.unwritten[length..],
            Err(error) if is_temporary(&error) => {}
            // [`Input::was_read`] reports it.
            Err(_) => self.writer = None,
        }
        if self.unwritten.is_empty() {
            self.writer = None;
        }
    }
}

/// The stdout or stderr of a program.
pub struct Output {
    pipe: Option<File>,
    text: Vec<u8>,
    /// How much of the output is kept, in bytes.
    limit: usize,
}

impl Output {
    pub fn new(pipe: Option<impl Into<OwnedFd>>, limit: usize) -> io::Result<Self> {
        let pipe = pipe.map(|pipe| File::from(pipe.into()));
        if let Some(pipe) = &pipe {
            ioctl_fionbio(pipe, true)?;
        }
        Ok(Output { pipe, text: Vec::new(), limit })
    }

    pub fn into_text(self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }

    fn read(&mut self) {
        let Some(pipe) = &mut self.pipe else {
            return;
        };
        let mut buffer = [0; 4096];
        match pipe.read(&mut buffer) {
            Err(error) if is_temporary(&error) => {}
            Ok(0) | Err(_) => self.pipe = None,
            Ok(length) => self.text.extend_from_slice(&buffer[..length]),
        }
        self.text.truncate(self.limit);
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Writes `input` and reads `outputs` until the program has closed all of them.
///
/// # Errors
/// Fails with `ETIMEDOUT` if `end` passes first.
pub fn exchange(input: &mut Input<'_>, outputs: &mut [Output], end: Deadline) -> Result<(), Errno> {
    while outputs.iter().any(|output| output.pipe.is_some()) {
        let writer = input.writer.iter().map(|pipe| (pipe.as_fd(), PollFlags::POLLOUT));
        let readers = outputs.iter().flat_map(|output| &output.pipe);
        let readers = readers.map(|pipe| (pipe.as_fd(), PollFlags::POLLIN));
        let pipes = writer.chain(readers);
        end.poll(&mut pipes.map(|(pipe, flags)| PollFd::new(pipe, flags)).collect::<Vec<_>>())?;
        input.write();
        outputs.iter_mut().for_each(Output::read);
    }
    Ok(())
}
