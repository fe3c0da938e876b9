//! The agent's main loop: waits, runs a reconcile pass, and logs the problems that changed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tracing::{info, warn};

use super::Error;
use super::reconcile::Reconciler;
use super::reconcile::judge::{Finding, Pass};
use super::settings::Settings;
use super::subject::Subject;
use super::watch::Watch;
use crate::backoff::between;

/// Time between a write and the pass that verifies it.
const VERIFY_DELAY: Duration = Duration::from_millis(2);
/// Shortest and longest time until the next pass after one with a problem. A pass takes a millisecond.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

pub struct MainLoop {
    watch: Watch,
    pub reconciler: Reconciler,
    /// The problems that were logged last, by subject.
    logged: BTreeMap<String, String>,
    timeout: Duration,
}

impl MainLoop {
    pub fn new(watch: Watch, reconciler: Reconciler) -> MainLoop {
        MainLoop { watch, reconciler, logged: BTreeMap::new(), timeout: Duration::ZERO }
    }

    /// Waits until a reconcile pass is due, at most for `longest`, and runs it. A signal ends the
    /// wait instead, and is returned.
    pub fn step(&mut self, longest: Duration) -> Result<Option<Signal>, Error> {
        if let Some(signal) = self.wait(self.timeout.min(longest))? {
            return Ok(Some(signal));
        }
        self.reconciler.status.begin_pass();
        self.pass();
        self.reconciler.status.end_pass();
        Ok(None)
    }

    /// Waits for a change, a wake or a signal, at most for `longest`. Returns the signal.
    pub fn wait(&self, longest: Duration) -> Result<Option<Signal>, Error> {
        self.watch.wait(longest).map_err(Error::Wait)
    }

    fn pass(&mut self) {
        let settings = Arc::clone(&self.reconciler.settings);
        let opened = self.reconciler.status.serve(settings.admin_address);
        let watching = self.watch.watch_dirs(&watched_dirs(&settings));
        let mut pass = self.reconciler.pass();
        pass.add(Subject::Other("inotify"), watching.err().map(Finding::Problem));
        pass.add(Subject::Other("admin listener"), opened.err().map(Finding::Problem));
        self.log_changes(pass.logged());
        self.timeout = time_to_next_pass(&pass, settings.resync);
    }

    /// Logs the differences to the problems of the last pass.
    fn log_changes(&mut self, problems: BTreeMap<String, String>) {
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

fn watched_dirs(settings: &Settings) -> Vec<&Path> {
    let ca = settings.ca_file.as_deref().and_then(Path::parent);
    [&*settings.node.net_dir, &*settings.node.bin_dir, &*settings.service_account_dir]
        .into_iter()
        .chain(ca)
        .collect()
}

fn time_to_next_pass(pass: &Pass, resync: Duration) -> Duration {
    if pass.wrote {
        return VERIFY_DELAY;
    }
    let longest = if pass.has_problem() { between(RETRY[0], RETRY[1]) } else { resync };
    let next = pass.next.map(|next| next.saturating_duration_since(Instant::now()));
    next.unwrap_or(resync).min(longest).min(resync)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_with_a_problem_is_repeated_within_three_seconds_and_the_resync() {
        let resync = Duration::from_secs(30);
        let (good, mut bad) = (Pass::default(), Pass::default());
        bad.add(Subject::Binary, Finding::Problem("missing".into()));
        assert_eq!(time_to_next_pass(&good, resync), resync);
        let time = time_to_next_pass(&bad, resync);
        assert!((RETRY[0]..=RETRY[1]).contains(&time), "{time:?}");
        let resync = Duration::from_millis(100);
        assert_eq!(time_to_next_pass(&bad, resync), resync);
    }
}
