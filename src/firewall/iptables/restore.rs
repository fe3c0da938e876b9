//! One run of `iptables-restore`, with a deadline.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::Error;

/// What is kept of the program's complaints, in bytes.
const STDERR_LIMIT: usize = 4096;

/// Feeds `script` to `program`, which changes nothing unless it takes all of it.
pub fn run(program: &Path, script: &str, deadline: Duration) -> Result<(), Error> {
    tracing::debug!("linkerd-cni: {} gets\n{script}", program.display());
    let start = |source| Error::Start {
        program: program.to_owned(),
        source,
    };
    let mut child = Command::new(program)
        .args(["--noflush", "-w", "5"])
        .stdin(input(script).map_err(start)?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    let until = Instant::now() + deadline;
    let stderr = match child.stderr.take() {
        Some(stderr) => read_until(stderr, until),
        None => Some(String::new()),
    };
    let late = || Error::Deadline {
        program: program.to_owned(),
        deadline,
    };
    let Some(stderr) = stderr else {
        kill(&mut child);
        return Err(late());
    };
    // stderr is closed, so the program is ending: this does not wait long.
    let status = child.wait().map_err(start)?;
    if status.success() {
        return Ok(());
    }
    let stderr = stderr.trim();
    Err(Error::Restore {
        program: program.to_owned(),
        stderr: if stderr.is_empty() {
            status.to_string()
        } else {
            stderr.replace('\n', "; ")
        },
    })
}

/// A file in memory rather than a pipe, which could block on a program that does not read.
fn input(script: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("iptables-restore", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(script.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Reads to the end; `None` when `until` comes first.
fn read_until(mut stderr: ChildStderr, until: Instant) -> Option<String> {
    let mut text = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, timeout).unwrap_or(0) == 0 {
            continue;
        }
        match stderr.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(length) => text.extend_from_slice(&buffer[..length]),
        }
        text.truncate(STDERR_LIMIT);
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn kill(child: &mut Child) {
    // Both fail only when the program has ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process writes the file: one that this process has open for writing,
    /// or has passed on to a child of another test, cannot be executed (ETXTBSY).
    fn program(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("iptables-restore");
        let written = Command::new("/bin/sh")
            .args([
                "-c",
                "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\"",
            ])
            .args([path.as_os_str(), text.as_ref()])
            .status()
            .unwrap();
        assert!(written.success());
        (dir, path)
    }

    #[test]
    fn the_complaint_of_a_failing_program_is_in_the_error() {
        let (_dir, path) = program("echo line 3 failed >&2; exit 1");
        let error = run(&path, "*nat\n", Duration::from_secs(5)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{} failed: line 3 failed", path.display())
        );
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
