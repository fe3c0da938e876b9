//! Unwritable stderr and stdout.

use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::unwritable::{Unwritable, full_device, full_pipe};
use super::{Call, Outcome, PLUGIN, Scene};

/// Time after which a call counts as hanging. Calls usually take less than 100 ms.
const HANGS: Duration = Duration::from_secs(20);

#[test]
fn an_unwritable_stderr_neither_fails_nor_delays_a_pod() {
    for stderr in Unwritable::all() {
        for level in ["info", "trace"] {
            let scene = Scene::meshed();
            let call = |command| scene.call(command).set("log_level", level);
            let case = format!("{} at level {level}", stderr.name);
            let result = call("ADD").annotated(json!({})).run().succeeded().stdout;

            let unmeshed = call("ADD").annotated(json!({}));
            let outcome = run(with(&stderr), &unmeshed, &case);
            assert_eq!(outcome.succeeded().stdout, result, "unmeshed, {case}");
            assert_eq!(scene.rules(), "", "{case}");

            let meshed = call("ADD");
            let kubeconfig = fs::read(meshed.kubeconfig()).unwrap();
            let outcome = run(with(&stderr), &meshed, &case);
            assert_eq!(outcome.succeeded().stdout, result, "meshed, {case}");
            let rules = scene.rules();
            assert!(rules.contains("PROXY_INIT_OUTPUT"), "{case}: {rules}");
            assert_eq!(fs::read(meshed.kubeconfig()).unwrap(), kubeconfig, "{case}");

            for command in ["CHECK", "DEL"] {
                let outcome = run(with(&stderr), &call(command), &case);
                assert_eq!(outcome.succeeded().stdout, "", "{command}, {case}");
            }
        }
    }
}

#[test]
fn a_stderr_file_at_its_size_limit_neither_fails_nor_kills_an_add() {
    let scene = Scene::meshed();
    let call = scene.add();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", r#"ulimit -f 64 && exec "$0""#, PLUGIN]);
    // dash counts in blocks of 512 bytes.
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[b'x'; 64 * 512]).unwrap();
    command.stderr(file);
    command.stdout(Stdio::piped());
    let outcome = run(command, &call, "a file at its size limit");
    outcome.succeeded();
    let rules = scene.rules();
    assert!(rules.contains("PROXY_INIT_OUTPUT"), "{rules}");
}

#[test]
fn an_error_reaches_the_runtime_with_any_stderr() {
    for stderr in Unwritable::all() {
        let scene = Scene::meshed();
        scene.api.answer(super::POD_PATH, 403, "{}");
        let call = scene.add();
        let outcome = run(with(&stderr), &call, stderr.name);
        let (code, msg) = outcome.error();
        assert_eq!(code, 102, "{}: {msg}", stderr.name);
    }
}

#[test]
fn an_unwritable_stdout_fails_the_call_without_a_panic() {
    for stdout in [full_device(), full_pipe()] {
        let scene = Scene::meshed();
        for call in [scene.add().annotated(json!({})), scene.add().env("CNI_ARGS", "not a pair")] {
            let mut command = Command::new(PLUGIN);
            command.stderr(Stdio::piped()).stdout(stdout.stdio());
            let outcome = run(command, &call, stdout.name);
            assert_eq!(outcome.code, Some(1), "{}: {}", stdout.name, outcome.stderr);
            let wanted = "linkerd-cni: cannot write the response to stdout (code 5): ";
            assert!(outcome.stderr.contains(wanted), "{}", outcome.stderr);
            assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
        }
    }
}

/// Returns a command for the plugin with `stderr` and a piped stdout.
fn with(stderr: &Unwritable) -> Command {
    let mut command = stderr.as_stderr_of(PLUGIN);
    command.stdout(Stdio::piped());
    command
}

/// Runs `call` with `command`, whose stdout and stderr are set.
fn run(mut command: Command, call: &Call, case: &str) -> Outcome {
    command.env_clear().envs(call.environment.iter().cloned());
    command.stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdin = call.config.to_string();
    // Fails if the plugin ends without reading stdin, which is allowed.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let code = ended(&mut child, case);
    let text = |output: Option<&mut dyn std::io::Read>| {
        let mut text = String::new();
        output.map(|output| output.read_to_string(&mut text));
        text
    };
    Outcome {
        code,
        stdout: text(child.stdout.as_mut().map(|output| output as _)),
        stderr: text(child.stderr.as_mut().map(|output| output as _)),
    }
}

fn ended(child: &mut Child, case: &str) -> Option<i32> {
    let end = Instant::now() + HANGS;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() >= end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the plugin hangs: {case}");
        }
        thread::sleep(Duration::from_millis(2));
    }
}
