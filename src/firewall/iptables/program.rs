//! Runs an iptables program of the host, with a deadline.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, Builder};
use std::time::Duration;

use super::lock;
use crate::child;
use crate::deadline::{Deadline, run_within};
use crate::firewall::error::Error;
use crate::redirect::rules;

/// Time limit for one program, including its wait for the xtables lock.
const PROGRAM_BUDGET: Duration = Duration::from_secs(8);
const CHECK_SELINUX: &str = "check the node's audit log for SELinux denials of this program, or \
                             set the chart's iptablesMode to native, which runs no program";

/// Argument of `-w`: the seconds that a program waits for the xtables lock.
const LOCK_SECONDS: &str = "5";

/// Largest part of a program's stderr that is kept, in bytes.
const STDERR_LIMIT: usize = 4096;

/// Largest part of a program's stdout that is read, in bytes. A line has about 100 bytes. The
/// output is limited because a process of the pod with CAP_NET_ADMIN can add any number of rules.
const STDOUT_LIMIT: usize = 8 << 20;

/// Output of a program that exited.
enum Finished {
    /// stdout. Empty unless stdout is a pipe.
    Succeeded(String),
    /// stderr on one line, or the exit status if stderr is empty.
    Failed(String),
}

/// How a program ended.
enum ProgramEnd {
    Exited {
        status: ExitStatus,
        stdout: String,
        stderr: String,
        has_read_input: bool,
    },
    /// The program was killed at the deadline.
    TimedOut {
        /// Description of the process that held the xtables lock at this time, if one did.
        lock_holder: Option<String>,
    },
}

/// Runs a program such as `iptables-restore`, which applies the whole script or nothing. Kills it
/// at the deadline.
pub fn restore(program: &Path, script: &str, deadline: Deadline) -> Result<(), Error> {
    tracing::debug!("linkerd-cni: input of {}:\n{script}", program.display());
    let mut command = Command::new(program);
    command.args(["--noflush", "-w", LOCK_SECONDS]).stdout(Stdio::null());
    match run(program, command, script, deadline)? {
        Finished::Succeeded(_) => Ok(()),
        Finished::Failed(stderr) => Err(Error::Restore { program: program.to_owned(), stderr }),
    }
}

/// Lists table `nat` as lines of `iptables -S`.
pub fn list_nat_table(program: &Path, deadline: Deadline) -> Result<Vec<String>, Error> {
    let mut command = Command::new(program);
    command.args(["-w", LOCK_SECONDS, "-t", rules::NAT_TABLE, "-S"]).stdout(Stdio::piped());
    let stdout = match run(program, command, "", deadline)? {
        Finished::Succeeded(stdout) => stdout,
        Finished::Failed(stderr) => return Err(list_error(program, &stderr)),
    };
    if stdout.len() >= STDOUT_LIMIT {
        return Err(Error::TooLong { subject: format!("the list of {}", program.display()) });
    }
    // A complete list always contains the policies of the built-in chains.
    if !stdout.lines().any(|line| line.starts_with("-P ")) {
        return Err(list_error(program, "its output has no chains"));
    }
    Ok(stdout.lines().map(str::to_owned).collect())
}

/// Returns whether the program is the legacy variant of iptables. Versions before 1.8 do not print
/// their variant, and count as legacy.
pub fn is_legacy(program: &Path, deadline: Deadline) -> Result<bool, Error> {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::piped());
    match run(program, command, "", deadline)? {
        Finished::Succeeded(version) => Ok(!version.contains("nf_tables")),
        Finished::Failed(_) => Ok(true),
    }
}

fn list_error(program: &Path, problem: &str) -> Error {
    program_error(program, &format!("cannot list table nat: {problem}"), None)
}

fn start_error(program: &Path, source: &io::Error) -> Error {
    let is_denied = source.kind() == ErrorKind::PermissionDenied;
    let remedy = if is_denied { Some(CHECK_SELINUX) } else { None };
    program_error(program, &format!("cannot be started: {source}"), remedy)
}

fn program_error(program: &Path, problem: &str, remedy: Option<&'static str>) -> Error {
    Error::Other { problem: format!("{} {problem}", program.display()), remedy }
}

