//! Other programs that tests run.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// Returns a wrapper that makes `bind` of netlink sockets fail. strace waits for each process that
/// the plugin leaves running, so its time is limited.
pub fn without_netlink() -> Vec<&'static str> {
    let strace = "timeout 60 strace -f -qq -o /dev/null -e trace=bind -einject=bind:error=EPERM";
    strace.split(' ').collect()
}

/// Copies a program, as [`crate::write_program`] writes one.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    must(Command::new("cp").arg(from.as_ref()).arg(to.as_ref()));
}

pub struct KilledOnDrop(pub Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command and returns its stdout. If the command fails, panics with its stderr.
#[track_caller]
pub fn must(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!(
            "{command:?}: {error}; scripts/tools installs programs where scripts/tools --path says"
        )
    });
    stdout_of(command, output)
}

/// Returns the stdout of a command that has ended. If the command failed, panics with its stderr.
#[track_caller]
pub fn stdout_of(command: &Command, output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program of the directory `scripts`, and returns its stdout.
#[track_caller]
pub fn script(name: &str, args: &[&str]) -> String {
    let checkout = crate::repository();
    let script = checkout.join("scripts").join(name);
    must(Command::new(script).args(args).current_dir(checkout).stdin(Stdio::null()))
}

/// Returns whether strace is installed. Panics in CI if it is not, so that CI skips no test.
pub fn has_strace() -> bool {
    let is_installed = Command::new("strace").arg("-V").output().is_ok();
    assert!(is_installed || std::env::var_os("CI").is_none(), "strace is missing");
    if !is_installed {
        println!("skipped: strace is missing (scripts/tools debian)");
    }
    is_installed
}

/// Whether an agent has blocked SIGTERM. From then on, SIGTERM does not kill the agent, because its
/// main loop reads the signal.
pub fn takes_sigterm(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let Some(blocked) = status.lines().find_map(|line| line.strip_prefix("SigBlk:")) else {
        return false;
    };
    let mask = u64::from_str_radix(blocked.trim(), 16).unwrap_or(0);
    // Signal N is bit N - 1 of the mask, because there is no signal 0.
    let sigterm = 1 << (Signal::SIGTERM as i32 - 1);
    mask & sigterm != 0
}
