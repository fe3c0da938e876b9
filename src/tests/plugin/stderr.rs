//! Tests calls whose stderr or stdout is not writable.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::json;

use super::unwritable::{Unwritable, full_device, full_pipe};
use super::{Call, Outcome, PLUGIN, POD_PATH, Scene};

/// Time after which a call counts as hanging, in seconds. Calls usually take less than 100 ms.
const HANG_SECONDS: &str = "20";

#[test]
fn unwritable_stderr_neither_fails_nor_delays_a_call_and_errors_are_still_returned() {
    for stderr in Unwritable::all() {
        for level in ["info", "trace"] {
            println!("{} at level {level}", stderr.name);
            let scene = Scene::meshed();
            let call = |command| scene.call(command).set("log_level", level);
            let unmeshed = call("ADD").annotated(json!({}));
            let meshed = call("ADD");
            let result = unmeshed.run().succeeded().stdout;
            assert_eq!(run(plugin_command(&stderr), &unmeshed).succeeded().stdout, result);
            assert_eq!(scene.rules(), "");

            let kubeconfig = fs::read(meshed.kubeconfig()).unwrap();
            assert_eq!(run(plugin_command(&stderr), &meshed).succeeded().stdout, result);
            assert!(scene.has_rules());
            assert_eq!(fs::read(meshed.kubeconfig()).unwrap(), kubeconfig);

            for command in ["CHECK", "DEL"] {
                assert_eq!(
                    run(plugin_command(&stderr), &call(command)).succeeded().stdout,
                    "",
                    "{command}"
                );
            }
            scene.api.refuse(POD_PATH, 403);
            run(plugin_command(&stderr), &meshed).failed(102, "");
        }
    }
}

#[test]
fn add_succeeds_if_the_stderr_file_is_at_its_size_limit() {
    let scene = Scene::meshed();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", r#"ulimit -f 64 && exec timeout "$0" "$1""#, HANG_SECONDS, PLUGIN]);
    // `ulimit -f` of dash counts in blocks of 512 bytes.
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[b'x'; 64 * 512]).unwrap();
    command.stderr(file).stdout(Stdio::piped());
    run(command, &scene.add()).succeeded();
    assert!(scene.has_rules());
}

#[test]
fn unwritable_stdout_fails_the_call_without_a_panic() {
    for stdout in [full_device(), full_pipe()] {
        let scene = Scene::meshed();
        for call in [scene.add().annotated(json!({})), scene.add().env("CNI_ARGS", "not a pair")] {
            let mut command = Command::new("/usr/bin/timeout");
            command.args([HANG_SECONDS, PLUGIN]).stderr(Stdio::piped()).stdout(stdout.stdio());
            let outcome = run(command, &call);
            assert_eq!(outcome.code, Some(1), "{}: {}", stdout.name, outcome.stderr);
            outcome.logs("linkerd-cni: cannot write the response to stdout (code 5): ");
            assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
        }
    }
}

/// Returns a command that runs the plugin with this stderr and a piped stdout.
fn plugin_command(stderr: &Unwritable) -> Command {
    let mut command = stderr.as_stderr_of("/usr/bin/timeout");
    command.args([HANG_SECONDS, PLUGIN]).stdout(Stdio::piped());
    command
}

/// Runs `call` with `command`, whose stdout and stderr are already set. If the call hangs, the exit
/// status is that of `timeout`, 124.
fn run(mut command: Command, call: &Call) -> Outcome {
    call.run_command(&mut command, &call.config.to_string())
}
