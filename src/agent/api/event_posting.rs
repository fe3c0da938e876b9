//! Posts Events on the node and on its pods, and pauses after a failure.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::event_queue::Event;
use super::{ApiHandle, USER_AGENT};
use crate::agent::settings::Settings;
use crate::backoff::between;
use crate::kube::connection::{Connection, Error};
use crate::kube::event::{self, Regarding, Reporter};

/// Shortest and longest pause after a temporary failure, such as an unreachable API server. Random,
/// because the failure may hit all nodes at once.
const UNAVAILABLE_PAUSE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(180)];
/// Shortest and longest pause after HTTP 403: the agent's ServiceAccount may not create Events.
/// Upstream's chart does not grant it.
const FORBIDDEN_PAUSE: [Duration; 2] = [Duration::from_secs(600), Duration::from_secs(900)];

/// Posts an Event. Does nothing if the settings do not name its object.
pub fn post(connection: &mut Connection, settings: &Settings, event: &Event) -> Result<(), Error> {
    let regarding = match (event, settings.node_name.as_deref()) {
        (Event::OnPod(event), _) => Regarding {
            kind: "Pod",
            namespace: &event.namespace,
            name: &event.pod,
            uid: &event.uid,
        },
        (Event::OnNode(_), Some(node)) => Regarding::node(node),
        (Event::OnNode(_), None) => return Ok(()),
    };
    // The API requires an instance, and upstream's chart does not tell the agent the name of its pod.
    let instance = settings.pod_name.as_deref().unwrap_or(USER_AGENT);
    let reporter = Reporter { controller: USER_AGENT, instance };
    Ok(event::publish(&connection.client()?, reporter, regarding, event.content(), None)?)
}

/// Returns the shortest and longest pause before the Event is posted again. `None` drops it: the API
/// server rejects only this Event, as its pod or namespace is gone or being deleted, its name is in use
/// (409), or it is invalid (400, 422).
fn pause(error: &Error) -> Option<[Duration; 2]> {
    let Error::Client(error) = error else {
        return Some(UNAVAILABLE_PAUSE);
    };
    match error.code() {
        // A namespace that is being deleted rejects new objects, whatever RBAC allows.
        Some(403) if error.to_string().contains("being terminated") => None,
        Some(403) => Some(FORBIDDEN_PAUSE),
        Some(401 | 408 | 429) => Some(UNAVAILABLE_PAUSE),
        Some(400..=499) => None,
        _ => Some(UNAVAILABLE_PAUSE),
    }
}

/// Posts the queued Events, and logs once that they cannot be posted.
#[derive(Default)]
pub struct EventPosting {
    is_failing: bool,
}

impl EventPosting {
    /// Posts all Events that are due. If the API server is unavailable, the Event is retried: many
    /// Events report that very outage.
    pub fn run(&mut self, api: &ApiHandle, connection: &mut Connection) {
        loop {
            let next = api.state().events.take(Instant::now());
            let Some((queued, event)) = next else {
                return;
            };
            let Err(error) = post(connection, &api.settings, &event) else {
                if std::mem::take(&mut self.is_failing) {
                    info!("Events are posted again");
                }
                continue;
            };
            let Some(pause) = pause(&error) else {
                debug!("cannot post an Event {}: {error}", event.content().reason);
                continue;
            };
            let now = Instant::now();
            let end = now + between(pause[0], pause[1]);
            api.state().events.put_back((queued, event), now, end);
            if std::mem::replace(&mut self.is_failing, true) {
                continue;
            }
            let cause = match pause {
                FORBIDDEN_PAUSE => {
                    ", because the agent's ServiceAccount may not create Events (the chart's \
                     ClusterRole linkerd-cni-agent grants it, upstream's chart does not)"
                }
                _ => "",
            };
            warn!("cannot post Events{cause}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube;

    fn status(code: u16, message: &str) -> Error {
        Error::Client(kube::Error::Status {
            request: String::new(),
            code,
            reason: None,
            message: message.into(),
            retry_after: None,
        })
    }

    #[test]
    fn a_missing_permission_pauses_for_ten_minutes_and_a_rejected_event_not_at_all() {
        let ending = "events is forbidden: unable to create new content in namespace a because it is being terminated";
        for (error, wanted) in [
            (status(403, "events is forbidden"), Some(FORBIDDEN_PAUSE)),
            (status(403, ending), None),
            (status(404, "namespaces \"a\" not found"), None),
            (status(400, "bad request"), None),
            (status(413, "too large"), None),
            (status(422, "invalid"), None),
            (status(401, "Unauthorized"), Some(UNAVAILABLE_PAUSE)),
            (status(408, "timeout"), Some(UNAVAILABLE_PAUSE)),
            (status(429, "slow down"), Some(UNAVAILABLE_PAUSE)),
            (status(503, "x"), Some(UNAVAILABLE_PAUSE)),
        ] {
            assert_eq!(pause(&error), wanted, "{error}");
        }
    }
}
