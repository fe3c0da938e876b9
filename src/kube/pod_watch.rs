//! Lists and watches the pods of one node, or one pod.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::connection::{self, Connection};
use super::pod_list::{self, FromPod, PodList};
use super::types::{ApiStatus, Metadata, Pod};
use super::watch_events::{self, WatchEvent};
use super::{Deadlines, FORBIDDEN, RESPONSE_TIMEOUT, Retry, redact};
use crate::backoff::{Backoff, Limits, between, jitter};

/// First and longest wait before a failed request is sent again. A restart of the API server ends
/// the watches of all nodes at once, so the first retries are spread over the first of these times.
pub const RETRIES: Limits = [Duration::from_secs(5), Duration::from_secs(30)];

/// A watch that lasts at least this long resets the backoff.
const STEADY: Duration = Duration::from_secs(60);

/// Shortest `timeoutSeconds` of a watch; the longest is twice as long. The API server uses the same
/// times for watches without `timeoutSeconds` (`--min-request-timeout`).
///
/// An idle node sends less than one request in 5 minutes, the agent's requests included. With
/// watches of 5 to 10 minutes, as client-go has them, it would send 1.3.
const WATCH_TIME: Duration = Duration::from_secs(1800);

/// How much before its `timeoutSeconds` a watch may end without counting as a failure.
const EARLY_END_TOLERANCE: Duration = Duration::from_secs(10);

/// Longest time without data in a watch. If etcd reports its progress, the API server sends a
/// bookmark about once a minute, so a connection without data for longer is dead, even without a
/// TCP error. If etcd does not report its progress, a watch without changes times out, too, and the
/// pods are listed again (`docs/limits.md`).
const READ_TIMEOUT: Duration = Duration::from_secs(150);
pub const DEADLINES: Deadlines =
    Deadlines { connect: RESPONSE_TIMEOUT, response: RESPONSE_TIMEOUT, body: READ_TIMEOUT };

/// Longest wait taken from a `Retry-After` header.
const RETRY_AFTER_CAP: Duration = Duration::from_secs(60);

/// Which pods are listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The pods of this node, in all namespaces.
    Node(String),
    /// The pod of this name, if it exists.
    Pod { namespace: String, name: String },
}

impl Selection {
    fn path(&self) -> String {
        let (resource, field) = match self {
            Selection::Node(node) => ("pods".to_owned(), format!("spec.nodeName={node}")),
            Selection::Pod { namespace, name } => {
                (format!("namespaces/{namespace}/pods"), format!("metadata.name={name}"))
            }
        };
        format!("/api/v1/{resource}?fieldSelector={}", encode(&field))
    }
}

pub enum Update<'a, T> {
    /// The pods of a complete list. `dropped` further pods exceed
    /// [`MAX_PODS`](pod_list::MAX_PODS).
    Listed {
        pods: Vec<T>,
        dropped: usize,
    },
    Changed(T),
    /// A pod that has ended for good, and that [`FromPod`] drops.
    Ended(Metadata),
    Deleted(Metadata),
    /// A watch began: the API server accepted its request.
    Opened,
    /// Data from the API server that is about no kept pod, and shows that the watch is alive.
    Alive,
    /// A request failed. The next request follows after `wait`.
    Failed {
        error: &'a Error,
        wait: Duration,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] super::Error),
    #[error("incomplete or unexpected response of the API server: {}", redact::describe_json_error(.0))]
    InvalidResponse(#[from] serde_json::Error),
    #[error("the API server ended the watch with status {code}: {message}")]
    ServerStatus { code: u16, message: String },
    #[error("the watch ended after {lasted:.0?} instead of {requested:.0?}")]
    EndedEarly { lasted: Duration, requested: Duration },
}

impl Error {
    /// Returns whether the API server denied the request: whether the account lacks a permission.
    /// The 403 of a proxy in front of the API server says nothing about permissions.
    pub fn is_denied(&self) -> bool {
        matches!(self, Error::Request(error) if error.is_status(403, FORBIDDEN))
    }

    fn needs_new_list(&self) -> bool {
        match self {
            Error::Request(error) => error.code() == Some(410),
            // A new list recovers from every error that the API server sends inside a watch.
            Error::ServerStatus { .. } => true,
            _ => false,
        }
    }

