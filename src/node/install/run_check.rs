//! Checks whether a plugin binary in the bin dir can be run: a new binary before it replaces an
//! earlier one, and the installed binary before it is chained. No pod starts on a node whose
//! runtime cannot run a chained plugin.
//!
//! The agent runs the binary through its own mount of the bin dir. runc from 1.2 and crun mount a
//! hostPath volume without the `noexec` flag of the node's mount. So with these two, the check does
//! not notice that the node's mount has the flag (runc: `ClearedFlags` in
//! `libcontainer/rootfs_linux.go`, crun: `do_remount` in `src/libcrun/linux.c`).
//!
//! A security policy may deny the agent's container to execute files that the runtime may execute.
//! So if the kernel denies the agent to run the binary and the mount is not `noexec`, the verdict
//! is unknown. The binary is then installed and chained.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::backoff::{Backoff, Limits};
use crate::conflist::PLUGIN;
use crate::deadline::Deadline;
use crate::node::binaries::{Binaries, Stamp};
use crate::node::plugin_call::{self, CallError};

/// Time after which the plugin is killed. The command VERSION takes a millisecond.
const CALL_BUDGET: Duration = Duration::from_secs(4);
/// Longest wait for the thread that runs the plugin. The thread may hang before [`CALL_BUDGET`]
/// begins: the kernel does not return from starting a program until a security module, such as
/// fapolicyd, has answered.
const WAIT_BUDGET: Duration = Duration::from_secs(5);
/// First and longest wait before a new plugin that could not be run is copied to the bin dir again.
/// The wait grows, because each attempt writes megabytes.
const RETRY: Limits = [Duration::from_secs(1), Duration::from_secs(60)];
/// What a runtime sends to a plugin with the command VERSION (CNI spec 1.1, section 2, "VERSION").
const STDIN: &str = r#"{"cniVersion": "1.1.0"}"#;

/// What a run of a plugin binary showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Runs,
    /// The kernel denies the agent to run the binary. The container runtime may be allowed to.
    Unknown {
        why: String,
    },
    Fails(RunFailure),
}

/// Why a plugin binary cannot be run, and what to do. The remedy may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    why: String,
    remedy: String,
}

impl RunFailure {
    fn without_remedy(why: &str) -> RunFailure {
        RunFailure { why: why.to_owned(), remedy: String::new() }
    }

    /// Returns a text with the reason, its `consequence` for the node, and the remedy.
    pub fn describe(&self, consequence: &str) -> String {
        if self.remedy.is_empty() {
            return format!("{}; {consequence}", self.why);
        }
        format!("{}; {consequence}: {}", self.why, self.remedy)
    }
}

/// A plugin binary, and how its file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CheckedBinary {
    path: PathBuf,
    stamp: Stamp,
    is_noexec: bool,
}

/// A plugin of the image that could not be run in the bin dir.
#[derive(Debug)]
struct RejectedPlugin {
    /// Stamp of the plugin in the image. `None` if that plugin is not executable.
    in_image: Option<Stamp>,
    is_noexec: bool,
    failure: RunFailure,
    retry_at: Instant,
}

/// Runs plugin binaries with the command VERSION. Remembers the last binary that passed, so that it
/// is run again only after a change.
#[derive(Debug)]
pub struct RunCheck {
    /// The binary whose last call succeeded.
    passed: Option<CheckedBinary>,
    /// A call that has not ended within [`WAIT_BUDGET`].
    running: Option<(CheckedBinary, Receiver<Verdict>)>,
    /// The last new plugin, if it could not be run.
    rejected: Option<RejectedPlugin>,
    retry: Backoff,
}

impl Default for RunCheck {
    fn default() -> RunCheck {
        RunCheck { passed: None, running: None, rejected: None, retry: Backoff::new(RETRY) }
    }
}

impl RunCheck {
    /// Returns whether the plugin binary at `path` can be run.
    pub fn check(&mut self, path: &Path) -> Verdict {
        let Some(stamp) = Binaries::executable_stamp(path) else {
            return Verdict::Fails(RunFailure::without_remedy("it is not an executable file"));
        };
        let binary = CheckedBinary { path: path.to_owned(), stamp, is_noexec: is_noexec(path) };
        if self.passed.as_ref() == Some(&binary) {
            return Verdict::Runs;
        }
        self.passed = None;
        let verdict = match self.collect_earlier_call(&binary) {
            Some(verdict) => verdict,
            None => self.call(&binary),
        };
        if verdict == Verdict::Runs {
            self.passed = Some(binary);
        }
        verdict
    }

