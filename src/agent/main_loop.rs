//! The agent's main loop: waits, runs a reconcile pass, and logs the problems that changed.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tracing::{info, warn};

use super::Error;
use super::reconcile::Reconciler;
use super::reconcile::findings::{Finding, Pass};
use super::settings::Settings;
use super::subject::Subject;
use crate::backoff::between;

/// Time between a write and the pass that verifies it.
const VERIFY_DELAY: Duration = Duration::from_millis(2);
/// Shortest and longest time until the next pass after one with a problem. A pass takes a millisecond.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

impl Reconciler {
    /// Waits until a reconcile pass is due, at most for `longest`, and runs it. A signal ends the
    /// wait instead, and is returned.
    pub fn step(&mut self, longest: Duration) -> Result<Option<Signal>, Error> {
        let signal = self.watch.wait(self.timeout.min(longest)).map_err(Error::Wait)?;
        if signal.is_some() {
            return Ok(signal);
        }
        self.status.state().running_since = Some(Instant::now());
        let opened = self.status.serve(self.settings.admin_address);
        let watching = self.watch.watch_dirs(&watched_dirs(&self.settings));
        let mut pass = self.pass();
        pass.add(Subject::Inotify, watching.err().map(Finding::Problem));
        pass.add(Subject::AdminListener, opened.err().map(Finding::Problem));
        self.log_changes(&pass);
        self.timeout = time_to_next_pass(&pass, self.settings.resync);
        self.status.end_pass();
        Ok(None)
    }

    /// Logs the differences to the problems of the last pass.
    fn log_changes(&mut self, pass: &Pass) {
        let problems = pass.logged();
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
    let node = &settings.node;
    let dirs: [&Path; 3] = [&node.net_dir, &node.bin_dir, &settings.service_account_dir];
    dirs.into_iter().chain(ca).collect()
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
