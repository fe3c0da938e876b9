//! The agent's main loop: waits, runs a reconcile pass, and logs the problems that changed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Error;
use super::problem_log::ProblemLog;
use super::readiness::Status;
use super::reconcile::Reconciler;
use super::reconcile::judge::{Finding, Readiness};
use super::settings::Settings;
use super::subject::Subject;
use super::watch::{Wake, Watch};
use nix::sys::signal::Signal;

/// Time between a write and the pass that verifies it.
const VERIFY_DELAY: Duration = Duration::from_millis(2);
/// Time until the next pass after one with a problem. Doubled with each such pass.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest time until the next pass after one with a problem.
const LAST_RETRY: Duration = Duration::from_secs(10);
/// Pause after a pass during contention, as every write of the other program triggers a pass.
const CONTENTION_PAUSE: Duration = Duration::from_millis(100);

/// The main loop's state between two reconcile passes.
pub struct MainLoop {
    watch: Watch,
    pub reconciler: Reconciler,
    settings: Arc<Settings>,
    status: Arc<Status>,
    problem_log: ProblemLog,
    /// Time until the next pass after one with a problem.
    retry: Duration,
    /// Longest time until the next pass.
    timeout: Duration,
}

impl MainLoop {
    pub fn new(
        watch: Watch,
        reconciler: Reconciler,
        settings: &Arc<Settings>,
        status: &Arc<Status>,
    ) -> MainLoop {
        MainLoop {
            watch,
            reconciler,
            settings: Arc::clone(settings),
            status: Arc::clone(status),
            problem_log: ProblemLog::default(),
            retry: FIRST_RETRY,
            timeout: Duration::ZERO,
        }
    }

    /// Runs reconcile passes until SIGTERM or SIGINT, and returns that signal.
    ///
    /// # Errors
    /// Fails if waiting for signals or changes fails.
    pub fn until_signal(&mut self) -> Result<Signal, Error> {
        loop {
            if let Some(signal) = self.step(Duration::MAX)? {
                return Ok(signal);
            }
        }
    }

    /// Waits until a reconcile pass is due, at most for `longest`, and runs it. A signal ends the
    /// wait instead, and is returned.
    ///
    /// # Errors
    /// Fails if waiting for signals or changes fails.
    pub fn step(&mut self, longest: Duration) -> Result<Option<Signal>, Error> {
        if let Some(signal) = self.wait(self.timeout.min(longest))? {
            return Ok(Some(signal));
        }
        self.status.begin_pass();
        let contention = self.pass();
        self.status.end_pass();
        if contention
            && let Wake::Stop(signal) = self.watch.pause(CONTENTION_PAUSE).map_err(Error::Wait)?
        {
            return Ok(Some(signal));
        }
        Ok(None)
    }

    /// Waits for a change, a call from another thread or a signal, at most for `longest`. Returns the
    /// signal.
    ///
    /// # Errors
    /// Fails if waiting for signals or changes fails.
    pub fn wait(&self, longest: Duration) -> Result<Option<Signal>, Error> {
        match self.watch.wait(longest).map_err(Error::Wait)? {
            Wake::Stop(signal) => Ok(Some(signal)),
            Wake::Reconcile => Ok(None),
        }
    }

    /// Runs one reconcile pass, and schedules the next one. Returns whether there is contention.
    fn pass(&mut self) -> bool {
        let opened = self.status.serve(self.settings.admin_address);
        let watching = self.watch.watch_dirs(&watched_dirs(&self.settings));
        let mut readiness = self.reconciler.pass();
        for (subject, result) in [(Subject::Inotify, watching), (Subject::AdminListener, opened)] {
            let problem = result.err().map(|why| (subject, Finding::Problem(why)));
            readiness.findings.extend(problem);
        }
        if self.problem_log.update(readiness.logged()) {
            self.retry = FIRST_RETRY;
        }
        self.timeout = time_to_next_pass(&readiness, &mut self.retry, self.settings.resync);
        readiness.contention
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

/// Returns the longest time until the next pass. Updates `retry`, the time to use after the next
/// pass with a problem.
fn time_to_next_pass(readiness: &Readiness, retry: &mut Duration, resync: Duration) -> Duration {
    if readiness.progress.wrote {
        return VERIFY_DELAY;
    }
    let next = readiness.progress.next.map(|next| next.saturating_duration_since(Instant::now()));
    let resync = next.map_or(resync, |next| next.min(resync));
    if !readiness.has_problem() {
        *retry = FIRST_RETRY;
        return resync;
    }
    let now = *retry;
    *retry = (now * 2).min(LAST_RETRY);
    now.min(resync)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_time_doubles_from_one_to_ten_seconds_and_never_exceeds_the_resync() {
        let resync = Duration::from_secs(30);
        let mut retry = FIRST_RETRY;
        let problem = (Subject::Binary, Finding::Problem("missing".into()));
        let bad = Readiness { findings: vec![problem], ..Readiness::default() };
        let times: Vec<u64> =
            (0..6).map(|_| time_to_next_pass(&bad, &mut retry, resync).as_secs()).collect();
        assert_eq!(times, [1, 2, 4, 8, 10, 10]);
        assert_eq!(time_to_next_pass(&Readiness::default(), &mut retry, resync), resync);
        assert_eq!(retry, FIRST_RETRY);
        let resync = Duration::from_millis(100);
        assert_eq!(time_to_next_pass(&bad, &mut retry, resync), resync);
    }
}
