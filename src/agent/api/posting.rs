//! Posts the Events on pods that are due.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::{Api, event};
use crate::kube::connection::{Connection, Error};

/// How long nothing is posted after the API server did not take an Event for a reason
/// that may pass.
const REST: Duration = Duration::from_secs(60);
/// How long Events are dropped after the API server forbade one.
const FORBIDDEN_REST: Duration = Duration::from_secs(600);

/// Why an Event was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The agent's account lacks the right, as under upstream's chart.
    Forbidden,
    /// The pod or its namespace is gone.
    Gone,
    /// The API server is unreachable or busy, or does not accept the token.
    Unavailable,
}

impl Failure {
    fn of(error: &Error) -> Failure {
        let Error::Client(error) = error else {
            return Failure::Unavailable;
        };
        match error.code() {
            // The right is there, but a namespace that is being deleted takes no object.
            Some(403) if error.to_string().contains("being terminated") => Failure::Gone,
            Some(403) => Failure::Forbidden,
            Some(404 | 409 | 422) => Failure::Gone,
            _ => Failure::Unavailable,
        }
    }
}

/// Posts Events on pods, and logs each kind of failure once.
#[derive(Default)]
pub struct Posting {
    /// The last failure that was logged, until an Event is posted.
    said: Option<Failure>,
}

impl Posting {
    /// Posts what is due. An Event that fails is not tried again: the agent's log and
    /// metrics have the same.
    pub fn run(&mut self, api: &Api, connection: &mut Connection) {
        loop {
            let Some(event) = api.pod_events().take(Instant::now()) else {
                return;
            };
            let Err(error) = event::publish_on_pod(connection, &api.settings, &event) else {
                if self.said.take().is_some() {
                    info!("Events on pods are posted again");
                }
                continue;
            };
            let failure = Failure::of(&error);
            let now = Instant::now();
            match failure {
                Failure::Forbidden => api.pod_events().close(now + FORBIDDEN_REST),
                Failure::Unavailable => api.pod_events().rest(now + REST),
                Failure::Gone => {
                    debug!("cannot post an Event on pod {}: {error}", event.pod);
                    continue;
                }
            }
            if self.said.replace(failure) == Some(failure) {
                continue;
            }
            match failure {
                Failure::Forbidden => warn!(
                    "cannot post Events on pods; the chart's ClusterRole linkerd-cni-agent grants the right, linkerd2's chart does not: {error}"
                ),
                _ => warn!("cannot post an Event on a pod: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube;

    fn status(code: u16, message: &str) -> Error {
        Error::Client(kube::Error::Status {
            method: ureq::http::Method::POST,
            url: "https://x".into(),
            code,
            reason: None,
            message: message.into(),
            retry_after: None,
        })
    }

    #[test]
    fn only_a_missing_right_stops_events_for_long() {
        let ending = "events is forbidden: unable to create new content in namespace a because it is being terminated";
        for (error, wanted) in [
            (status(403, "events is forbidden"), Failure::Forbidden),
            (status(403, ending), Failure::Gone),
            (status(404, "namespaces \"a\" not found"), Failure::Gone),
            (status(401, "Unauthorized"), Failure::Unavailable),
            (status(429, "slow down"), Failure::Unavailable),
            (status(503, "x"), Failure::Unavailable),
        ] {
            assert_eq!(Failure::of(&error), wanted, "{error}");
        }
    }
}
