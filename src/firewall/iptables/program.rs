//! Runs an iptables program with a deadline.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::{Error, lock};
use crate::deadline::Deadline;
use crate::rules;

/// How long a program waits for the xtables lock, in seconds, as its argument.
const LOCK_SECONDS: &str = "5";

/// How much of the program's stderr is kept, in bytes.
const STDERR_LIMIT: usize = 4096;

/// How much of the program's stdout is read, in bytes. A rule has some 100.
const STDOUT_LIMIT: u64 = 16 << 20;

/// Runs the `-restore` program with `script` as input. The program applies all of the script or
/// nothing.
///
/// # Errors
/// Fails with the program's stderr, with [`Error::Locked`], or with [`Error::Deadline`] after killing
/// the program.
pub fn restore(program: &Path, script: &str, deadline: Duration) -> Result<(), Error> {
    tracing::debug!("linkerd-cni: input of {}:\n{script}", program.display());
    let start = |source| Error::Start { program: program.to_owned(), source };
    let mut command = Command::new(program);
    command
        .args(["--noflush", "-w", LOCK_SECONDS])
        .stdin(file_in_memory(script).map_err(start)?)
        .stdout(Stdio::null());
    let (status, stderr) = run(program, command, deadline)?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::Restore { program: program.to_owned(), stderr }),
    }
}

/// Lists table `nat` as lines of `iptables -S`.
///
/// # Errors
/// Like [`restore`].
pub fn list(program: &Path, deadline: Duration) -> Result<Vec<String>, Error> {
    let start = |source| Error::Start { program: program.to_owned(), source };
    let failed = |message| Error::List { program: program.to_owned(), message };
    let mut output = file_in_memory("").map_err(start)?;
    let mut command = Command::new(program);
    command
        .args(["-w", LOCK_SECONDS, "-t", rules::NAT_TABLE, "-S"])
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_err(start)?);
    let (status, stderr) = run(program, command, deadline)?;
    if !status.success() {
        return Err(failed(stderr));
    }
    let mut text = Vec::new();
    output.rewind().map_err(start)?;
    output.take(STDOUT_LIMIT).read_to_end(&mut text).map_err(start)?;
    let text = String::from_utf8_lossy(&text);
    // A complete list has the policies of the built-in chains.
    if !text.lines().any(|line| line.starts_with("-P ")) {
        return Err(failed("its output has no chains".to_owned()));
    }
    Ok(text.lines().map(str::to_owned).collect())
}

/// Runs `command` and returns its exit status and stderr on one line. Whatever the program started
/// is killed at the deadline too.
fn run(
    program: &Path,
    mut command: Command,
    deadline: Duration,
) -> Result<(ExitStatus, String), Error> {
    let start = |source| Error::Start { program: program.to_owned(), source };
    let end = Deadline::after(deadline);
    let mut child = command.stderr(Stdio::piped()).process_group(0).spawn().map_err(start)?;
    let stderr = match child.stderr.take() {
        Some(stderr) => read_until(stderr, end),
        None => Some(String::new()),
    };
    // The program closed stderr, so it is usually about to exit.
    let status = if stderr.is_some() { wait_until(&mut child, end).map_err(start)? } else { None };
    let (Some(stderr), Some(status)) = (stderr, status) else {
        let lock = lock::holder(Some(child.id()));
        kill(&mut child);
        return Err(Error::Deadline { program: program.to_owned(), deadline, lock });
    };
    let stderr = match stderr.trim() {
        "" => status.to_string(),
        stderr => stderr.replace('\n', "; "),
    };
    if !status.success() && stderr.contains("xtables lock") {
        let unknown = || format!("{} is held by an unknown process", lock::path().display());
        let lock = lock::holder(None).unwrap_or_else(unknown);
        return Err(Error::Locked { program: program.to_owned(), lock });
    }
    Ok((status, stderr))
}

/// Returns `content` as a file in memory. A pipe would block if its other end does not read.
fn file_in_memory(content: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("iptables", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(content.as_bytes())?;
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

/// Waits for the program to exit; `None` if `end` passes first.
fn wait_until(child: &mut Child, end: Deadline) -> std::io::Result<Option<ExitStatus>> {
    let mut pause = Duration::from_micros(50);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if end.has_passed() {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Kills the program together with the processes that it started, and reaps it.
fn kill(child: &mut Child) {
    // Both fail only if the program has exited.
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
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
        let error = restore(&path, "*nat\n", Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.to_string(), format!("{} failed: line 3 failed", path.display()));
    }

    #[test]
    fn a_program_that_hangs_is_killed_at_the_deadline() {
        for hang in ["exec sleep 60", "exec 2>&-; exec sleep 60", "sleep 60; true", "sleep 60 &"] {
            let (_dir, path) = program(hang);
            let started = Instant::now();
            let error = restore(&path, "*nat\n", Duration::from_millis(100)).unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{hang}: {error}");
            let error = list(&path, Duration::from_millis(100)).unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{hang}: {error}");
            assert!(started.elapsed() < Duration::from_secs(20), "{hang}");
        }
    }

    #[test]
    fn processes_that_a_hung_program_started_are_killed_too() {
        let (dir, path) = program("sleep 60 & echo $! >\"$0.pid\"; wait");
        restore(&path, "*nat\n", Duration::from_millis(500)).unwrap_err();
        let pid = std::fs::read_to_string(dir.path().join("iptables-restore.pid")).unwrap();
        let end = Deadline::after(Duration::from_secs(20));
        let stat = format!("/proc/{}/stat", pid.trim());
        // A killed process is a zombie until its new parent reaps it.
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(!end.has_passed(), "process {pid} is alive");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_list_is_complete_or_an_error() {
        let list = |text| {
            let (_dir, path) = program(text);
            list(&path, Duration::from_secs(20)).map_err(|error| error.to_string())
        };
        let complete = list("echo -P OUTPUT ACCEPT; echo -N PROXY_INIT_OUTPUT; seq 100000");
        assert_eq!(complete.unwrap().len(), 100_002);
        let empty = list("exit 0").unwrap_err();
        assert!(empty.ends_with("cannot list table nat: its output has no chains"), "{empty}");
        let failed = list("echo -P OUTPUT ACCEPT; echo no nat here >&2; exit 3").unwrap_err();
        assert!(failed.ends_with("cannot list table nat: no nat here"), "{failed}");
    }
}
