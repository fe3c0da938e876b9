//! Readiness of the controller, for `/ready`: whether the watch works now. Upstream's
//! controller only reports that its watch was started once.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long nothing may be received from the API server before the controller is not
/// ready. An API server sends a bookmark about once a minute.
pub const MAX_SILENCE: Duration = Duration::from_secs(300);

/// State of the connection to the API server.
#[derive(Default)]
pub struct Health {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listed: bool,
    /// Time of the last useful response, event or bookmark.
    last_contact: Option<Instant>,
    /// Last error since then.
    failure: Option<String>,
}

impl Health {
    /// Records a complete list of the node's pods.
    pub fn record_list(&self) {
        self.with(|state| state.listed = true);
        self.record_contact();
    }

    /// Records that the API server has just sent a useful response, event or bookmark.
    pub fn record_contact(&self) {
        self.with(|state| {
            state.last_contact = Some(Instant::now());
            state.failure = None;
        });
    }

    /// Records why a list or watch failed.
    pub fn record_failure(&self, reason: String) {
        self.with(|state| state.failure = Some(reason));
    }

    /// Returns `Ok` if the controller is ready at `now`, else the reason.
    pub fn ready(&self, now: Instant) -> Result<(), String> {
        self.with(|state| {
            let silence =
                state.last_contact.map(|last_contact| now.saturating_duration_since(last_contact));
            let reason = match silence {
                _ if !state.listed => "the node's pods are not listed yet".to_owned(),
                Some(silence) if silence > MAX_SILENCE => {
                    format!("nothing heard from the API server for {silence:.0?}")
                }
                _ => return Ok(()),
            };
            Err(match &state.failure {
                Some(failure) => format!("{reason}: {failure}"),
                None => reason,
            })
        })
    }

    fn with<T>(&self, access: impl FnOnce(&mut State) -> T) -> T {
        access(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_after_the_first_list_and_while_the_api_server_is_heard() {
        let health = Health::default();
        let not_listed = "the node's pods are not listed yet";
        assert_eq!(health.ready(Instant::now()), Err(not_listed.into()));
        health.record_failure("connection refused".into());
        let reason = format!("{not_listed}: connection refused");
        assert_eq!(health.ready(Instant::now()), Err(reason));
        health.record_list();
        assert_eq!(health.ready(Instant::now()), Ok(()));
        // One failed watch does not make the controller unready.
        health.record_failure("HTTP 500".into());
        assert_eq!(health.ready(Instant::now()), Ok(()));
        let later = Instant::now() + MAX_SILENCE + Duration::from_secs(1);
        let reason = "nothing heard from the API server for 301s: HTTP 500";
        assert_eq!(health.ready(later), Err(reason.into()));
        health.record_contact();
        assert_eq!(health.ready(Instant::now()), Ok(()));
    }
}
