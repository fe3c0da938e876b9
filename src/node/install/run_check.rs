//! Checks whether the plugin binary in the bin dir can be run, before it is chained: no pod starts
//! on a node whose runtime cannot run a chained plugin.
//!
//! The agent runs the binary through its own mount of the bin dir. runc from 1.2 and crun mount a
//! hostPath volume without the `noexec` flag of the node's mount, so the check finds that flag only
//! below other runtimes (runc: `ClearedFlags` in `libcontainer/rootfs_linux.go`, crun: `do_remount`
//! in `src/libcrun/linux.c`).

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::conflist::PLUGIN;
use crate::deadline::Deadline;
use crate::node::binaries::{Binaries, Stamp};
use crate::node::plugin_call::{self, CallError};

/// Time after which the plugin is killed. VERSION takes a millisecond.
const CALL_BUDGET: Duration = Duration::from_secs(4);
/// Longest wait for the thread that runs the plugin. The kernel does not return from starting a
/// program while a security module, such as fapolicyd, does not answer.
const WAIT_BUDGET: Duration = Duration::from_secs(5);
/// What the runtime sends to a plugin with VERSION (CNI spec 1.1, section 2, "VERSION").
const STDIN: &str = r#"{"cniVersion": "1.1.0"}"#;

/// Why the plugin cannot be run.
type Problem = String;

/// A plugin binary, and how its directory is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CheckedBinary {
    path: PathBuf,
    stamp: Stamp,
    is_noexec: bool,
}

/// Runs the plugin binary with VERSION, and again after a failure or a change of the binary.
#[derive(Debug, Default)]
pub struct RunCheck {
    /// The binary that ended well.
    passed: Option<CheckedBinary>,
    /// A call that has not ended within [`WAIT_BUDGET`].
    running: Option<(CheckedBinary, Receiver<Result<(), Problem>>)>,
}

impl RunCheck {
    /// Returns why the plugin binary in `bin_dir` cannot be run.
    pub fn problem(&mut self, bin_dir: &Path) -> Option<Problem> {
        let path = bin_dir.join(PLUGIN);
        let Some(stamp) = Binaries::executable(bin_dir, PLUGIN) else {
            return Some(explained(&path, "it is not an executable file", ""));
        };
        let binary = CheckedBinary { path, stamp, is_noexec: is_noexec(bin_dir) };
        if self.passed.as_ref() == Some(&binary) {
            return None;
        }
        self.passed = None;
        let (started, receiver) = match self.running.take() {
            Some(running) => running,
            None => (binary.clone(), start(&binary)),
        };
        match receiver.recv_timeout(WAIT_BUDGET) {
            Ok(Ok(())) if started == binary => {
                self.passed = Some(binary);
                None
            }
            // The next pass runs the binary that is there now.
            Ok(Ok(())) => Some(explained(&binary.path, "it changed while it ran", "")),
            Ok(Err(problem)) => Some(problem),
            Err(RecvTimeoutError::Disconnected) => {
                let why = "its thread could not be started, or panicked";
                Some(explained(&binary.path, why, ""))
            }
            Err(RecvTimeoutError::Timeout) => {
                self.running = Some((started, receiver));
                let why = "the kernel has not started it yet";
                Some(explained(&binary.path, why, &format!(": {}", remedy(&binary))))
            }
        }
    }
}

/// Runs the binary on a new thread. A thread that cannot be started drops the sender.
fn start(binary: &CheckedBinary) -> Receiver<Result<(), Problem>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let binary = binary.clone();
    let thread = thread::Builder::new().name("run check".into()).stack_size(128 << 10);
    let _ = thread.spawn(move || {
        let _ = sender.send(run(&binary));
    });
    receiver
}

/// Runs the binary with VERSION. Fails with the reason why the plugin cannot be run.
fn run(binary: &CheckedBinary) -> Result<(), Problem> {
    let end = Deadline::after(CALL_BUDGET);
    let error = match plugin_call::call(&binary.path, "VERSION", &[], STDIN, end) {
        Ok(response) if response["supportedVersions"].is_array() => return Ok(()),
        Ok(_) => "VERSION returned no supportedVersions".to_owned(),
        Err(CallError::NotRun { source, .. }) => source.to_string(),
        Err(error) => format!("VERSION failed: {error}"),
    };
    Err(explained(&binary.path, &error, &format!(": {}", remedy(binary))))
}

/// Describes why the plugin cannot be run, with the consequence and the remedy.
fn explained(path: &Path, why: &str, remedy: &str) -> Problem {
    format!(
        "cannot run {}: {why}; pods could not start, so the agent does not chain the plugin{remedy}",
        path.display()
    )
}

fn remedy(binary: &CheckedBinary) -> String {
    let dir = binary.path.parent().unwrap_or(&binary.path).display();
    if binary.is_noexec {
        return format!(
            "{dir} is mounted noexec; mount it without noexec and delete this pod, or set \
             destCNIBinDir to another directory of the runtime"
        );
    }
    "if a security module of the node (SELinux, AppArmor, fapolicyd) denies it, allow the program, \
     or set destCNIBinDir to another directory of the runtime"
        .to_owned()
}

fn is_noexec(dir: &Path) -> bool {
    statvfs(dir).is_ok_and(|mount| mount.flags().contains(FsFlags::ST_NOEXEC))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Instant;

    use super::*;

    fn with_plugin(script: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(PLUGIN);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        dir
    }

    /// Why the plugin cannot be run, until the test's own processes have closed the file.
    fn problem(check: &mut RunCheck, dir: &tempfile::TempDir) -> Option<String> {
        loop {
            match check.problem(dir.path()) {
                Some(why) if why.contains("Text file busy") => {}
                problem => return problem,
            }
        }
    }

    #[test]
    fn a_plugin_is_run_once_until_it_changes() {
        let calls = tempfile::NamedTempFile::new().unwrap();
        let path = calls.path().display();
        let dir = with_plugin(&format!(
            r#"echo "$CNI_COMMAND" >>{path}; echo '{{"supportedVersions": ["1.1.0"]}}'"#
        ));
        let mut check = RunCheck::default();
        for _ in 0..3 {
            assert_eq!(problem(&mut check, &dir), None);
        }
        assert_eq!(fs::read_to_string(calls.path()).unwrap(), "VERSION\n");
        fs::write(dir.path().join(PLUGIN), "#!/bin/sh\nexit 3\n").unwrap();
        let why = problem(&mut check, &dir).unwrap();
        assert!(why.contains("VERSION failed: ") && why.contains("exit status: 3"), "{why}");
    }

    #[test]
    fn a_plugin_that_does_not_end_is_killed_and_run_again() {
        let dir = with_plugin("exec sleep 600");
        let mut check = RunCheck::default();
        let begin = Instant::now();
        for _ in 0..2 {
            let why = problem(&mut check, &dir).unwrap();
            assert!(why.contains("timed out and was killed"), "{why}");
        }
        assert!(begin.elapsed() < 4 * WAIT_BUDGET);
    }
}
