//! Self-test: runs the installed plugin for a scratch pod and checks that TCP connections
//! reach the proxy's ports. The node is not ready until the self-test has passed or was skipped.
//!
//! The self-test runs on its own thread, so that it delays no reconcile pass. It reruns after
//! a failure, and when the plugin binary or the plugin entry changes.

mod connections;
mod plugin_call;
mod plugin_config;
mod run;
mod scratch_pod;
mod stub_api;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::info;

use super::settings::Settings;
use super::status::Status;
use super::watch::Waker;
use crate::node::binaries::Stamp;
use run::TestOutcome;

/// Interface of the scratch pod, with the name that container runtimes use.
const INTERFACE: &str = "eth0";
/// Wait before the self-test reruns after its first failure. Doubles with each further failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest wait before the self-test reruns after a failure.
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Stack size of the self-test thread, in bytes.
const STACK: usize = 256 << 10;

/// What the self-test runs: the plugin binary in `dir`, on the host or in the image, with the plugin
/// entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestedPlugin {
    pub dir: PathBuf,
    pub binary: Stamp,
    pub entry: String,
}

/// What the reconciler learns about the installed plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelfTestState {
    /// The self-test passed, or cannot run on this node and is skipped. Says what is not tested.
    Passed { untested: Option<String> },
    /// The self-test of this binary and entry has not ended yet.
    Pending,
    /// The self-test failed, for this reason.
    Failed(String),
}

/// Handle to the self-test thread and to its last outcome.
pub struct SelfTest {
    settings: Arc<Settings>,
    status: Arc<Status>,
    state: Mutex<State>,
    /// Wakes the thread when a self-test is requested.
    changed: Condvar,
    /// Wakes the reconciler when a self-test has ended.
    waker: Waker,
}

#[derive(Default)]
struct State {
    /// What to test; `None` while the node is not ready for a self-test.
    requested: Option<TestedPlugin>,
    /// What the last self-test ran, and its outcome.
    last: Option<(TestedPlugin, TestOutcome)>,
}

impl SelfTest {
    /// Starts the thread. The first self-test waits for [`SelfTest::state_of`].
    pub fn start(
        settings: &Arc<Settings>,
        status: &Arc<Status>,
        waker: Waker,
    ) -> io::Result<Arc<SelfTest>> {
        let self_test = Arc::new(SelfTest {
            settings: Arc::clone(settings),
            status: Arc::clone(status),
            state: Mutex::default(),
            changed: Condvar::new(),
            waker,
        });
        let own = Arc::clone(&self_test);
        thread::Builder::new()
            .name("self-test".into())
            .stack_size(STACK)
            .spawn(move || own.run())?;
        Ok(self_test)
    }

    /// Returns the state of the self-test of `plugin`, and requests that self-test if it has
    /// not run yet.
    pub fn state_of(&self, plugin: TestedPlugin) -> SelfTestState {
        let mut state = self.state();
        if state.requested.as_ref() != Some(&plugin) {
            state.requested = Some(plugin);
            self.changed.notify_one();
        }
        match (&state.last, &state.requested) {
            (Some((tested, outcome)), Some(requested)) if tested == requested => match outcome {
                TestOutcome::Failed(why) => SelfTestState::Failed(why.clone()),
                TestOutcome::Passed(_) => SelfTestState::Passed { untested: None },
                TestOutcome::PassedWithAuto { untested, .. } => {
                    SelfTestState::Passed { untested: Some(untested.clone()) }
                }
                TestOutcome::Skipped(why) => {
                    SelfTestState::Passed { untested: Some(format!("self-test skipped: {why}")) }
                }
            },
            _ => SelfTestState::Pending,
        }
    }

    /// Requests no further self-test until the next [`SelfTest::state_of`]. Keeps the last
    /// outcome.
    pub fn pause(&self) {
        self.state().requested = None;
    }

    /// Runs self-tests for the rest of the process.
    fn run(&self) {
        let mut retry = FIRST_RETRY;
        let mut rerun_at = None;
        loop {
            let plugin = self.next_plugin(rerun_at);
            let outcome = run::run(&self.settings, &plugin.dir);
            let counter = match &outcome {
                TestOutcome::Passed(_) => &self.status.self_tests_passed,
                TestOutcome::PassedWithAuto { .. } => &self.status.self_tests_passed_with_auto,
                TestOutcome::Skipped(_) => &self.status.self_tests_skipped,
                TestOutcome::Failed(_) => &self.status.self_tests_failed,
            };
            counter.inc();
            let mut state = self.state();
            let before = state.last.replace((plugin.clone(), outcome.clone()));
            drop(state);
            let failed = matches!(outcome, TestOutcome::Failed(_));
            let same = before.as_ref().is_some_and(|(tested, _)| *tested == plugin);
            retry = match same && failed {
                true => (retry * 2).min(LONGEST_RETRY),
                false => FIRST_RETRY,
            };
            rerun_at = failed.then(|| Instant::now() + retry);
            match &outcome {
                TestOutcome::Passed(what) => info!("self-test passed: {what}"),
                TestOutcome::PassedWithAuto { coverage, untested } => {
                    info!("self-test passed: {coverage}; {untested}");
                }
                // Logged once, not for each new plugin binary.
                TestOutcome::Skipped(why) if before.is_none_or(|(_, last)| last != outcome) => {
                    info!("self-test skipped, so readiness does not depend on it: {why}");
                }
                // The next reconcile pass logs a failure.
                TestOutcome::Skipped(_) | TestOutcome::Failed(_) => {}
            }
            self.waker.wake();
        }
    }

    /// Waits until the requested plugin differs from the plugin tested last, or until the rerun of
    /// a failed self-test is due at `rerun_at`.
    fn next_plugin(&self, rerun_at: Option<Instant>) -> TestedPlugin {
        let mut state = self.state();
        loop {
            let mut left = None;
            if let Some(requested) = &state.requested {
                let last = state.last.as_ref().filter(|(tested, _)| tested == requested);
                match (last, rerun_at) {
                    (None, _) => return requested.clone(),
                    (Some(_), Some(rerun_at)) => {
                        let wait = rerun_at.saturating_duration_since(Instant::now());
                        if wait.is_zero() {
                            return requested.clone();
                        }
                        left = Some(wait);
                    }
                    (Some(_), None) => {}
                }
            }
            state = match left {
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