    /// Returns the wait that the API server requests by a `Retry-After` header, at most
    /// [`RETRY_AFTER_CAP`]. Up to half of the wait is added as jitter, because the API server sends
    /// the same header to all nodes. Zero without the header.
    fn retry_after(&self) -> Duration {
        if let Error::Request(error) = self
            && let Retry::After(wait) = error.retry()
        {
            let wait = wait.min(RETRY_AFTER_CAP);
            return wait + jitter(wait / 2);
        }
        Duration::ZERO
    }
}

/// Lists the selected pods, and returns those that are kept.
///
/// The pods are not selected by the label that the proxy injector sets, as upstream's controller
/// does: the plugin also redirects a pod whose author added the proxy. It decides by the containers
/// and annotations, for which the API has no selector.
///
/// `resourceVersion=0` accepts any version, so that every supported API server reads from its watch
/// cache, which has an index by node. Without `resourceVersion=0`, API servers before 1.31 read all
/// pods of the cluster from etcd. Later API servers do so if the request has a `limit`. So the list
/// may be older than the last event of a watch, e.g. if another API server responds. No change is
/// lost, because a watch continues from the list's own version and repeats all events since then.
pub fn list_pods<T: FromPod>(
    connection: &mut Connection,
    selection: &Selection,
) -> Result<PodList<T>, Error> {
    let path = format!("{}&resourceVersion=0", selection.path());
    Ok(pod_list::parse_list(connection.client()?.read_list(&path)?)?)
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Lists and watches the selected pods until the process exits; there is no state to clean up.
/// Calls `on_update` for each list, event and failure. If it returns `Break`, the pods are listed
/// again instead of continuing the watch. Waits before the first list, at most for `spread`, so
/// that programs that start together on many nodes do not list together.
///
/// Without failures, sends one request in 30 to 60 minutes. After a failure, waits with jitter and
/// backoff before the next request. Only a watch of at least a minute resets the backoff.
pub fn run<T: FromPod>(
    mut connection: Connection,
    selection: &Selection,
    spread: Duration,
    mut on_update: impl FnMut(Update<'_, T>) -> ControlFlow<()>,
) {
    thread::sleep(jitter(spread));
    let mut backoff = Backoff::spread(RETRIES);
    // The version from which the next watch continues. `None`: the pods have to be listed first.
    let mut version: Option<String> = None;
    loop {
        let result = match version.take() {
            None => match list_and_report(&mut connection, selection, &mut on_update) {
                Ok(list_version) => {
                    version = Some(list_version);
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Some(start_version) => {
                let started = Instant::now();
                let mut watch = Watch::from_version(&start_version);
                let result = watch.run(&mut connection, selection, &mut on_update);
                let duration = started.elapsed();
                if duration >= STEADY {
                    backoff.reset();
                }
                version = next_version(&start_version, watch.last_version, duration, &result);
                result.map(drop)
            }
        };
        let Err(error) = result else {
            continue;
        };
        let wait = backoff.next_delay().max(error.retry_after());
        if on_update(Update::Failed { error: &error, wait }).is_break() {
            version = None;
        }
        thread::sleep(wait);
    }
}

/// Lists the pods, and calls `on_update` with them. Returns the version of the list.
fn list_and_report<T: FromPod>(
    connection: &mut Connection,
    selection: &Selection,
    on_update: &mut impl FnMut(Update<'_, T>) -> ControlFlow<()>,
) -> Result<String, Error> {
    let result = list_pods(connection, selection);
    // The connection would only hold memory, because the watch opens one of its own.
    connection.close();
    let PodList { resource_version, pods, dropped } = result?;
    // A request for a new list is ignored, because this list is new.
    let _ = on_update(Update::Listed { pods, dropped });
    Ok(resource_version)
}

/// A watch, and the version up to which it has received events.
struct Watch {
    /// Version of the last event or bookmark. Before the first one, the version from which the
    /// watch begins.
    last_version: String,
}

impl Watch {
    fn from_version(version: &str) -> Watch {
        Watch { last_version: version.to_owned() }
    }

    /// Watches until the API server ends the watch. Returns `Break` if `on_update` requested a new
    /// list.
    fn run<T: FromPod>(
        &mut self,
        connection: &mut Connection,
        selection: &Selection,
        on_update: &mut impl FnMut(Update<'_, T>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        let started = Instant::now();
        // The time is random, so that the watches of many nodes do not end together if they begin
        // together. The API takes whole seconds.
        let requested = Duration::from_secs(between(WATCH_TIME, 2 * WATCH_TIME).as_secs());
        let path = format!(
            "{}&watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
            selection.path(),
            requested.as_secs(),
            encode(&self.last_version)
        );
        let response = connection.client()?.watch(&path)?;
        if on_update(Update::Opened).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        for event in watch_events::parse_events(response) {
            let (version, update) = match event? {
                WatchEvent::Error(ApiStatus { code, message, .. }) => {
                    let message =
                        redact::redact_message(&message.unwrap_or_default(), connection.token());
                    return Err(Error::ServerStatus { code, message });
                }
                WatchEvent::Bookmark(object) => (object.metadata.resource_version, Update::Alive),
                WatchEvent::Deleted(object) => {
                    (object.metadata.resource_version.clone(), Update::Deleted(object.metadata))
                }
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    (pod.metadata.resource_version.clone(), update_from_pod(pod))
                }
            };
            if !version.is_empty() {
                self.last_version = version;
            }
            if on_update(update).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let lasted = started.elapsed();
        if lasted + EARLY_END_TOLERANCE < requested {
            return Err(Error::EndedEarly { lasted, requested });
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns the update for a pod that was added or changed.
fn update_from_pod<T: FromPod>(pod: Pod) -> Update<'static, T> {
    let ended = if pod.status.has_ended() { Some(pod.metadata.clone()) } else { None };
    match (T::from_pod(pod), ended) {
        (Some(kept), _) => Update::Changed(kept),
        (None, Some(metadata)) => Update::Ended(metadata),
        (None, None) => Update::Alive,
    }
}

/// Returns the version from which the next watch continues. `None` if the pods have to be listed
/// again. The watch that has ended began at `start_version`, and received events up to
/// `last_version`.
///
/// A new list is needed after a long watch without a newer version: if etcd was restored from a
/// backup, resourceVersions restart at a lower number, and a watch from the old, higher number
/// receives nothing.
fn next_version(
    start_version: &str,
    last_version: String,
    duration: Duration,
    result: &Result<ControlFlow<()>, Error>,
) -> Option<String> {
    let received_nothing = last_version == start_version && duration >= READ_TIMEOUT;
    let can_continue = match result {
        Ok(flow) => flow.is_continue(),
        Err(error) => !error.needs_new_list() && !received_nothing,
    };
    if can_continue { Some(last_version) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_path_selects_the_pods_of_a_node_or_one_pod() {
        let pod = Selection::Pod { namespace: "mesh".into(), name: "cni-x".into() };
        let path_of_pod = "/api/v1/namespaces/mesh/pods?fieldSelector=metadata%2Ename%3Dcni%2Dx";
        assert_eq!(pod.path(), path_of_pod);
        let path_of_node = "/api/v1/pods?fieldSelector=spec%2EnodeName%3Dnode%2D1";
        assert_eq!(Selection::Node("node-1".into()).path(), path_of_node);
    }

    #[test]
    fn watch_continues_unless_its_version_is_expired_or_old() {
        let ended_early = || Err(Error::EndedEarly { lasted: STEADY, requested: WATCH_TIME });
        let expired = Err(Error::ServerStatus { code: 410, message: String::new() });
        let short = Duration::ZERO;
        let long = 2 * READ_TIMEOUT;
        for (name, last, end, lasted, continues) in [
            ("ended in time", "8", Ok(ControlFlow::Continue(())), long, true),
            ("a list is wanted", "8", Ok(ControlFlow::Break(())), short, false),
            ("ended early", "8", ended_early(), short, true),
            ("ended early after a long time", "8", ended_early(), long, true),
            ("ended at once", "7", ended_early(), short, true),
            ("received nothing for long", "7", ended_early(), long, false),
            ("expired", "8", expired, short, false),
        ] {
            let next = next_version("7", last.into(), lasted, &end);
            let expected = if continues { Some(last) } else { None };
            assert_eq!(next.as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn retry_after_header_is_respected_up_to_a_cap() {
        for (seconds, least, most) in
            [(None, 0, 0), (Some(0), 0, 0), (Some(10), 10, 15), (Some(3600), 60, 90)]
        {
            let error = Error::Request(super::super::Error::Status {
                request: String::new(),
                code: 429,
                reason: None,
                message: String::new(),
                retry_after: seconds.map(Duration::from_secs),
            });
            let wait = error.retry_after();
            let range = Duration::from_secs(least)..=Duration::from_secs(most);
            assert!(range.contains(&wait), "{seconds:?}: {wait:?}");
        }
    }
}
