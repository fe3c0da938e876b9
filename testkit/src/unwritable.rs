//! Outputs to which no line can be written: full, closed, stopped, or without a reader. Needs root.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::pty::openpty;
use nix::sys::termios::{FlowArg, tcflow};

use crate::mounts::in_mount_namespace;

/// An output to which no line can be written until it is dropped.
pub struct Unwritable {
    pub name: &'static str,
    /// `None`: the program is started with this descriptor closed.
    output: Option<OwnedFd>,
    /// The other end of a pipe, socket or terminal. It is kept open and never read.
    _reader: Option<OwnedFd>,
}

impl Unwritable {
    pub fn all() -> Vec<Unwritable> {
        let (socket, peer) = UnixStream::pair().unwrap();
        vec![
            full_device(),
            closed(),
            full_pipe(),
            fill("a full socket", socket, peer),
            unwritable("a pipe without a reader", io::pipe().unwrap().1, None),
            stopped_terminal(),
            file_on_a_full_disk(),
        ]
    }

    /// Returns a command that runs `program` with this output as stderr. The caller sets arguments
    /// and environment.
    pub fn as_stderr_of(&self, program: &str) -> Command {
        let Some(output) = &self.output else {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", r#"exec "$0" "$@" 2>&-"#, program]);
            return shell;
        };
        let mut command = Command::new(program);
        command.stderr(output.try_clone().unwrap());
        command
    }

    /// Returns this output for a program's stdout. For the closed output, returns `/dev/null`.
    pub fn stdio(&self) -> Stdio {
        match &self.output {
            Some(output) => output.try_clone().unwrap().into(),
            None => Stdio::null(),
        }
    }
}

fn unwritable(
    name: &'static str,
    output: impl Into<OwnedFd>,
    reader: Option<OwnedFd>,
) -> Unwritable {
    Unwritable { name, output: Some(output.into()), _reader: reader }
}

pub fn full_device() -> Unwritable {
    unwritable("a full device", File::options().write(true).open("/dev/full").unwrap(), None)
}

pub fn closed() -> Unwritable {
    Unwritable { name: "closed", output: None, _reader: None }
}

pub fn full_pipe() -> Unwritable {
    let (reader, writer) = io::pipe().unwrap();
    fill("a full pipe", writer, reader)
}

/// A terminal whose output was stopped, as by ^S.
fn stopped_terminal() -> Unwritable {
    let terminal = openpty(None, None).unwrap();
    tcflow(&terminal.slave, FlowArg::TCOOFF).unwrap();
    unwritable("a stopped terminal", terminal.slave, Some(terminal.master))
}

fn file_on_a_full_disk() -> Unwritable {
    let file = in_mount_namespace(|| {
        let dir = tempfile::tempdir().unwrap();
        let tmpfs = Some("tmpfs");
        mount(tmpfs, dir.path(), tmpfs, MsFlags::empty(), Some("size=4k")).unwrap();
        let mut file = File::create(dir.path().join("log")).unwrap();
        while file.write_all(&[b'x'; 64]).is_ok() {}
        umount2(dir.path(), MntFlags::MNT_DETACH).unwrap();
        file
    });
    unwritable("a file on a full disk", file, None)
}

/// Writes to `writer` until its buffer is full.
fn fill(name: &'static str, writer: impl Into<OwnedFd>, reader: impl Into<OwnedFd>) -> Unwritable {
    let writer = writer.into();
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    // A write of 4,096 bytes fails while less space is left, so single bytes fill the rest.
    for length in [4096, 1] {
        while nix::unistd::write(&writer, &[b'x'; 4096][..length]).is_ok() {}
    }
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    unwritable(name, writer, Some(reader.into()))
}
