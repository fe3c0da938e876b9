//! Self-test: runs the installed plugin for a scratch pod and checks that TCP connections
//! reach the proxy's ports. The node is not ready until the self-test has passed or was skipped.
//!
//! Each self-test runs on a thread of its own, so that it delays no reconcile pass. It reruns after
//! a failure, and when the plugin binary or the plugin entry changes.

mod connections;
mod plugin_config;
mod run;
mod scratch_pod;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::info;

use super::file_watch::Waker;
use super::readiness::Status;
use super::settings::Settings;
use crate::backoff::{Backoff, Limits};
use crate::node::binaries::Stamp;

/// Interface of the scratch pod, with the name that container runtimes use.
const INTERFACE: &str = "eth0";
/// First and longest wait before the self-test reruns after a failure.
const RETRY: Limits = [Duration::from_secs(1), Duration::from_secs(60)];

/// What a self-test tests: the plugin binary in the directory `dir`, which is on the host or in the
/// image, and the plugin entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestedPlugin {
    pub dir: PathBuf,
    pub binary: Stamp,
    pub entry: String,
}

/// Outcome of a self-test, with a text for logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestOutcome {
    /// Each call succeeded and each connection was redirected.
    Passed(String),
    /// The self-test cannot run on this node, so nothing is known about the plugin.
    Skipped(String),
    Failed(String),
}

impl TestOutcome {
    /// Returns the value of the metric's label `result`.
    fn label(&self) -> &'static str {
        match self {
            TestOutcome::Passed(_) => "passed",
            TestOutcome::Skipped(_) => "skipped",
            TestOutcome::Failed(_) => "failed",
        }
    }
}

/// Runs self-tests, one at a time, and remembers the last outcome.
pub struct SelfTest {
    settings: Arc<Settings>,
    status: Arc<Status>,
    waker: Waker,
    /// The self-test that runs now, and where its outcome arrives.
    running: Option<(TestedPlugin, Receiver<TestOutcome>)>,
    /// The last self-test that has ended, and its outcome.
    last: Option<(TestedPlugin, TestOutcome)>,
    retry: Backoff,
    rerun_at: Instant,
}

impl SelfTest {
    pub fn new(settings: &Arc<Settings>, status: &Arc<Status>, waker: Waker) -> SelfTest {
        SelfTest {
            settings: Arc::clone(settings),
            status: Arc::clone(status),
            waker,
            running: None,
            last: None,
            retry: Backoff::new(RETRY),
            rerun_at: Instant::now(),
        }
    }

    /// Returns the last outcome for `plugin`. `None` if its first self-test has not ended. Starts a
    /// self-test if there is no outcome yet, or if a failed self-test is to be repeated now.
    pub fn outcome(&mut self, plugin: TestedPlugin) -> Option<&TestOutcome> {
        self.collect_outcome();
        let is_due = match self.last_outcome(&plugin) {
            None => true,
            Some(TestOutcome::Failed(_)) => self.rerun_at <= Instant::now(),
            Some(_) => false,
        };
        if is_due && self.running.is_none() {
            self.running = Some((plugin.clone(), self.start(plugin.dir.clone())));
        }
        self.last_outcome(&plugin)
    }

    fn last_outcome(&self, plugin: &TestedPlugin) -> Option<&TestOutcome> {
        match &self.last {
            Some((tested, outcome)) if tested == plugin => Some(outcome),
            _ => None,
        }
    }

    /// Starts a self-test of the plugin in `dir` on a new thread. If the thread panics or cannot be
    /// started, the sender is dropped, and the receiver returns an error.
    fn start(&self, dir: PathBuf) -> Receiver<TestOutcome> {
        let (sender, outcome) = mpsc::sync_channel(1);
        let settings = Arc::clone(&self.settings);
        let waker = self.waker.clone();
        let thread = thread::Builder::new().name("self-test".into()).stack_size(256 << 10);
        let _ = thread.spawn(move || {
            let _ = sender.send(run::run(&settings, &dir));
            waker.wake();
        });
        outcome
    }

    /// Counts, logs and remembers the outcome of the running self-test, if it has ended.
    fn collect_outcome(&mut self) {
        let Some((tested, receiver)) = &self.running else { return };
        let outcome = match receiver.try_recv() {
            Err(TryRecvError::Empty) => return,
            Ok(outcome) => outcome,
            Err(TryRecvError::Disconnected) => {
                TestOutcome::Failed("its thread could not be started, or panicked".into())
            }
        };
        log_outcome(&outcome);
        self.status.metrics.count_self_test(outcome.label());
        // The wait before a rerun grows only while the same plugin fails.
        let was_tested = self.last_outcome(tested).is_some();
        if !was_tested || !matches!(outcome, TestOutcome::Failed(_)) {
            self.retry.reset();
        }
        self.rerun_at = Instant::now() + self.retry.next_delay();
        self.last = self.running.take().map(|(tested, _)| (tested, outcome));
    }
}

fn log_outcome(outcome: &TestOutcome) {
    match outcome {
        TestOutcome::Passed(coverage) => info!("self-test passed: {coverage}"),
        TestOutcome::Skipped(why) => {
            info!("self-test skipped, so readiness does not depend on it: {why}");
        }
        // A failure is not logged here, because the reconcile pass logs it.
        TestOutcome::Failed(_) => {}
    }
}
