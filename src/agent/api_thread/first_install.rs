//! Decides whether the agent may write a kubeconfig on a node where nothing is installed. Pure.
//!
//! An agent that starts shortly before its release is uninstalled may never open its watch of pods.
//! Such an agent could not prove that the release is uninstalled, so it would leave everything in
//! place when it is stopped. Therefore the first install waits until the watch is open.

use std::time::{Duration, Instant};

/// Longest time for which the first install waits until the watch of pods is open.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// Whether the agent may write a kubeconfig with a token on a node where nothing is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstInstall {
    /// The agent may install: its watch is open and will show the end of the release, or the watch
    /// has failed or did not open in time.
    Possible,
    /// The API server rejects the agent's own token.
    Rejected,
    /// The watch is not open yet. The first install waits for it until this time.
    AwaitsWatch(Instant),
}

/// The wait for the first watch that shows the agent's own pod.
#[derive(Debug, Default)]
pub struct FirstWatch {
    /// `None` if the watch is open or has failed.
    awaited_until: Option<Instant>,
}

impl FirstWatch {
    pub fn begin_wait(&mut self, now: Instant) {
        self.awaited_until = Some(now + LONGEST_WAIT);
    }

    /// Ends the wait, because the watch is open or has failed. Returns whether the first install
    /// was waiting.
    pub fn end_wait(&mut self) -> bool {
        self.awaited_until.take().is_some()
    }

    /// Returns whether the first install is possible. `is_rejected` says whether the API server
    /// rejects the agent's own token.
    pub fn first_install(&self, is_rejected: bool, now: Instant) -> FirstInstall {
        if is_rejected {
            return FirstInstall::Rejected;
        }
        match self.awaited_until {
            Some(end) if now < end => FirstInstall::AwaitsWatch(end),
            _ => FirstInstall::Possible,
        }
    }
}
