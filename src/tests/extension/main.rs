//! The program of `linkerd cni` with a kubectl that fails. `src/tests/cluster` runs it with a real
//! one.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use linkerd2_cni::agent::status_body::{PodCopyStatus, StatusBody};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testkit::fake_cluster::Responses;
use testkit::healthy_cluster::{HealthyCluster, Server, serve};
use testkit::until::until;

/// Runs the program with only `dir` in `PATH`.
fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli"))
        .args(args)
        .env("PATH", dir)
        .output()
        .unwrap()
}

/// Creates a directory with a kubectl that runs this shell script.
fn directory_with_kubectl(script: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    // Another process writes the file, because a file cannot be executed while a child of another
    // test has it open for writing (ETXTBSY).
    let status = Command::new("/bin/sh")
        .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\""])
        .args([dir.path().join("kubectl").as_os_str(), script.as_ref()])
        .status()
        .unwrap();
    assert!(status.success());
    dir
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn check_without_kubectl_fails_in_the_format_of_linkerd_check() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["_extension-metadata"]);
    assert!(output.status.success());
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(metadata, json!({"name": "linkerd-cni", "checks": "always"}));

    let output = run(dir.path(), &["check", "--output=json", "--wait=5m0s"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), ""));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["success"], &report["outcome"]), (&json!(false), &json!("unknown")));
    let check = &report["categories"][0]["checks"][0];
    let error = check["error"].as_str().unwrap();
    assert!(error.starts_with("cannot run kubectl: ") && error.contains("PATH"), "{error}");
    assert!(check["hint"].as_str().unwrap().ends_with("docs/cli.md#kubernetes-api"), "{check}");
}

#[test]
fn unreachable_api_server_fails_each_command_once() {
    let dir =
        directory_with_kubectl("echo 'The connection to the server x was refused' >&2; exit 1");
    for args in [&["check"][..], &["check", "--pre"], &["explain", "web"], &["bypass"]] {
        let output = run(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let printed = [text(&output.stdout), text(&output.stderr)].concat();
        assert_eq!(
            printed.matches("The connection to the server x was refused").count(),
            1,
            "{printed}"
        );
        assert!(!printed.contains('\x1b'), "{printed}");
    }
}

#[test]
fn cluster_flags_reach_kubectl() {
    let dir = directory_with_kubectl("echo \"$*\" >&2; exit 1");
    let output = run(dir.path(), &["bypass", "--context=kind", "--as=jane", "--as-group=[a]"]);
    let error = text(&output.stderr);
    let passed = "--context=kind --as=jane --as-group=a proxy --unix-socket ";
    assert!(error.contains(passed), "{error}");
}

/// SIGKILL ends the command too, and no handler can catch it.
#[test]
fn signal_ends_the_command_and_its_kubectl() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        assert_ends_with_its_kubectl(signal);
    }
}

/// Asserts that the signal ends the command, its kubectl and the socket's directory.
fn assert_ends_with_its_kubectl(signal: Signal) {
    let dir = directory_with_kubectl("echo $$ >$0.pid; mv $0.pid $0.running; exec /bin/sleep 600");
    let scratch = tempfile::tempdir().unwrap();
    let count_directories = || std::fs::read_dir(scratch.path()).unwrap().count();
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
    assert_eq!(count_directories(), 1, "the directory of the proxy's socket");
    kill(Pid::from_raw(command.id() as i32), signal).unwrap();
    assert_eq!(command.wait().unwrap().signal(), Some(signal as i32));
    until("kubectl has ended", || has_ended(&pid));
    until("the socket's directory is removed", || count_directories() == 0);
}

/// Number of agents of each cluster.
const AGENTS: usize = 500;
/// Number of agents that get requests at the same time.
const AT_A_TIME: usize = 16;

/// Returns the responses of a healthy cluster with this number of nodes. Its DaemonSet is in
/// `namespace`.
fn healthy_responses(namespace: &'static str, nodes: usize) -> Responses {
    let version = env!("CARGO_PKG_VERSION");
    let bypasses = Some(BTreeMap::new());
    let pod_copy = PodCopyStatus { current: true, bypasses, ..PodCopyStatus::default() };
    let status = json!(StatusBody {
        version: version.to_owned(),
        ready: true,
        conflist: Some("a".to_owned()),
        pod_copy: Some(pod_copy),
        ..StatusBody::default()
    });
    HealthyCluster { namespace, nodes, status: status.to_string(), is_ready: true }.responses()
}

