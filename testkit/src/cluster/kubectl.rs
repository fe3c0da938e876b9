//! kubectl, with a command line and with text on its stdin.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::Value;

/// Runs kubectl and returns its output. Panics with its error if it fails.
pub fn kubectl(args: &(impl Arguments + ?Sized)) -> String {
    let mut command = command(args);
    let output = command
        .output()
        .expect("kubectl runs; scripts/tools kubernetes puts it where scripts/tools --path says");
    said(&command, output)
}

pub fn command(args: &(impl Arguments + ?Sized)) -> Command {
    let mut command = Command::new("kubectl");
    command.args(args.words());
    command
}

pub fn apply(object: &Value) {
    piped("apply -f -", &object.to_string());
}

/// Runs kubectl with `text` on its stdin and returns its output. Panics with its error if it fails.
pub fn piped(args: &(impl Arguments + ?Sized), text: &str) -> String {
    let mut command = command(args);
    let output = fed(&mut command, text);
    said(&command, output)
}

/// Runs a command with `text` on its stdin.
pub fn fed(command: &mut Command, text: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let text = text.to_owned();
    // The command may write output before it has read all of its input.
    let writer = thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // It fails if the command has ended early. Then the command failed too.
    let _ = writer.join();
    output
}

fn said(command: &Command, output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Arguments of a command: one line with blanks between them, or a list.
pub trait Arguments {
    fn words(&self) -> Vec<&str>;
}

impl Arguments for str {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl Arguments for String {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl<const N: usize> Arguments for [&str; N] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Arguments for [&str] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Arguments for Vec<&str> {
    fn words(&self) -> Vec<&str> {
        self.clone()
    }
}
