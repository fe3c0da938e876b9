//! Whether the watch works, for `/ready` (upstream's tells only that it once began, D-56).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the API server may be out of touch before the controller is not ready.
/// An API server that sends bookmarks does so about once a minute.
pub const STALE: Duration = Duration::from_secs(300);

/// What the watch last heard from the API server.
#[derive(Default)]
pub struct Health {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listed: bool,
    heard: Option<Instant>,
    trouble: Option<String>,
}

impl Health {
    /// All pods of the node have been looked at.
    pub fn listed(&self) {
        self.with(|state| state.listed = true);
        self.heard();
    }

    /// The API server has just sent something of use.
    pub fn heard(&self) {
        self.with(|state| {
            state.heard = Some(Instant::now());
            state.trouble = None;
        });
    }

    /// The newest reason why it has not.
    pub fn trouble(&self, reason: String) {
        self.with(|state| state.trouble = Some(reason));
    }

    /// `Err` says what is missing at `now`.
    pub fn ready(&self, now: Instant) -> Result<(), String> {
        self.with(|state| {
            let silence = state
                .heard
                .map(|heard| now.saturating_duration_since(heard));
            let missing = match silence {
                _ if !state.listed => "the node's pods are not listed yet".to_owned(),
                Some(silence) if silence > STALE => {
                    format!("nothing heard from the API server for {silence:.0?}")
                }
                _ => return Ok(()),
            };
            Err(match &state.trouble {
                Some(trouble) => format!("{missing}: {trouble}"),
                None => missing,
            })
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_listed_once_and_in_touch_since() {
        let health = Health::default();
        let not_listed = "the node's pods are not listed yet";
        assert_eq!(health.ready(Instant::now()), Err(not_listed.into()));
        health.trouble("connection refused".into());
        let reason = format!("{not_listed}: connection refused");
        assert_eq!(health.ready(Instant::now()), Err(reason));
        health.listed();
        assert_eq!(health.ready(Instant::now()), Ok(()));
        // One failed watch is no reason yet.
        health.trouble("HTTP 500".into());
        assert_eq!(health.ready(Instant::now()), Ok(()));
        let later = Instant::now() + STALE + Duration::from_secs(1);
        let reason = "nothing heard from the API server for 301s: HTTP 500";
        assert_eq!(health.ready(later), Err(reason.into()));
        health.heard();
        assert_eq!(health.ready(Instant::now()), Ok(()));
    }
}