    /// Returns the verdict of an earlier call that had not ended in time. `None` if there was no
    /// such call, or if it was a call of another binary and has ended.
    fn collect_earlier_call(&mut self, binary: &CheckedBinary) -> Option<Verdict> {
        let (running_binary, receiver) = self.running.take()?;
        match receiver.try_recv() {
            Ok(verdict) if running_binary == *binary => Some(verdict),
            Ok(_) | Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                // The earlier call still hangs. A second one would hang as well, so none is
                // started.
                self.running = Some((running_binary, receiver));
                Some(not_started(binary))
            }
        }
    }

    /// Calls the binary, and waits for the verdict at most for [`WAIT_BUDGET`].
    fn call(&mut self, binary: &CheckedBinary) -> Verdict {
        let receiver = start(binary);
        match receiver.recv_timeout(WAIT_BUDGET) {
            Ok(verdict) => verdict,
            Err(RecvTimeoutError::Disconnected) => {
                let why = "its thread could not be started, or panicked";
                Verdict::Fails(RunFailure::without_remedy(why))
            }
            Err(RecvTimeoutError::Timeout) => {
                self.running = Some((binary.clone(), receiver));
                not_started(binary)
            }
        }
    }

    /// Returns why the plugin at `temporary`, a copy of the one in `image_dir`, cannot be run.
    /// `None` if it can be run, and also if that is unknown: a security policy may allow the file
    /// to be executed under its final name only.
    pub fn check_new(&mut self, image_dir: &Path, temporary: &Path) -> Option<RunFailure> {
        let Verdict::Fails(mut failure) = self.check(temporary) else {
            self.rejected = None;
            self.retry.reset();
            return None;
        };
        // The temporary file has another name at each attempt. Its name is replaced, so that a
        // repeated failure has the same text each time and is logged only once.
        let name = temporary.file_name().unwrap_or_default().to_string_lossy();
        failure.why = failure.why.replace(&*name, PLUGIN);
        self.rejected = Some(RejectedPlugin {
            in_image: Binaries::executable_stamp(&image_dir.join(PLUGIN)),
            is_noexec: is_noexec(temporary),
            failure: failure.clone(),
            retry_at: Instant::now() + self.retry.next_delay(),
        });
        Some(failure)
    }

    /// Returns why the plugin in `image_dir` could not be run in `bin_dir`. `None` if another
    /// attempt is due: after a wait, or after a change of the plugin or of the mount.
    pub fn rejection(&self, image_dir: &Path, bin_dir: &Path) -> Option<&RunFailure> {
        let rejected = self.rejected.as_ref()?;
        let in_image = Binaries::executable_stamp(&image_dir.join(PLUGIN));
        let is_unchanged =
            rejected.in_image == in_image && rejected.is_noexec == is_noexec(bin_dir);
        if is_unchanged && Instant::now() < rejected.retry_at {
            Some(&rejected.failure)
        } else {
            None
        }
    }
}

fn not_started(binary: &CheckedBinary) -> Verdict {
    Verdict::Fails(RunFailure {
        why: "the kernel has not started it yet".to_owned(),
        remedy: remedy(binary),
    })
}

/// Runs the binary on a new thread. If the thread cannot be started, the sender is dropped, and the
/// receiver returns an error.
fn start(binary: &CheckedBinary) -> Receiver<Verdict> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let binary = binary.clone();
    let thread = thread::Builder::new().name("run check".into()).stack_size(128 << 10);
    let _ = thread.spawn(move || {
        let _ = sender.send(run(&binary));
    });
    receiver
}

/// Runs the binary with the command VERSION.
fn run(binary: &CheckedBinary) -> Verdict {
    let end = Deadline::after(CALL_BUDGET);
    match plugin_call::call(&binary.path, "VERSION", &[], STDIN, end) {
        Ok(response) if response["supportedVersions"].is_array() => Verdict::Runs,
        Ok(_) => fails(binary, "VERSION returned no supportedVersions".to_owned()),
        Err(CallError::NotRun { source, .. }) => judge_not_run(binary, &source),
        Err(error) => fails(binary, format!("VERSION failed: {error}")),
    }
}

