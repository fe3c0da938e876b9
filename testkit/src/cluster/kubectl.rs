//! kubectl, with a command line and with text on its stdin.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::Value;

use crate::child::{checked, must};

/// Runs kubectl with the words of a line, and returns its output. Panics with its error if it
/// fails.
pub fn kubectl(line: &str) -> String {
    must(&mut command(line))
}

pub fn get(what: &str) -> Value {
    serde_json::from_str(&kubectl(&format!("get {what} -o json"))).unwrap()
}

pub fn get_items(what: &str) -> Vec<Value> {
    serde_json::from_value(get(what)["items"].take()).unwrap()
}

/// A field of what `kubectl get` finds, by its JSONPath; empty if it is missing. Panics if kubectl
/// fails.
pub fn field(what: &str, path: &str) -> String {
    must(command(&format!("get {what} -o")).arg(format!("jsonpath={{{path}}}")))
}

pub fn command(line: &str) -> Command {
    let mut command = Command::new("kubectl");
    command.args(line.split_whitespace());
    command
}

pub fn succeeds(line: &str) -> bool {
    command(line).output().unwrap().status.success()
}

pub fn apply(object: &Value) {
    piped("apply -f -", &object.to_string());
}

/// Runs kubectl with `text` on its stdin and returns its output. Panics with its error if it fails.
pub fn piped(line: &str, text: &str) -> String {
    let mut command = command(line);
    let output = fed(&mut command, text);
    checked(&command, output)
}

pub fn fed(command: &mut Command, text: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    thread::scope(|scope| {
        // The command may write output before it has read all of its input. A write fails if the
        // command has ended early. Then the command failed too.
        scope.spawn(move || stdin.write_all(text.as_bytes()));
        child.wait_with_output().unwrap()
    })
}
