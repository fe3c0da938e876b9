//! Readiness of the controller, for `/ready`: whether the watch works now. Upstream's
//! controller stays ready once its watch has started.

use std::time::{Duration, Instant};

/// Time without data from the API server after which the controller is not ready. The API server
/// sends a bookmark about once a minute if etcd reports its progress. Otherwise the controller
/// lists again after `READ_TIMEOUT` of [`pod_watch`](crate::kube::pod_watch).
const MAX_SILENCE: Duration = Duration::from_secs(300);

/// Whether the connection to the API server works.
#[derive(Default)]
pub struct Readiness {
    /// Time of the last useful response, event or bookmark. The first one is a complete list.
    last_contact: Option<Instant>,
    /// Last error since then.
    failure: Option<String>,
}

impl Readiness {
    /// Records that the API server has just sent a complete list, or a useful response to a watch, or
    /// why a list or watch failed.
    pub fn record(&mut self, result: Result<(), String>) {
        match result {
            Ok(()) => *self = Readiness { last_contact: Some(Instant::now()), failure: None },
            Err(reason) => self.failure = Some(reason),
        }
    }

    /// Returns `Ok` if the controller is ready at `now`, else the reason.
    pub fn ready(&self, now: Instant) -> Result<(), String> {
        let silence = self.last_contact.map(|last| now.saturating_duration_since(last));
        let reason = match silence {
            None => "the node's pods are not listed yet".to_owned(),
            Some(silence) if silence > MAX_SILENCE => {
                format!("no data from the API server for {silence:.0?}")
            }
            Some(_) => return Ok(()),
        };
        Err(match &self.failure {
            Some(failure) => format!("{reason}: {failure}"),
            None => reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_is_ready_after_the_first_list_while_the_api_server_sends_data() {
        let mut readiness = Readiness::default();
        let not_listed = "the node's pods are not listed yet";
        assert_eq!(readiness.ready(Instant::now()), Err(not_listed.into()));
        readiness.record(Err("connection refused".into()));
        let reason = format!("{not_listed}: connection refused");
        assert_eq!(readiness.ready(Instant::now()), Err(reason));
        readiness.record(Ok(()));
        assert_eq!(readiness.ready(Instant::now()), Ok(()));
        // One failed watch does not make the controller unready.
        readiness.record(Err("HTTP 500".into()));
        assert_eq!(readiness.ready(Instant::now()), Ok(()));
        let later = Instant::now() + MAX_SILENCE + Duration::from_secs(1);
        let reason = "no data from the API server for 301s: HTTP 500";
        assert_eq!(readiness.ready(later), Err(reason.into()));
        readiness.record(Ok(()));
        assert_eq!(readiness.ready(Instant::now()), Ok(()));
    }
}
