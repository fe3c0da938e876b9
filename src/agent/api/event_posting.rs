//! Posts Events on the agent's own pod, on the node and on the pods of this node, and pauses after a
//! failure.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::event_queue::Event;
use super::{ApiHandle, USER_AGENT, namespace};
use crate::agent::settings::Settings;
use crate::backoff::between;
use crate::kube::claims::Claims;
use crate::kube::connection::{Connection, Error};
use crate::kube::event::{self, Regarding, Reporter};

/// Shortest and longest pause after a temporary failure, such as an unreachable API server. Random,
/// because the failure may hit all nodes at once.
const UNAVAILABLE_PAUSE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(180)];
/// How long new Events on pods are dropped after the API server rejected one with HTTP 403.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(600);

/// Posts an Event. Does nothing if the settings do not name its object. The UID of the agent's pod,
/// which `kubectl describe` needs to find the Event, comes from the agent's token.
pub fn post(connection: &mut Connection, settings: &Settings, event: &Event) -> Result<(), Error> {
    let client = connection.client()?;
    let claims = connection.token().and_then(Claims::read).unwrap_or_default();
    let own_namespace = namespace(settings);
    let regarding = match (event, settings.node_name.as_deref()) {
        (Event::OnPod(event), _) => Regarding {
            kind: "Pod",
            namespace: &event.namespace,
            name: &event.pod,
            uid: &event.uid,
        },
        (Event::OnNode(_), Some(node)) => Regarding::node(node),
        (Event::OnNode(_) | Event::OnAgentPod(_), _) => {
            let (Some(name), Some(namespace)) = (&settings.pod_name, &own_namespace) else {
                return Ok(());
            };
            Regarding { kind: "Pod", namespace, name, uid: &claims.kubernetes.pod.uid }
        }
    };
    // The API requires an instance, and upstream's chart does not tell the agent the name of its pod.
    let instance = settings.pod_name.as_deref().unwrap_or(USER_AGENT);
    let reporter = Reporter { controller: USER_AGENT, instance };
    Ok(event::publish(&client, reporter, regarding, event.content(), None)?)
}

/// Why an Event could not be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PostFailure {
    /// The agent's ServiceAccount may not create Events in the pod's namespace. Upstream's chart
    /// does not grant it.
    Forbidden,
    /// The API server rejects only this Event: its pod or namespace is gone or being deleted, its
    /// name is in use (409), or it is invalid (400, 422).
    Dropped,
    /// The API server is unreachable or busy, or does not accept the token.
    Unavailable,
}

impl PostFailure {
    fn of(error: &Error) -> PostFailure {
        let Error::Client(error) = error else {
            return PostFailure::Unavailable;
        };
        match error.code() {
            // A namespace that is being deleted rejects new objects, whatever RBAC allows.
            Some(403) if error.to_string().contains("being terminated") => PostFailure::Dropped,
            Some(403) => PostFailure::Forbidden,
            Some(401 | 408 | 429) => PostFailure::Unavailable,
            Some(400..=499) => PostFailure::Dropped,
            _ => PostFailure::Unavailable,
        }
    }
}

/// Posts the queued Events, and logs each kind of failure once.
#[derive(Default)]
pub struct EventPosting {
    last_problem: Option<PostFailure>,
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
                if self.last_problem.take().is_some() {
                    info!("Events are posted again");
                }
                continue;
            };
            let failure = PostFailure::of(&error);
            let now = Instant::now();
            match failure {
                // A Role may grant Events in the agent's own namespace alone.
                PostFailure::Forbidden => match event {
                    Event::OnPod(_) => api.state().events.close(now + FORBIDDEN_PAUSE),
                    Event::OnAgentPod(_) | Event::OnNode(_) => {}
                },
                PostFailure::Unavailable => {
                    let [shortest, longest] = UNAVAILABLE_PAUSE;
                    let end = now + between(shortest, longest);
                    api.state().events.put_back((queued, event), now, end);
                }
                PostFailure::Dropped => {
                    let reason = event.content().reason;
                    match event {
                        Event::OnPod(_) => debug!("cannot post an Event {reason}: {error}"),
                        _ => warn!("cannot post an Event {reason}: {error}"),
                    }
                    continue;
                }
            }
            if self.last_problem.replace(failure) == Some(failure) {
                continue;
            }
            match failure {
                PostFailure::Forbidden => warn!(
                    "cannot post Events, because the agent's ServiceAccount may not create Events (the chart's ClusterRole linkerd-cni-agent grants it, upstream's chart does not): {error}"
                ),
                _ => warn!("cannot post an Event: {error}"),
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
            request: String::new(),
            code,
            reason: None,
            message: message.into(),
            retry_after: None,
        })
    }

    #[test]
    fn only_a_missing_permission_drops_events_for_ten_minutes() {
        let ending = "events is forbidden: unable to create new content in namespace a because it is being terminated";
        for (error, wanted) in [
            (status(403, "events is forbidden"), PostFailure::Forbidden),
            (status(403, ending), PostFailure::Dropped),
            (status(404, "namespaces \"a\" not found"), PostFailure::Dropped),
            (status(400, "bad request"), PostFailure::Dropped),
            (status(413, "too large"), PostFailure::Dropped),
            (status(422, "invalid"), PostFailure::Dropped),
            (status(401, "Unauthorized"), PostFailure::Unavailable),
            (status(408, "timeout"), PostFailure::Unavailable),
            (status(429, "slow down"), PostFailure::Unavailable),
            (status(503, "x"), PostFailure::Unavailable),
        ] {
            assert_eq!(PostFailure::of(&error), wanted, "{error}");
        }
    }
}