/// Judges a binary that the kernel did not start.
fn judge_not_run(binary: &CheckedBinary, error: &io::Error) -> Verdict {
    if plugin_call::is_denied(error) && !binary.is_noexec {
        return Verdict::Unknown { why: error.to_string() };
    }
    fails(binary, error.to_string())
}

/// The verdict on a binary that cannot be run, with the remedy.
fn fails(binary: &CheckedBinary, why: String) -> Verdict {
    Verdict::Fails(RunFailure { why, remedy: remedy(binary) })
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

/// Returns whether the file system at `path` is mounted `noexec`.
fn is_noexec(path: &Path) -> bool {
    statvfs(path).is_ok_and(|mount| mount.flags().contains(FsFlags::ST_NOEXEC))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use nix::errno::Errno;

    use super::*;

    fn with_plugin(script: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(PLUGIN);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        dir
    }

    /// Checks the plugin in `dir`. Repeats the check while a process that another test has just
    /// forked still has the file open for writing, because the kernel then refuses to run the file.
    fn checked(check: &mut RunCheck, dir: &tempfile::TempDir) -> Verdict {
        loop {
            match check.check(&dir.path().join(PLUGIN)) {
                Verdict::Fails(failure) if failure.why.contains("Text file busy") => {}
                verdict => return verdict,
            }
        }
    }

    fn why(verdict: Verdict) -> String {
        let Verdict::Fails(failure) = verdict else { panic!("{verdict:?}") };
        failure.why
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
            assert_eq!(checked(&mut check, &dir), Verdict::Runs);
        }
        assert_eq!(fs::read_to_string(calls.path()).unwrap(), "VERSION\n");
        fs::write(dir.path().join(PLUGIN), "#!/bin/sh\nexit 3\n").unwrap();
        let why = why(checked(&mut check, &dir));
        assert!(why.contains("VERSION failed: ") && why.contains("exit status: 3"), "{why}");
    }

    #[test]
    fn a_plugin_that_does_not_end_is_killed_and_run_again() {
        let dir = with_plugin("exec sleep 600");
        let mut check = RunCheck::default();
        let begin = Instant::now();
        for _ in 0..2 {
            let why = why(checked(&mut check, &dir));
            assert!(why.contains("timed out and was killed"), "{why}");
        }
        assert!(begin.elapsed() < 4 * WAIT_BUDGET);
    }

    #[test]
    fn a_denied_exec_is_a_failure_only_on_a_noexec_mount() {
        for (errno, is_noexec, is_unknown) in [
            (Errno::EACCES, false, true),
            (Errno::EPERM, false, true),
            (Errno::EACCES, true, false),
            (Errno::EPERM, true, false),
            (Errno::ENOEXEC, false, false),
            (Errno::ENOENT, false, false),
            (Errno::ETXTBSY, false, false),
        ] {
            let binary = CheckedBinary { path: PLUGIN.into(), stamp: Stamp::default(), is_noexec };
            let verdict = judge_not_run(&binary, &io::Error::from(errno));
            assert_eq!(matches!(verdict, Verdict::Unknown { .. }), is_unknown, "{verdict:?}");
            assert_eq!(matches!(verdict, Verdict::Fails(_)), !is_unknown, "{verdict:?}");
        }
    }

    #[test]
    fn a_rejected_plugin_is_not_copied_again_before_a_wait_or_a_change() {
        let image = with_plugin("exit 0");
        let bin = with_plugin("echo $0: no >&2; exit 3");
        let temporary = bin.path().join("temporary");
        fs::rename(bin.path().join(PLUGIN), &temporary).unwrap();
        let mut check = RunCheck::default();
        let failure = loop {
            let failure = check.check_new(image.path(), &temporary).unwrap();
            if !failure.why.contains("Text file busy") {
                break failure;
            }
        };
        let path = bin.path().join(PLUGIN).display().to_string();
        let expected = format!("VERSION failed: {path}: exit status: 3; {path}: no");
        assert_eq!(failure.why, expected);
        assert_eq!(check.rejection(image.path(), bin.path()), Some(&failure));
        fs::write(image.path().join(PLUGIN), "another plugin").unwrap();
        assert_eq!(check.rejection(image.path(), bin.path()), None);
    }
}
