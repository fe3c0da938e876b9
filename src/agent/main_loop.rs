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
use crate::backoff::{Backoff, Limits};

/// Time between a write and the pass that verifies it.
const VERIFY_DELAY: Duration = Duration::from_millis(2);
/// First and longest time until the next pass after one with a problem.
const RETRY: Limits = [Duration::from_secs(1), Duration::from_secs(10)];

pub struct MainLoop {
    watch: Watch,
    pub reconciler: Reconciler,
    problem_log: ProblemLog,
    /// Delays the next pass after one with a problem.
    retry: Backoff,
    /// Longest time until the next pass.
    timeout: Duration,
}

impl MainLoop {
    pub fn new(watch: Watch, reconciler: Reconciler) -> MainLoop {
        MainLoop {
            watch,
            reconciler,
            problem_log: ProblemLog::default(),
            retry: Backoff::new(RETRY),
            timeout: Duration::ZERO,
        }
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
        pass.add(Subject::Inotify, watching.err().map(Finding::Problem));
        pass.add(Subject::AdminListener, opened.err().map(Finding::Problem));
        if self.problem_log.update(pass.logged()) {
            self.retry.reset();
        }
        self.timeout = time_to_next_pass(&pass, &mut self.retry, settings.resync);
    }
}

/// The directories whose changes trigger a reconcile pass.
fn watched_dirs(settings: &Settings) -> Vec<&Path> {
    let ca = settings.ca_file.as_deref().and_then(Path::parent);
    [&*settings.node.net_dir, &*settings.node.bin_dir, &*settings.service_account_dir]
        .into_iter()
        .chain(ca)
        .collect()
}

/// Returns the longest time until the next pass. `retry` delays it after a pass with a problem.
fn time_to_next_pass(pass: &Pass, retry: &mut Backoff, resync: Duration) -> Duration {
    if pass.wrote {
        return VERIFY_DELAY;
    }
    let next = pass.next.map(|next| next.saturating_duration_since(Instant::now()));
    let resync = next.map_or(resync, |next| next.min(resync));
    match pass.has_problem() {
        true => retry.next_delay().min(resync),
        false => {
            retry.reset();
            resync
        }
    }
}

/// The problems that were logged last, by subject.
#[derive(Debug, Default)]
pub struct ProblemLog {
    logged: BTreeMap<String, String>,
}

impl ProblemLog {
    /// Logs the differences to the problems of the last call. Returns whether there are any.
    pub fn update(&mut self, problems: BTreeMap<String, String>) -> bool {
        let logged = std::mem::replace(&mut self.logged, problems);
        for subject in logged.keys().filter(|subject| !self.logged.contains_key(*subject)) {
            info!("{subject}: resolved");
        }
        for (subject, why) in &self.logged {
            if logged.get(subject) != Some(why) {
                warn!("{subject}: {why}");
            }
        }
        logged != self.logged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_time_doubles_from_one_to_ten_seconds_and_never_exceeds_the_resync() {
        let resync = Duration::from_secs(30);
        let mut retry = Backoff::new(RETRY);
        let (good, mut bad) = (Pass::default(), Pass::default());
        bad.add(Subject::Binary, Finding::Problem("missing".into()));
        for longest in [1, 2, 4, 8, 10, 10] {
            let longest = Duration::from_secs(longest);
            let time = time_to_next_pass(&bad, &mut retry, resync);
            assert!((longest / 2..=longest).contains(&time), "{time:?} of {longest:?}");
        }
        assert_eq!(time_to_next_pass(&good, &mut retry, resync), resync);
        assert!(time_to_next_pass(&bad, &mut retry, resync) <= RETRY[0]);
        let resync = Duration::from_millis(100);
        assert_eq!(time_to_next_pass(&bad, &mut retry, resync), resync);
    }
}
