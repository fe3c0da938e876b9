//! Whether a node where nothing is installed can get a token. Pure.
//!
//! An agent that starts shortly before an uninstall may never open its watch. Such an agent could
//! not prove the uninstall, so it must not install.

use std::time::{Duration, Instant};

/// Longest time for which the first install of a node waits until the watch of pods is open.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// Whether a node where nothing is installed can get a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstInstall {
    /// The agent's watch is open and will show the end of the release, or the watch cannot be
    /// opened at all.
    Possible,
    /// The API server rejects the agent's own token.
    Rejected,
    /// The watch is not open yet. Do not wait beyond this time.
    AwaitsWatch(Instant),
}

/// The first watch that shows the agent's own pod.
#[derive(Debug, Default)]
pub struct FirstWatch {
    /// `None` if the watch is open or failed.
    awaited_until: Option<Instant>,
}

impl FirstWatch {
    pub fn begins(&mut self, now: Instant) {
        self.awaited_until = Some(now + LONGEST_WAIT);
    }

    /// Records that the watch is open or failed. Returns whether the first install waited for that.
    pub fn ends(&mut self) -> bool {
        self.awaited_until.take().is_some()
    }

    /// `is_rejected` says that the API server rejects the agent's own token.
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
