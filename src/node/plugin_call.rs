//! Runs a program as a container runtime runs a CNI plugin, with a deadline.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::child::kill_group;
use crate::deadline::{Deadline, run_within};

/// Longest part of the last line on stderr that an error quotes, in characters.
const QUOTE_LIMIT: usize = 300;

/// Why a call of a plugin failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The plugin returned a CNI error.
    #[error("{text} (code {code})")]
    Returned { code: u64, text: String },
    /// The program could not be run.
    #[error("cannot run {}: {source}", path.display())]
    NotRun { path: PathBuf, source: io::Error },
    #[error("{} timed out and was killed", .0.display())]
    TimedOut(PathBuf),
    #[error("the result of {} is not JSON", .0.display())]
    NotJson(PathBuf),
    /// The program failed without a CNI error. The text has its exit status.
    #[error("{0}")]
    Failed(String),
}

/// Returns whether the kernel denied this process to run the program (EACCES, EPERM). Another
/// process may be allowed to: security modules decide by the process that executes the file.
pub fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Runs `program` with the CNI `command`, the environment variables `vars`, the agent's `PATH` and
/// the text `stdin`. Returns the JSON on its stdout, or null if its stdout is empty. Kills the
/// program's process group at `end`.
pub fn call(
    program: &Path,
    command: &str,
    vars: &[(&str, &str)],
    stdin: &str,
    end: Deadline,
) -> Result<Value, CallError> {
    let output = run_program(program, command, vars, stdin, end)?;
    if output.status.success() {
        return read_result(&output.stdout).ok_or_else(|| CallError::NotJson(program.into()));
    }
    Err(read_failure(program, &output))
}

/// Runs the program and waits until it ends. Kills the program at `end`, and then fails.
fn run_program(
    program: &Path,
    command: &str,
    vars: &[(&str, &str)],
    stdin: &str,
    end: Deadline,
) -> Result<Output, CallError> {
    let mut child = spawn(program, command, vars)
        .map_err(|source| CallError::NotRun { path: program.into(), source })?;
    // The program leads its process group, so its ID is also the ID of the group.
    let group = child.id() as i32;
    let stdin = stdin.to_owned();
    let ended = run_within("plugin call", end.remaining(), move || {
        if let Some(mut pipe) = child.stdin.take() {
            // The write fails if the program has already ended. This error is ignored, because the
            // exit status and the output of the program say why it has ended.
            let _ = pipe.write_all(stdin.as_bytes());
        }
        child.wait_with_output()
    });
    match ended {
        Ok(output) => output.map_err(|source| CallError::NotRun { path: program.into(), source }),
        Err(_) => {
            // The thread that waits for the program goes on, and reaps the program once that is
            // killed.
            kill_group(group);
            Err(CallError::TimedOut(program.into()))
        }
    }
}

/// Starts the program with pipes, in a process group of its own.
fn spawn(program: &Path, command: &str, vars: &[(&str, &str)]) -> io::Result<Child> {
    let mut process = Command::new(program);
    process.env_clear();
    if let Some(path) = std::env::var_os("PATH") {
        process.env("PATH", path);
    }
    process
        .env("CNI_COMMAND", command)
        .envs(vars.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// Reads the result of a successful call. Returns null if the result is empty, and `None` if it is
/// not JSON.
fn read_result(stdout: &[u8]) -> Option<Value> {
    if stdout.trim_ascii().is_empty() {
        return Some(Value::Null);
    }
    serde_json::from_slice(stdout).ok()
}

/// Describes a failed call by the CNI error on stdout (CNI spec 1.1, section 5, "Error"). Without a
/// CNI error, describes it by the exit status and the last line on stderr.
fn read_failure(program: &Path, output: &Output) -> CallError {
    let error: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if let Some(code) = error["code"].as_u64() {
        let msg = error["msg"].as_str().unwrap_or_default();
        let details = error["details"].as_str().unwrap_or_default();
        let text = format!("{msg}; {details}").trim_end_matches("; ").to_owned();
        return CallError::Returned { code, text };
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last_line = stderr.trim().lines().last().unwrap_or_default();
    let quote: String = last_line.chars().take(QUOTE_LIMIT).collect();
    let why = format!("{}: {}; {quote}", program.display(), output.status);
    CallError::Failed(why.trim_end_matches("; ").to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Calls a shell, which reads its script from stdin, as a plugin reads its config.
    fn shell(script: &str, budget: Duration) -> Result<Value, CallError> {
        call(Path::new("/bin/sh"), "ADD", &[], script, Deadline::after(budget))
    }

    /// Returns why a call failed.
    fn why(result: Result<Value, CallError>) -> String {
        result.unwrap_err().to_string()
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn the_result_is_the_json_on_stdout() {
        let printed = shell(r#"echo "{\"command\": \"$CNI_COMMAND\"}""#, LONG).unwrap();
        assert_eq!(printed["command"], "ADD");
        assert_eq!(shell("exit 0", LONG).unwrap(), Value::Null);
    }

    #[test]
    fn errors_quote_the_cni_error_or_the_last_line_on_stderr() {
        for (script, expected) in [
            (r#"echo '{"code": 121, "msg": "a", "details": "b"}'; exit 1"#, "a; b (code 121)"),
            ("echo one >&2; echo two >&2; exit 3", "/bin/sh: exit status: 3; two"),
            ("kill -9 $$", "/bin/sh: signal: 9 (SIGKILL)"),
            ("echo hello", "the result of /bin/sh is not JSON"),
        ] {
            assert_eq!(why(shell(script, LONG)), expected);
        }
        let missing = why(call(Path::new("/no/such"), "ADD", &[], "", Deadline::after(LONG)));
        assert!(missing.starts_with("cannot run /no/such: No such file"));
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children_at_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("id");
        let with_child = format!("sleep 60 & echo $! >{}; wait", file.display());
        let begin = Instant::now();
        for script in ["exec sleep 60", "exec >/dev/null 2>&1; exec sleep 60", &with_child] {
            let error = why(shell(script, Duration::from_secs(1)));
            assert!(error.ends_with("timed out and was killed"), "{error}");
        }
        assert!(begin.elapsed() < LONG);
        crate::child::tests::assert_ends(&file);
    }

    #[test]
    fn an_error_quotes_only_a_part_of_a_long_output() {
        let script = "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; exit 1";
        let error = why(shell(script, LONG));
        assert!(error.len() < 1000, "{}", error.len());
    }
}