/// Serves the responses with [`serve`], and creates a directory with a kubectl whose proxy leads to
/// them. The log of kubectl has a line for each start.
fn serve_cluster(
    scratch: &Path,
    responses: Responses,
    gate: usize,
) -> (tempfile::TempDir, Arc<Server>) {
    let socket = scratch.join("api");
    let server = serve(responses, gate, UnixListener::bind(&socket).unwrap());
    let dir = directory_with_kubectl(&format!(
        "echo $* >>$0.log
case $* in
*context=down*) echo refused >&2; exit 1 ;;
*) for path; do :; done; /bin/ln -s {} $path; exec /bin/sleep 600 ;;
esac",
        socket.display()
    ));
    (dir, server)
}

/// The server responds to none of the requests to agents before 16 of them wait.
#[test]
fn check_sends_requests_to_16_agents_at_a_time() {
    let scratch = tempfile::tempdir().unwrap();
    let responses = healthy_responses("linkerd-cni", AGENTS);
    let (dir, server) = serve_cluster(scratch.path(), responses, AT_A_TIME);
    let check = |contexts: &str, format: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli"));
        command.args(["check", "--wait=0s", "--contexts", contexts, "-o", format]);
        command.env("PATH", dir.path()).env("TMPDIR", scratch.path()).output().unwrap()
    };
    let output = check("a,b,c", "json");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{report:#}");
    assert_eq!((&report["success"], &report["outcome"]), (&json!(true), &json!("right")));
    let contexts = report["contexts"].as_array().unwrap();
    let names: Vec<&Value> = contexts.iter().map(|report| &report["context"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let counts = server.counts();
    assert_eq!(counts.statuses, 3 * AGENTS);
    assert!((AT_A_TIME..=3 * AT_A_TIME).contains(&counts.most_waiting), "{counts:?}");
    let log = std::fs::read_to_string(dir.path().join("kubectl.log")).unwrap();
    assert_eq!(log.lines().count(), 3, "one proxy for each cluster: {log}");

    let output = check("a,down", "short");
    assert_eq!(output.status.code(), Some(2));
    let text = text(&output.stdout);
    assert!(text.starts_with("Context a\n\n") && text.contains("\nContext down\n\n"), "{text}");
    assert!(text.contains("? can query the Kubernetes API\n    kubectl failed: refused"), "{text}");
    until("no socket is left", || std::fs::read_dir(scratch.path()).unwrap().count() == 1);
}

#[test]
fn exit_code_is_0_if_right_1_if_wrong_and_2_if_unknown() {
    const STATUS: &str = "/api/v1/namespaces/linkerd-cni/pods/linkerd-cni-1:9991/proxy/status";
    let no_conflist = json!({"version": env!("CARGO_PKG_VERSION"), "podCopy": {"current": true}});
    let wrong = (STATUS, no_conflist);
    let unknown = (STATUS, json!(403));
    let other_unknown = ("/api/v1/events", json!(403));
    for (name, changes, args, code, outcome) in [
        ("healthy", &[][..], &["check"][..], 0, "right"),
        ("healthy, before an installation", &[][..], &["check", "--pre"][..], 0, "right"),
        ("an agent cannot be read", &[unknown][..], &["check"][..], 2, "unknown"),
        ("the network config is wrong", &[wrong.clone()][..], &["check"][..], 1, "wrong"),
        ("wrong and unknown", &[wrong, other_unknown][..], &["check"][..], 1, "wrong"),
        ("unknown flag", &[][..], &["check", "--nonsense"][..], 2, ""),
        ("pod that cannot be read", &[][..], &["explain", "web"][..], 2, ""),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let mut responses = healthy_responses("linkerd-cni", 1);
        for (path, response) in changes {
            responses.insert((*path).to_owned(), response.clone());
        }
        if args.contains(&"--pre") {
            responses.insert("/apis/apps/v1/daemonsets".to_owned(), json!({"items": []}));
        }
        let (dir, _server) = serve_cluster(scratch.path(), responses, 0);
        let format: &[&str] = if outcome.is_empty() { &[] } else { &["--wait=0s", "-o", "json"] };
        let output = run(dir.path(), &[args, format].concat());
        let stdout = text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{name}: {stdout}");
        let report: Value = serde_json::from_str(stdout).unwrap_or_default();
        assert_eq!(report["outcome"].as_str().unwrap_or_default(), outcome, "{name}: {stdout}");
    }
}

#[test]
fn explain_and_bypass_exit_with_the_code_of_their_outcome() {
    let restricted = json!({"runAsUser": 1000, "allowPrivilegeEscalation": false});
    let proxy = json!({"name": "linkerd-proxy"});
    // Pods without and with a path on which their traffic may bypass the proxy.
    let closed = json!({"containers": [{"name": "app", "securityContext": restricted}, proxy]});
    let open = json!({"containers": [{"name": "app"}, proxy]});
    let unmeshed = json!({"containers": [{"name": "app"}]});
    let bypass = &["bypass", "-o", "json"][..];
    let explain = &["explain", "web", "-o", "json"][..];
    for (name, pod, args, code, outcome) in [
        ("no meshed pod", running_pod("node-1", unmeshed.clone()), bypass, 0, "right"),
        ("a path", running_pod("node-1", open), bypass, 1, "wrong"),
        ("only link-local addresses", running_pod("node-1", closed.clone()), bypass, 2, "unknown"),
        ("an unmeshed pod", running_pod("node-1", unmeshed), explain, 0, "right"),
        ("no agent on the node", running_pod("node-9", closed), explain, 2, "unknown"),
        ("a pod without containers", running_pod("node-1", json!({})), explain, 2, "unknown"),
        ("the host network", running_pod("node-1", host_network_spec()), explain, 1, "wrong"),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let mut responses = healthy_responses("linkerd-cni", 1);
        responses.insert("/api/v1/pods".to_owned(), json!({"items": [pod]}));
        responses.insert("/api/v1/namespaces/default".to_owned(), json!({"metadata": {}}));
        let (dir, _server) = serve_cluster(scratch.path(), responses, 0);
        let output = run(dir.path(), args);
        let stdout = text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{name}: {stdout}");
        let report: Value = serde_json::from_str(stdout).unwrap();
        assert_eq!(report["outcome"], outcome, "{name}: {stdout}");
    }
}

/// The pod `web`, which runs on this node.
fn running_pod(node: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u"}});
    pod["spec"] = spec;
    pod["spec"]["nodeName"] = node.into();
    pod["status"] = json!({"phase": "Running", "podIPs": [{"ip": "10.1.0.7"}]});
    pod
}

/// The spec of a meshed pod in the node's network namespace.
fn host_network_spec() -> Value {
    json!({"hostNetwork": true, "containers": [{"name": "app"}, {"name": "linkerd-proxy"}]})
}

#[test]
fn check_finds_a_daemonset_in_another_namespace() {
    let scratch = tempfile::tempdir().unwrap();
    let (dir, _server) = serve_cluster(scratch.path(), healthy_responses("mesh", 1), 0);
    let output = run(dir.path(), &["check", "--wait=0s"]);
    let stdout = text(&output.stdout);
    assert!(output.status.success() && stdout.contains("√ namespace mesh admits"), "{stdout}");
}

/// A cluster without objects.
fn empty_cluster() -> Responses {
    Responses::from([("/version".to_owned(), json!({"gitVersion": "v1.36.0"}))])
}

#[test]
fn longest_wait_does_not_panic() {
    let scratch = tempfile::tempdir().unwrap();
    let (dir, _server) = serve_cluster(scratch.path(), empty_cluster(), 0);
    let output = run(dir.path(), &["check", "--pre", "--wait=5000000000000000h", "-o", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["categories"][1]["categoryName"], "linkerd-cni-pre", "{report}");
}

#[test]
fn terminal_shows_a_progress_line_and_colors_unless_disabled() {
    let scratch = tempfile::tempdir().unwrap();
    let (dir, _server) = serve_cluster(scratch.path(), empty_cluster(), 0);
    for (variable, value, has_colors, has_progress) in
        [("X", "", true, true), ("NO_COLOR", "1", false, true), ("TERM", "dumb", false, false)]
    {
        let output = run_on_terminal(dir.path(), &["check", "--wait=0s"], (variable, value));
        assert!(output.contains("Status check results are"), "{output}");
        assert_eq!(output.contains("\x1b[31;1m×\x1b[0m"), has_colors, "{variable}: {output}");
        // The line must not be wrapped at the margin of a narrow terminal.
        let line = "\r\x1b[K\x1b[?7lrunning the checks\x1b[?7h";
        assert_eq!(output.contains(line), has_progress, "{variable}: {output}");
        let has_escapes = has_colors || has_progress;
        assert_eq!(output.contains('\x1b'), has_escapes, "{variable}: {output}");
    }
}

/// Runs the program on a terminal with this variable. Returns the output on the terminal.
fn run_on_terminal(dir: &Path, args: &[&str], variable: (&str, &str)) -> String {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let output = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli"));
    command.args(args).env("PATH", dir).env("TERM", "xterm").env_remove("NO_COLOR");
    command.env(variable.0, variable.1).stdin(Stdio::null()).stdout(output()).stderr(output());
    let mut child = command.spawn().unwrap();
    // Only the program keeps the terminal open.
    drop(command);
    drop(terminal.slave);
    let mut received = Vec::new();
    let mut master = std::fs::File::from(terminal.master);
    // Ends with EIO when the program has closed the terminal.
    let _ = master.read_to_end(&mut received);
    child.wait().unwrap();
    String::from_utf8(received).unwrap()
}

/// Whether a process has ended. A zombie is left if nothing reaps orphans.
fn has_ended(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}