/// Runs `command` with `input` as its stdin. Kills its process group after [`PROGRAM_BUDGET`] or at
/// the deadline, whichever comes first.
fn run(
    program: &Path,
    command: Command,
    input: &str,
    deadline: Deadline,
) -> Result<Finished, Error> {
    let budget = deadline.remaining().min(PROGRAM_BUDGET);
    let end = run_to_end(command, input, budget).map_err(|error| start_error(program, &error))?;
    match end {
        ProgramEnd::Exited { status, stdout, has_read_input, .. } if status.success() => {
            if has_read_input {
                return Ok(Finished::Succeeded(stdout));
            }
            let problem = "reported success without reading the rules";
            Err(program_error(program, problem, Some(CHECK_SELINUX)))
        }
        ProgramEnd::Exited { status, stderr, .. } => match stderr.trim() {
            "" => Ok(Finished::Failed(status.to_string())),
            stderr if stderr.contains("xtables lock") => Err(lock_error(program)),
            stderr => Ok(Finished::Failed(stderr.replace('\n', "; "))),
        },
        ProgramEnd::TimedOut { lock_holder } => {
            let lock = match lock_holder {
                Some(holder) => format!("; {holder}"),
                None => String::new(),
            };
            let problem = format!("timed out after {budget:?} and was killed{lock}");
            Err(program_error(program, &problem, None))
        }
    }
}

fn lock_error(program: &Path) -> Error {
    let lock = match lock::describe_holder(None) {
        Some(holder) => holder,
        None => format!("{} is held by an unknown process", lock::path().display()),
    };
    Error::Locked { program: program.to_owned(), lock }
}

/// Starts `command`, writes `input` to its stdin, and reads its stdout and stderr until it exits.
/// Kills the process after `budget`.
///
/// stdin is a pipe, because SELinux policies let iptables inherit a pipe but not an in-memory file.
/// If SELinux denies access to stdin, the kernel silently replaces stdin with `/dev/null`.
fn run_to_end(mut command: Command, input: &str, budget: Duration) -> io::Result<ProgramEnd> {
    let end = Deadline::after(budget);
    // Keep a read end of the pipe, to find out later whether the program read all of its input.
    let (mut unread, mut writer) = io::pipe()?;
    command.stdin(unread.try_clone()?);
    let mut child = command.stderr(Stdio::piped()).process_group(0).spawn()?;
    let input = input.to_owned();
    let written = Builder::new().spawn(move || writer.write_all(input.as_bytes()))?;
    let stdout = child.stdout.take().map(OwnedFd::from);
    let stderr = child.stderr.take().map(OwnedFd::from);
    let outputs = run_within("outputs", budget, move || read_outputs(stdout, stderr));
    let status = match &outputs {
        // The program closed stdout and stderr, so it is usually about to exit.
        Ok(_) => child::wait(&mut child, end)?,
        Err(_) => None,
    };
    let (Ok((stdout, stderr)), Some(status)) = (outputs, status) else {
        let lock_holder = lock::describe_holder(Some(child.id()));
        child::kill(&mut child);
        return Ok(ProgramEnd::TimedOut { lock_holder });
    };
    // Drain the pipe until the writing thread closes it. This also unblocks that thread if the pipe
    // is full.
    let unread_bytes = io::copy(&mut unread, &mut io::sink())?;
    let has_read_input = unread_bytes == 0 && matches!(written.join(), Ok(Ok(())));
    Ok(ProgramEnd::Exited { status, stdout, stderr, has_read_input })
}

/// Reads stdout and stderr to their ends. Reads both at the same time, because a program blocks
/// when either pipe is full.
fn read_outputs(stdout: Option<OwnedFd>, stderr: Option<OwnedFd>) -> (String, String) {
    if stdout.is_none() {
        return (String::new(), read_pipe(stderr, STDERR_LIMIT));
    }
    thread::scope(|scope| {
        let reader = Builder::new().spawn_scoped(scope, || read_pipe(stderr, STDERR_LIMIT));
        let stdout = read_pipe(stdout, STDOUT_LIMIT);
        let stderr = match reader {
            Ok(reader) => reader.join().unwrap_or_default(),
            Err(_) => String::new(),
        };
        (stdout, stderr)
    })
}

