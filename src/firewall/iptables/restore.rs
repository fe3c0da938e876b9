//! Runs `iptables-restore` with a deadline.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::Error;
use crate::deadline::Deadline;

/// How much of the program's stderr is kept, in bytes.
const STDERR_LIMIT: usize = 4096;

/// Runs `program` with `script` as input. The program applies all of the script or nothing.
///
/// # Errors
/// Fails with the program's stderr, or with [`Error::Deadline`] after killing the program.
pub fn run(program: &Path, script: &str, deadline: Duration) -> Result<(), Error> {
    tracing::debug!("linkerd-cni: input of {}:\n{script}", program.display());
    let start = |source| Error::Start { program: program.to_owned(), source };
    let mut child = Command::new(program)
        .args(["--noflush", "-w", "5"])
        .stdin(input(script).map_err(start)?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    let end = Deadline::after(deadline);
    let stderr = match child.stderr.take() {
        Some(stderr) => read_until(stderr, end),
        None => Some(String::new()),
    };
    let late = || Error::Deadline { program: program.to_owned(), deadline };
    let Some(stderr) = stderr else {
        kill(&mut child);
        return Err(late());
    };
    // The program closed stderr, so it is about to exit.
    let status = child.wait().map_err(start)?;
    if status.success() {
        return Ok(());
    }
    let stderr = stderr.trim();
    Err(Error::Restore {
        program: program.to_owned(),
        stderr: if stderr.is_empty() { status.to_string() } else { stderr.replace('\n', "; ") },
    })
}

/// Returns `script` as a file in memory. Writing to a pipe would block on a program that does not
/// read.
fn input(script: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("iptables-restore", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(script.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Reads `stderr` until the program closes it; `None` if `end` passes first.
fn read_until(mut stderr: ChildStderr, end: Deadline) -> Option<String> {
    let mut text = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        end.poll(&mut [PollFd::new(stderr.as_fd(), PollFlags::POLLIN)]).ok()?;
        match stderr.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(length) => text.extend_from_slice(&buffer[..length]),
        }
        text.truncate(STDERR_LIMIT);
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn kill(child: &mut Child) {
    // Both fail only if the program has exited.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Creates an executable script. Another process writes the file: a file that this process, or a
    /// child of another test, still has open for writing cannot be executed (ETXTBSY).
    fn program(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("iptables-restore");
        let written = Command::new("/bin/sh")
            .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\""])
            .args([path.as_os_str(), text.as_ref()])
            .status()
            .unwrap();
        assert!(written.success());
        (dir, path)
    }

    #[test]
    fn the_error_holds_the_stderr_of_a_failed_program() {
        let (_dir, path) = program("echo line 3 failed >&2; exit 1");
        let error = run(&path, "*nat\n", Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.to_string(), format!("{} failed: line 3 failed", path.display()));
    }

    #[test]
    fn a_program_that_hangs_is_killed_at_the_deadline() {
        let (_dir, path) = program("exec sleep 60");
        let started = Instant::now();
        let error = run(&path, "*nat\n", Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
