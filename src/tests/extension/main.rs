//! The program of `linkerd cni` with a kubectl that fails. `src/tests/cluster` runs it with a real
//! one.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testkit::healthy_cluster::HealthyCluster;
use testkit::until::until;

/// Runs the program with only `dir` in `PATH`.
fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli"))
        .args(args)
        .env("PATH", dir)
        .output()
        .unwrap()
}

/// A directory with a kubectl that runs this shell script.
fn with_kubectl(script: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    // Another process writes the file: a file that a child of another test has open for writing
    // cannot be executed (ETXTBSY).
    let written = Command::new("/bin/sh")
        .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\""])
        .args([dir.path().join("kubectl").as_os_str(), script.as_ref()])
        .status()
        .unwrap();
    assert!(written.success());
    dir
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn without_kubectl_the_checks_fail_in_the_format_of_linkerd_check() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["_extension-metadata"]);
    assert!(output.status.success());
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(metadata, json!({"name": "linkerd-cni", "checks": "always"}));

    let output = run(dir.path(), &["check", "--output=json", "--wait=5m0s"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), ""));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["success"], false);
    let check = &report["categories"][0]["checks"][0];
    let error = check["error"].as_str().unwrap();
    assert!(error.starts_with("cannot run kubectl: ") && error.contains("PATH"), "{error}");
    assert!(check["hint"].as_str().unwrap().ends_with("/docs/cli.md#kubernetes-api"), "{check}");
}

#[test]
fn an_unreachable_api_server_fails_each_command_once() {
    let dir = with_kubectl("echo 'The connection to the server x was refused' >&2; exit 1");
    for args in [&["check"][..], &["check", "--pre"], &["explain", "web"], &["bypass"]] {
        let output = run(dir.path(), args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let all = [text(&output.stdout), text(&output.stderr)].concat();
        assert_eq!(all.matches("The connection to the server x was refused").count(), 1, "{all}");
        assert!(!all.contains('\x1b'), "{all}");
    }
}

#[test]
fn cluster_flags_reach_kubectl() {
    let dir = with_kubectl("echo \"$*\" >&2; exit 1");
    let output = run(dir.path(), &["bypass", "--context=kind", "--as=jane", "--as-group=[a]"]);
    let error = text(&output.stderr);
    let passed = "--context=kind --as=jane --as-group=a proxy --unix-socket ";
    assert!(error.contains(passed), "{error}");
}

/// SIGKILL ends the command too, and no handler can catch it.
#[test]
fn a_signal_ends_the_command_and_every_kubectl() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        assert_ends_with_its_kubectl(signal);
    }
}

fn assert_ends_with_its_kubectl(signal: Signal) {
    let dir = with_kubectl("echo $$ >$0.pid; mv $0.pid $0.running; exec /bin/sleep 600");
    let scratch = tempfile::tempdir().unwrap();
    let left = || std::fs::read_dir(scratch.path()).unwrap().count();
    // A background process of a shell without job control inherits an ignored SIGINT.
    let mut command = Command::new("/usr/bin/env")
        .args(["--default-signal=INT", env!("CARGO_BIN_EXE_linkerd-cni-cli"), "check"])
        .env("PATH", format!("{}:/usr/bin:/bin", dir.path().display()))
        .env("TMPDIR", scratch.path())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let running = dir.path().join("kubectl.running");
    until("kubectl runs", || running.exists());
    let pid = std::fs::read_to_string(&running).unwrap().trim().to_owned();
    assert_eq!(left(), 1, "the directory of the proxy's socket");
    kill(Pid::from_raw(command.id() as i32), signal).unwrap();
    assert_eq!(command.wait().unwrap().signal(), Some(signal as i32));
    until("kubectl has ended", || has_ended(&pid));
    until("the socket's directory is removed", || left() == 0);
}

/// Number of agents, and how long the fake API server takes for each response.
const AGENTS: usize = 500;
const LATENCY: Duration = Duration::from_millis(50);
/// Longest time for a check of three clusters. One after the other, the responses take 75 s.
const TIME: Duration = Duration::from_secs(20);

