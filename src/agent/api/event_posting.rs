//! Posts Events on the agent's own pod and on other pods of this node, and pauses after a failure.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::claims::Claims;
use super::pod_event_queue::PodEvent;
use super::{AgentObject, Api, USER_AGENT, namespace};
use crate::agent::settings::Settings;
use crate::backoff::between;
use crate::kube::connection::{Connection, Error};
use crate::kube::event::{self, EventContent, Regarding, Reporter};

/// Shortest and longest pause after a temporary failure, such as an unreachable API server. Random,
/// because the failure may hit all nodes at once.
const UNAVAILABLE_PAUSE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(180)];
/// How long new Events are dropped after the API server rejected an Event with HTTP 403.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(600);

/// Posts `content` as an Event on the agent's own pod or node. Does nothing if the settings do not
/// name it. The pod's UID, which `kubectl describe` needs to find the Event, comes from the
/// agent's token.
pub fn post(
    connection: &mut Connection,
    settings: &Settings,
    object: AgentObject,
    content: &EventContent,
) -> Result<(), Error> {
    if let (AgentObject::Node, Some(node)) = (object, settings.node_name.as_deref()) {
        let client = connection.client()?;
        return Ok(event::publish(
            &client,
            &reporter(settings),
            Regarding::node(node),
            content,
            None,
        )?);
    }
    let (Some(pod), Some(namespace)) = (settings.pod_name.as_deref(), namespace(settings)) else {
        return Ok(());
    };
    let client = connection.client()?;
    let claims = connection.token().and_then(Claims::read).unwrap_or_default();
    let reporter = reporter(settings);
    let regarding = Regarding {
        kind: "Pod",
        namespace: &namespace,
        name: pod,
        uid: &claims.kubernetes.pod.uid,
    };
    Ok(event::publish(&client, &reporter, regarding, content, None)?)
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

/// Posts Events on pods, and logs each kind of failure once.
#[derive(Default)]
pub struct PodEventPosting {
    last_problem: Option<PostFailure>,
}

impl PodEventPosting {
    /// Posts all Events that are due. If the API server is unavailable, the Event is retried: many
    /// Events report that very outage.
    pub fn run(&mut self, api: &Api, connection: &mut Connection) {
        loop {
            let Some((queued, event)) = api.pod_events().take(Instant::now()) else {
                return;
            };
            let Err(error) = post_on_pod(connection, &api.settings, &event) else {
                if self.last_problem.take().is_some() {
                    info!("Events on pods are posted again");
                }
                continue;
            };
            let failure = PostFailure::of(&error);
            let now = Instant::now();
            match failure {
                PostFailure::Forbidden => api.pod_events().close(now + FORBIDDEN_PAUSE),
                PostFailure::Unavailable => {
                    let [shortest, longest] = UNAVAILABLE_PAUSE;
                    let end = now + between(shortest, longest);
                    api.pod_events().put_back((queued, event), now, end);
                }
                PostFailure::Dropped => {
                    debug!("cannot post an Event on pod {}: {error}", event.pod);
                    continue;
                }
            }
            if self.last_problem.replace(failure) == Some(failure) {
                continue;
            }
            match failure {
                PostFailure::Forbidden => warn!(
                    "cannot post Events on pods, because the agent's ServiceAccount may not create Events (the chart's ClusterRole linkerd-cni-agent grants it, upstream's chart does not): {error}"
                ),
                _ => warn!("cannot post an Event on a pod: {error}"),
            }
        }
    }
}

/// Posts an Event on another pod.
fn post_on_pod(
    connection: &mut Connection,
    settings: &Settings,
    event: &PodEvent,
) -> Result<(), Error> {
    let regarding =
        Regarding { kind: "Pod", namespace: &event.namespace, name: &event.pod, uid: &event.uid };
    let client = connection.client()?;
    let reporter = reporter(settings);
    Ok(event::publish(&client, &reporter, regarding, &event.content, None)?)
}

/// Names the agent as the source of an Event. The API requires an instance, and upstream's chart
/// does not tell the agent the name of its pod, so the agent's own name is the fallback.
fn reporter(settings: &Settings) -> Reporter {
    Reporter {
        controller: USER_AGENT,
        instance: settings.pod_name.clone().unwrap_or_else(|| USER_AGENT.into()),
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
