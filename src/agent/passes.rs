//! Decides from the times of the reconcile passes whether the result of the last pass is recent, and
//! whether the main thread hangs. Pure.

use std::time::{Duration, Instant};

/// Number of resync periods without a finished pass after which the agent is not ready.
const MAX_RESYNCS: u32 = 3;
/// Longest time of one pass. A pass takes milliseconds, but a busy disk may take seconds to sync
/// one file.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Times of the reconcile passes.
#[derive(Debug)]
pub struct Passes {
    resync: Duration,
    /// When the last pass finished; at first, when the agent started.
    finished: Instant,
    /// When the pass that runs now began.
    running_since: Option<Instant>,
}

impl Passes {
    pub fn new(resync: Duration, now: Instant) -> Passes {
        Passes { resync, finished: now, running_since: None }
    }

    /// Records the start of a pass.
    pub fn begin(&mut self, now: Instant) {
        self.running_since = Some(now);
    }

    /// Records the end of a pass.
    pub fn end(&mut self, now: Instant) {
        self.running_since = None;
        self.finished = now;
    }

    /// Returns whether a pass finished within the last three resync periods.
    ///
    /// # Errors
    /// Says when the last one finished.
    pub fn recent(&self, now: Instant) -> Result<(), String> {
        let age = now.saturating_duration_since(self.finished);
        if age <= self.resync * MAX_RESYNCS {
            return Ok(());
        }
        Err(format!(
            "no reconcile pass has finished for {} s{}",
            age.as_secs(),
            self.progressing(now).err().map_or_else(String::new, |why| format!(": {why}"))
        ))
    }

    /// Returns whether no pass has been running for too long.
    ///
    /// # Errors
    /// Says for how long the pass has been running.
    pub fn progressing(&self, now: Instant) -> Result<(), String> {
        let time =
            self.running_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if time <= STUCK_AFTER {
            return Ok(());
        }
        let seconds = time.as_secs();
        Err(format!(
            "a reconcile pass has been running for {seconds} s; check the node's file systems"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_state_is_recent_for_three_resync_periods_after_the_last_finished_pass() {
        let start = Instant::now();
        let mut passes = Passes::new(10 * SECOND, start);
        assert_eq!(passes.recent(start + 30 * SECOND), Ok(()));
        let why = "no reconcile pass has finished for 31 s";
        assert_eq!(passes.recent(start + 31 * SECOND), Err(why.into()));
        passes.begin(start + 31 * SECOND);
        assert_eq!(passes.recent(start + 31 * SECOND), Err(why.into()));
        passes.end(start + 32 * SECOND);
        assert_eq!(passes.recent(start + 62 * SECOND), Ok(()));
        assert!(passes.recent(start + 63 * SECOND).is_err());
    }

    #[test]
    fn the_main_thread_is_stuck_only_during_a_pass_of_more_than_a_minute() {
        let start = Instant::now();
        let mut passes = Passes::new(3600 * SECOND, start);
        assert_eq!(passes.progressing(start + 1000 * SECOND), Ok(()));
        passes.begin(start + 1000 * SECOND);
        assert_eq!(passes.progressing(start + 1060 * SECOND), Ok(()));
        let why = "a reconcile pass has been running for 61 s; check the node's file systems";
        assert_eq!(passes.progressing(start + 1061 * SECOND), Err(why.into()));
        passes.end(start + 1062 * SECOND);
        assert_eq!(passes.progressing(start + 2000 * SECOND), Ok(()));
    }
}
