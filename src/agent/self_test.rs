//! Whether the installed plugin does what it is there for: tried with a pod made for it,
//! on a thread of its own, so that it delays nothing that puts the node right.
//!
//! It is tried once for each program and entry, and again only after a failure: what
//! worked goes on to work until one of the two is another.

mod call;
mod network;
mod scratch;
mod server;
mod target;
mod trial;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::info;

use super::binaries::Stamp;
use super::settings::Settings;
use super::status::Status;
use super::watch::Waker;
pub use trial::Outcome;

/// The pod's interface, as runtimes name it.
const INTERFACE: &str = "eth0";
/// When to try again what failed: doubled from the first to the last.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);
const STACK: usize = 256 << 10;

/// What is tried: the program on the host, and our entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub program: Stamp,
    pub entry: String,
}

/// What a look at the node is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It works, as far as that can be tried here.
    Proven,
    /// Nothing is known yet.
    Pending,
    Wrong(String),
}

/// What is known, and the thread that finds it out.
pub struct Proof {
    settings: Arc<Settings>,
    status: Arc<Status>,
    state: Mutex<State>,
    changed: Condvar,
    waker: Waker,
}

#[derive(Default)]
struct State {
    wanted: Option<Subject>,
    known: Option<(Subject, Outcome)>,
}

impl Proof {
    /// Starts the thread, which waits for something to try.
    pub fn start(
        settings: &Arc<Settings>,
        status: &Arc<Status>,
        waker: Waker,
    ) -> io::Result<Arc<Proof>> {
        let proof = Arc::new(Proof {
            settings: Arc::clone(settings),
            status: Arc::clone(status),
            state: Mutex::default(),
            changed: Condvar::new(),
            waker,
        });
        let own = Arc::clone(&proof);
        thread::Builder::new()
            .name("self-test".into())
            .stack_size(STACK)
            .spawn(move || own.run())?;
        Ok(proof)
    }

    /// What is known of `subject`; it is tried if that is nothing.
    pub fn of(&self, subject: Subject) -> Standing {
        let mut state = self.state();
        if state.wanted.as_ref() != Some(&subject) {
            state.wanted = Some(subject);
            self.changed.notify_one();
        }
        match (&state.known, &state.wanted) {
            (Some((known, outcome)), Some(wanted)) if known == wanted => match outcome {
                Outcome::Failed(why) => Standing::Wrong(why.clone()),
                Outcome::Passed(_) | Outcome::Skipped(_) => Standing::Proven,
            },
            _ => Standing::Pending,
        }
    }

    /// There is nothing to try for now. What is known stays known.
    pub fn rest(&self) {
        self.state().wanted = None;
    }

    fn run(&self) {
        let mut retry = FIRST_RETRY;
        let mut again = None;
        loop {
            let subject = self.next(again);
            let outcome = trial::run(&self.settings);
            Status::count(match &outcome {
                Outcome::Passed(_) => &self.status.self_tests_passed,
                Outcome::Skipped(_) => &self.status.self_tests_skipped,
                Outcome::Failed(_) => &self.status.self_tests_failed,
            });
            let mut state = self.state();
            let before = state.known.replace((subject.clone(), outcome.clone()));
            drop(state);
            let failed = matches!(outcome, Outcome::Failed(_));
            let same = before.as_ref().is_some_and(|(known, _)| *known == subject);
            retry = match same && failed {
                true => (retry * 2).min(LAST_RETRY),
                false => FIRST_RETRY,
            };
            again = failed.then(|| Instant::now() + retry);
            match &outcome {
                Outcome::Passed(what) => info!("self-test passed: {what}"),
                // Said once, not for each new program.
                Outcome::Skipped(why) if before.is_none_or(|(_, known)| known != outcome) => {
                    info!("self-test skipped, so ready does not take it: {why}");
                }
                // The look that follows says it.
                Outcome::Skipped(_) | Outcome::Failed(_) => {}
            }
            self.waker.wake();
        }
    }

    /// Waits for something that is not known yet, or that failed and is due `again`.
    fn next(&self, again: Option<Instant>) -> Subject {
        let mut state = self.state();
        loop {
            let mut left = None;
            if let Some(wanted) = &state.wanted {
                let known = state.known.as_ref().filter(|(known, _)| known == wanted);
                match (known, again) {
                    (None, _) => return wanted.clone(),
                    (Some(_), Some(again)) => {
                        let now = again.saturating_duration_since(Instant::now());
                        if now.is_zero() {
                            return wanted.clone();
                        }
                        left = Some(now);
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
