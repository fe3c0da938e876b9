//! kubectl, with a command line and with text on its stdin.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::Value;

use crate::child::{must, stdout_of};

/// Runs kubectl with the words of a line, and returns its stdout. If kubectl fails, panics with its
/// stderr.
pub fn kubectl(line: &str) -> String {
    must(&mut command(line))
}

/// Returns what `kubectl get` prints as JSON.
pub fn get(what: &str) -> Value {
    serde_json::from_str(&kubectl(&format!("get {what} -o json"))).unwrap()
}

pub fn get_items(what: &str) -> Vec<Value> {
    serde_json::from_value(get(what)["items"].take()).unwrap()
}

/// Returns a field of the objects that `kubectl get` finds, by the JSONPath of the field. Empty if
/// the field is missing. Panics if kubectl fails.
pub fn field(what: &str, path: &str) -> String {
    must(command(&format!("get {what} -o")).arg(format!("jsonpath={{{path}}}")))
}

pub fn command(line: &str) -> Command {
    let mut command = Command::new("kubectl");
    command.args(line.split_whitespace());
    command
}

/// Runs kubectl with the words of a line, and returns whether it succeeds.
pub fn succeeds(line: &str) -> bool {
    command(line).output().unwrap().status.success()
}

pub fn apply(object: &Value) {
    kubectl_with_stdin("apply -f -", &object.to_string());
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
