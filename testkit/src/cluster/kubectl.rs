//! kubectl, with a command line and with text on its stdin: for what users type, and for what takes
//! several requests. Tests read and poll through [`super::api`], which starts no process.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::thread;

use crate::child::{must, stdout_of};

/// Runs kubectl with the words of a line, and returns its stdout. If kubectl fails, panics with its
/// stderr.
pub fn kubectl(line: &str) -> String {
    must(&mut command(line))
}

pub fn command(line: &str) -> Command {
    let mut command = Command::new("kubectl");
    command.args(line.split_whitespace());
    command
}

/// Runs kubectl with `text` as its stdin, and returns its stdout. If kubectl fails, panics with its
/// stderr.
pub fn kubectl_with_stdin(line: &str, text: &str) -> String {
    let mut command = command(line);
    let output = run_with_stdin(&mut command, text);
    stdout_of(&command, output)
}

/// Runs a command with `text` as its stdin.
pub fn run_with_stdin(command: &mut Command, text: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    thread::scope(|scope| {
        // The input is written by another thread, because the command may write output before it
        // has read all of its input. If the write fails, the command has ended early, which its
        // status shows.
        scope.spawn(move || stdin.write_all(text.as_bytes()));
        child.wait_with_output().unwrap()
    })
}
