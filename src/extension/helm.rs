//! Renders the chart, which is part of this program, with the administrator's `helm`.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use include_dir::{Dir, include_dir};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::Value;
use tempfile::TempDir;

use crate::child;
use crate::deadline::Deadline;

/// The chart of this version.
static CHART: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/charts/linkerd2-cni");
/// Directory of the chart that `.helmignore` keeps out of the package.
const UNPACKAGED: &str = "ci";
/// Time for helm, which may read values from a URL, or from a user at a terminal.
const DEADLINE: Duration = Duration::from_secs(300);
/// Interval at which signals are checked while helm runs.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// Without a cluster, helm may assume an older version, which the chart rejects.
const KUBERNETES: &str = "1.31.0";

/// Why the chart is not rendered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "cannot write the chart to a temporary directory: {0}; set TMPDIR to a directory that can be written"
    )]
    Directory(io::Error),
    #[error("cannot run helm: {0}; install Helm 3.13 or later in a directory of PATH")]
    Start(io::Error),
    #[error("helm was stopped after {} s; check that the files and URLs of --values can be read", .0.as_secs())]
    Deadline(Duration),
    /// A signal, such as that of Ctrl-C, has this number.
    #[error("ended by signal {0}")]
    Signal(u8),
    /// What helm wrote to stderr.
    #[error("helm template failed: {0}")]
    Failed(String),
}

/// Returns the objects of the chart with `values`, over which the values in `flags` win. Meanwhile
/// SIGINT, SIGTERM and SIGHUP end helm instead of this process, so that no file is left.
///
/// # Errors
/// If the chart cannot be written, helm fails, or a signal ended it.
pub fn template(namespace: &str, values: &Value, flags: &[String]) -> Result<String, Error> {
    let signals = Signals::block();
    let directory = write_chart(values).map_err(Error::Directory)?;
    let at = |name: &str| directory.path().join(name);
    let mut helm = Command::new("helm");
    helm.arg("template").arg("linkerd-cni").arg(at("chart"));
    helm.args(["--namespace", namespace, "--kube-version", KUBERNETES, "--skip-tests"]);
    helm.arg("--values").arg(at("values.json")).args(flags);
    // A user who types values at a terminal is read only by its foreground group. Otherwise a group of
    // its own, with which a plugin of helm that hangs is killed.
    if !io::stdin().is_terminal() {
        helm.process_group(0);
    }
    run(&mut helm, directory.path(), signals.as_ref().map(|signals| &signals.pending), DEADLINE)
}

/// The signals that end a process. They are blocked until the value is dropped.
struct Signals {
    set: SigSet,
    pending: SignalFd,
}

impl Signals {
    /// `None` if they keep their default effect.
    fn block() -> Option<Signals> {
        let set = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let pending = SignalFd::with_flags(&set, flags).ok()?;
        set.thread_block().ok()?;
        Some(Signals { set, pending })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // Fails only for an unknown signal.
        let _ = self.set.thread_unblock();
    }
}

/// Writes chart and values to a new directory that only this user can read.
fn write_chart(values: &Value) -> io::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("linkerd-cni-").tempdir()?;
    write(&CHART, &directory.path().join("chart"))?;
    fs::write(directory.path().join("values.json"), values.to_string())?;
    Ok(directory)
}

fn write(from: &Dir<'_>, chart: &Path) -> io::Result<()> {
    fs::create_dir_all(chart.join(from.path()))?;
    for file in from.files() {
        fs::write(chart.join(file.path()), file.contents())?;
    }
    from.dirs().filter(|dir| dir.path() != UNPACKAGED).try_for_each(|dir| write(dir, chart))
}

/// Runs helm and returns its stdout. Files in `directory` take its output: unlike pipes, they are
/// never full. Messages of a helm that succeeds are passed on.
fn run(
    helm: &mut Command,
    directory: &Path,
    signals: Option<&SignalFd>,
    budget: Duration,
) -> Result<String, Error> {
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| directory.join(name));
    let create = |path: &Path| File::create(path).map_err(Error::Directory);
    helm.stdout(create(&stdout)?).stderr(create(&stderr)?).stdin(Stdio::inherit());
    let mut child = helm.spawn().map_err(Error::Start)?;
    let status = wait(&mut child, signals, budget)?;
    let text = |path: &Path| {
        let bytes = fs::read(path).map_err(Error::Directory)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let messages = text(&stderr)?;
    if !status.success() {
        return Err(Error::Failed(messages.trim().trim_start_matches("Error: ").to_owned()));
    }
    // Nothing is left to show a message on.
    let _ = io::Write::write_all(&mut io::stderr(), messages.as_bytes());
    text(&stdout)
}

/// Waits until helm has exited. Kills it after a signal and at the end of `budget`.
fn wait(
    child: &mut Child,
    signals: Option<&SignalFd>,
    budget: Duration,
) -> Result<ExitStatus, Error> {
    let end = Deadline::after(budget);
    loop {
        let next_check = Deadline::after(SIGNAL_INTERVAL.min(end.remaining()));
        let status = child::wait(child, next_check).map_err(Error::Start)?;
        // Before the status: a terminal sends Ctrl-C to helm too, which then fails. Without a pending signal,
        // `read_signal` returns none.
        if let Some(Ok(Some(signal))) = signals.map(SignalFd::read_signal) {
            // The process ID of a helm that was reaped may belong to another process.
            if status.is_none() {
                child::kill(child);
            }
            return Err(Error::Signal(signal.ssi_signo as u8));
        }
        if let Some(status) = status {
            return Ok(status);
        }
        if end.has_passed() {
            child::kill(child);
            return Err(Error::Deadline(budget));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn files(directory: &Path, root: &Path, found: &mut BTreeSet<(String, Vec<u8>)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => files(&path, root, found),
                false => {
                    let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                    found.insert((name, fs::read(&path).unwrap()));
                }
            }
        }
    }

    /// Rust does not see a new file of the chart: without `cargo clean --package linkerd2-cni`, this
    /// fails.
    #[test]
    fn the_chart_in_the_program_is_that_of_the_repository() {
        let written = write_chart(&Value::Null).unwrap();
        let chart = written.path().join("chart");
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/linkerd2-cni");
        let (mut in_program, mut wanted) = (BTreeSet::new(), BTreeSet::new());
        files(&chart, &chart, &mut in_program);
        files(&repository, &repository, &mut wanted);
        wanted.retain(|(name, _)| !name.starts_with("ci/"));
        let names = |set: &BTreeSet<(String, Vec<u8>)>| -> Vec<String> {
            set.iter().map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(names(&in_program), names(&wanted));
        assert!(in_program == wanted, "a file differs");
    }

    #[test]
    fn a_helm_that_hangs_is_killed_at_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let mut helm = Command::new("/bin/sh");
        let result =
            run(helm.args(["-c", "exec sleep 600"]), directory.path(), None, Duration::ZERO);
        assert!(matches!(result, Err(Error::Deadline(_))), "{result:?}");
    }
}
