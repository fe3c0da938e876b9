//! The agent's main loop: waits, runs a reconcile pass, and logs the problems that changed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tracing::{info, warn};

use super::Error;
use super::file_watch::FileWatch;
use super::readiness::Status;
use super::reconcile::Reconciler;
use super::reconcile::findings::Finding;
use super::reconcile::judge::Judgement;
use super::settings::Settings;
use super::subject::Subject;
use crate::backoff::between;

/// Time between a pass that writes and the pass that verifies what was written.
const VERIFY_DELAY: Duration = Duration::from_millis(2);
/// Shortest and longest time from a pass with a problem to the next pass. A pass takes a
/// millisecond, or up to 5 s if the plugin hangs in the run check.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// Repeats reconcile passes.
pub struct MainLoop {
    pub reconciler: Reconciler,
    pub watch: FileWatch,
    /// Longest wait before the next pass.
    until_next_pass: Duration,
    /// The problems of the last pass, which are logged, by subject.
    logged: BTreeMap<Subject, String>,
}

impl MainLoop {
    pub fn new(reconciler: Reconciler, watch: FileWatch) -> MainLoop {
        MainLoop { reconciler, watch, until_next_pass: Duration::ZERO, logged: BTreeMap::new() }
    }

    /// Runs passes until a signal stops the agent. Returns the signal.
    pub fn run_until_signal(&mut self) -> Result<Signal, Error> {
        loop {
            if let Some(signal) = self.step(Duration::MAX)? {
                return Ok(signal);
            }
        }
    }

    /// Waits until a reconcile pass is due, at most for `longest`, and runs the pass. If a signal
    /// ends the wait, runs no pass and returns the signal.
    pub fn step(&mut self, longest: Duration) -> Result<Option<Signal>, Error> {
        let timeout = self.until_next_pass.min(longest);
        if let Some(signal) = self.watch.wait(timeout).map_err(Error::Wait)? {
            return Ok(Some(signal));
        }
        self.run_pass();
        Ok(None)
    }

    /// Runs a reconcile pass, logs its problems, and sets the time of the next pass.
    fn run_pass(&mut self) {
        let settings = Arc::clone(&self.reconciler.settings);
        let status = Arc::clone(&self.reconciler.status);
        status.state().running_since = Some(Instant::now());
        let findings = self.open_port_and_watches(&settings, &status);
        let judgement = self.reconciler.pass(findings);
        self.log_changes(&judgement);
        self.until_next_pass = time_to_next_pass(&judgement, settings.resync);
        status.end_pass();
    }

    /// Opens the port of the admin server, and watches the directories. Does nothing for what is
    /// open already. Returns what failed.
    fn open_port_and_watches(
        &mut self,
        settings: &Settings,
        status: &Arc<Status>,
    ) -> Vec<(Subject, Finding)> {
        let mut findings = Vec::new();
        if let Err(why) = status.serve(settings.admin_address) {
            findings.push((Subject::AdminListener, Finding::Problem(why)));
        }
        if let Err(why) = self.watch.watch_dirs(&watched_dirs(settings)) {
            findings.push((Subject::Inotify, Finding::Problem(why)));
        }
        findings
    }

    /// Logs each problem that is new or has changed since the last pass, and each one that is
    /// resolved.
    fn log_changes(&mut self, judgement: &Judgement) {
        let problems = judgement.logged();
        for subject in self.logged.keys().filter(|subject| !problems.contains_key(*subject)) {
            info!("{subject}: resolved");
        }
        for (subject, why) in &problems {
            if self.logged.get(subject) != Some(why) {
                warn!("{subject}: {why}");
            }
        }
        self.logged = problems;
    }
}

/// Returns the directories in which a change causes a pass.
fn watched_dirs(settings: &Settings) -> Vec<&Path> {
    let node = &settings.node;
    let mut dirs: Vec<&Path> = vec![&node.net_dir, &node.bin_dir, &settings.service_account_dir];
    // The record socket is in the run dir. It changes when a newer agent starts or ends, and a pass
    // then has to decide whether to yield.
    if let Some(run_dir) = &node.run_dir {
        dirs.push(run_dir);
    }
    if let Some(ca_file) = &settings.ca_file
        && let Some(ca_dir) = ca_file.parent()
    {
        dirs.push(ca_dir);
    }
    dirs
}

/// Returns the time until the next pass: at most `resync`, and less after a write or a problem.
fn time_to_next_pass(judgement: &Judgement, resync: Duration) -> Duration {
    if judgement.wrote {
        return VERIFY_DELAY;
    }
    let mut time = resync;
    if judgement.has_problem() {
        time = time.min(between(RETRY[0], RETRY[1]));
    }
    if let Some(next_pass_at) = judgement.next_pass_at {
        time = time.min(next_pass_at.saturating_duration_since(Instant::now()));
    }
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_with_a_problem_is_repeated_within_three_seconds() {
        let resync = Duration::from_secs(30);
        let good = Judgement::default();
        let mut bad = Judgement::default();
        bad.findings.push((Subject::Binary, Finding::Problem("missing".into())));
        assert_eq!(time_to_next_pass(&good, resync), resync);
        let time = time_to_next_pass(&bad, resync);
        assert!((RETRY[0]..=RETRY[1]).contains(&time), "{time:?}");
        let resync = Duration::from_millis(100);
        assert_eq!(time_to_next_pass(&bad, resync), resync);
    }
}