/// Asks 500 agents of each cluster, through one proxy for each.
#[test]
fn three_clusters_with_500_agents_each_are_checked_in_seconds() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("api");
    let version = env!("CARGO_PKG_VERSION");
    let status =
        json!({"version": version, "ready": true, "conflist": "a", "podCopy": {"current": true}});
    let (status, is_ready, latency) = (status.to_string(), true, LATENCY);
    let cluster = HealthyCluster { nodes: AGENTS, status, is_ready, latency };
    let most = cluster.serve(UnixListener::bind(&socket).unwrap());
    let dir = with_kubectl(&format!(
        "echo $* >>$0.log
case $* in
*context=down*) echo refused >&2; exit 1 ;;
*) for path; do :; done; ln -s {} $path; exec /bin/sleep 600 ;;
esac",
        socket.display()
    ));
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let check = |contexts: &str, format: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli"));
        command.args(["check", "--wait=0s", "--contexts", contexts, "-o", format]);
        command.env("PATH", &path).env("TMPDIR", scratch.path()).output().unwrap()
    };
    let begin = Instant::now();
    let output = check("a,b,c", "json");
    let time = begin.elapsed();
    assert!(output.status.success() && time < TIME, "{time:?} {output:?}");
    println!("{} agents asked in {time:.1?}, at most {} at a time", 3 * AGENTS, most.load(SeqCst));
    // The server counts a request a moment longer than the client.
    assert!((16..=3 * (16 + 4)).contains(&most.load(SeqCst)), "{most:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["success"], true);
    let contexts = report["contexts"].as_array().unwrap();
    let names: Vec<&Value> = contexts.iter().map(|report| &report["context"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for report in contexts {
        let checks = report["categories"][1]["checks"].as_array().unwrap();
        let state = checks
            .iter()
            .find(|check| check["description"] == "the state of each agent can be read");
        assert_eq!(state.unwrap()["result"], "success", "{report:#}");
    }
    let log = std::fs::read_to_string(dir.path().join("kubectl.log")).unwrap();
    assert_eq!(log.lines().count(), 3, "one proxy for each cluster: {log}");

    let output = check("a,down", "short");
    assert_eq!(output.status.code(), Some(1));
    let text = text(&output.stdout);
    assert!(text.starts_with("Context a\n\n") && text.contains("\nContext down\n\n"), "{text}");
    assert!(text.contains("× can query the Kubernetes API\n    kubectl failed: refused"), "{text}");
    until("no socket is left", || std::fs::read_dir(scratch.path()).unwrap().count() == 1);
}

/// A directory with a kubectl whose API server responds to nothing but `/version`.
fn with_empty_cluster(scratch: &Path) -> tempfile::TempDir {
    let listener = UnixListener::bind(scratch.join("api")).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            BufReader::new(&mut stream).read_line(&mut line).unwrap();
            let status = if line.contains(" /version ") { "200 OK" } else { "404 Not Found" };
            let _ = write!(stream, "HTTP/1.0 {status}\r\nA: b\r\n\r\n{{}}");
        }
    });
    let socket = scratch.join("api");
    with_kubectl(&format!(
        "for path; do :; done; /bin/ln -s {} $path; exec /bin/sleep 600",
        socket.display()
    ))
}

#[test]
fn a_wait_of_any_length_does_not_panic() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = with_empty_cluster(scratch.path());
    let output = run(dir.path(), &["check", "--pre", "--wait=5000000000000000h", "-o", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["categories"][1]["categoryName"], "linkerd-cni-pre", "{report}");
}

#[test]
fn terminals_get_one_progress_line_and_no_color_turns_colors_off() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = with_empty_cluster(scratch.path());
    for (variable, value, colored, progress) in
        [("X", "", true, true), ("NO_COLOR", "1", false, true), ("TERM", "dumb", false, false)]
    {
        let shown = on_a_terminal(dir.path(), &["check", "--wait=0s"], (variable, value));
        assert!(shown.contains("Status check results are"), "{shown}");
        assert_eq!(shown.contains("\x1b[31;1m×\x1b[0m"), colored, "{variable}: {shown}");
        // The line must not be wrapped at the margin of a narrow terminal.
        let line = "\r\x1b[K\x1b[?7lrunning the checks\x1b[?7h";
        assert_eq!(shown.contains(line), progress, "{variable}: {shown}");
        assert_eq!(shown.contains('\x1b'), colored || progress, "{variable}: {shown}");
    }
}

/// Runs the program on a terminal, and returns what the terminal gets.
fn on_a_terminal(dir: &Path, args: &[&str], variable: (&str, &str)) -> String {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let output = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli"));
    command.args(args).env("PATH", dir).env("TERM", "xterm").env_remove("NO_COLOR");
    command.env(variable.0, variable.1).stdin(Stdio::null()).stdout(output()).stderr(output());
    let mut child = command.spawn().unwrap();
    drop((command, terminal.slave));
    let mut shown = Vec::new();
    let mut master = std::fs::File::from(terminal.master);
    // Ends with EIO when the program has closed the terminal.
    let _ = master.read_to_end(&mut shown);
    child.wait().unwrap();
    String::from_utf8(shown).unwrap()
}

/// Whether a process has ended. A zombie is left if nothing reaps orphans.
fn has_ended(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}