/// Reads a pipe to its end, and returns the first `limit` bytes.
fn read_pipe(pipe: Option<OwnedFd>, limit: usize) -> String {
    let mut text = Vec::new();
    if let Some(mut pipe) = pipe.map(File::from) {
        // Treat a read error as the end of the pipe.
        let _ = (&mut pipe).take(limit as u64).read_to_end(&mut text);
        let _ = io::copy(&mut pipe, &mut io::sink());
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn within(milliseconds: u64) -> Deadline {
        Deadline::after(Duration::from_millis(milliseconds))
    }

    /// Creates an executable script. A shell writes the file, because a file that is open for
    /// writing cannot be executed (ETXTBSY): a child that another test starts at this moment could
    /// inherit the file descriptor of this process.
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
    fn error_of_a_failed_program_contains_its_stderr() {
        let (_dir, path) = program("echo line 3 failed >&2; exit 1");
        let error = restore(&path, "*nat\n", within(5000)).unwrap_err();
        assert_eq!(error.to_string(), format!("{} failed: line 3 failed", path.display()));
    }

    #[test]
    fn error_of_a_program_that_may_not_be_executed_has_a_remedy() {
        // Without any execute permission, not even root can execute the file.
        let file = tempfile::NamedTempFile::new().unwrap();
        let denied = restore(file.path(), "*nat\n", within(5000)).unwrap_err();
        assert!(denied.remedy().unwrap().contains("SELinux"), "{denied}");
        let missing = restore(Path::new("/missing"), "*nat\n", within(5000)).unwrap_err();
        assert_eq!(missing.remedy(), None, "{missing}");
    }

    #[test]
    fn hanging_program_is_killed_at_the_deadline() {
        for hang in ["exec sleep 60", "exec 2>&-; exec sleep 60", "sleep 60; true", "sleep 60 &"] {
            let (_dir, path) = program(hang);
            let started = Instant::now();
            let error = restore(&path, "*nat\n", within(100)).unwrap_err();
            assert!(error.to_string().contains(" timed out after "), "{hang}: {error}");
            let error = list_nat_table(&path, within(100)).unwrap_err();
            assert!(error.to_string().contains(" timed out after "), "{hang}: {error}");
            assert!(started.elapsed() < Duration::from_secs(20), "{hang}");
        }
    }

    #[test]
    fn children_of_a_hanging_program_are_killed_too() {
        let (dir, path) = program("sleep 60 & echo $! >\"$0.pid\"; wait");
        restore(&path, "*nat\n", within(500)).unwrap_err();
        child::tests::assert_ends(&dir.path().join("iptables-restore.pid"));
    }

    #[test]
    fn program_that_succeeds_without_reading_the_rules_is_an_error() {
        let long = "*nat\n".repeat(100_000);
        // SELinux replaces a stdin that the program may not read with /dev/null.
        for text in ["exec </dev/null; exit 0", "exec <&-; exit 0", "read line"] {
            let (_dir, path) = program(text);
            // `read line` reads only the first line of the script.
            for script in ["*nat\nCOMMIT\n", &long] {
                let error = restore(&path, script, within(20_000)).unwrap_err();
                assert!(error.to_string().contains(" without reading "), "{text}: {error}");
                assert!(error.remedy().is_some());
            }
        }
        let (_dir, path) = program("exec cat >\"$0.input\"");
        for script in ["*nat\n", &long] {
            restore(&path, script, within(20_000)).unwrap();
            let input = path.with_extension("input");
            assert!(std::fs::read_to_string(input).unwrap() == script);
        }
    }

    /// Lists table `nat` with the shell script `text` as the program.
    fn list_with(text: &str) -> Result<Vec<String>, Error> {
        let (_dir, path) = program(text);
        list_nat_table(&path, within(20_000))
    }

    #[test]
    fn incomplete_iptables_listing_is_an_error() {
        let complete = list_with("echo -P OUTPUT ACCEPT; echo -N PROXY_INIT_OUTPUT; seq 100000");
        assert_eq!(complete.unwrap().len(), 100_002);
        let empty = list_with("exit 0").unwrap_err().to_string();
        assert!(empty.ends_with("cannot list table nat: its output has no chains"), "{empty}");
        let long =
            list_with("echo -P OUTPUT ACCEPT; yes | head -c 9000000").unwrap_err().to_string();
        assert!(long.contains("is too long to read"), "{long}");
        let failed = list_with("echo -P OUTPUT ACCEPT; echo no nat here >&2; exit 3")
            .unwrap_err()
            .to_string();
        assert!(failed.ends_with("cannot list table nat: no nat here"), "{failed}");
    }
}
