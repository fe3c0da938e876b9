//! Lists and watches the node's pods, and queues those that are stranded. The worker
//! repairs them.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::api_path::{list_path, watch_path};
use super::pace::{Relist, retries, watch_time};
use super::pod_stream::{self, PodList, WatchEvent};
use super::stranded_pod::{FoundBy, StrandedPod};
use super::{Shared, WATCH_READ_TIMEOUT};
use crate::backoff::jitter;
use crate::kube;
use crate::kube::connection::{self, Connection};
use crate::kube::retry::Retry;

/// Longest wait before the first list, so that controllers that start together on many
/// nodes do not list together.
const START_SPREAD: Duration = Duration::from_secs(5);

/// A watch that lasts at least this long resets the backoff.
const STEADY: Duration = Duration::from_secs(60);

/// How much earlier than its `timeoutSeconds` a watch may end without being a failure.
const EARLY_END_TOLERANCE: Duration = Duration::from_secs(10);

/// Longest wait taken from a `Retry-After` header.
const RETRY_AFTER_CAP: Duration = Duration::from_secs(60);

/// Watches the node's pods.
pub struct PodWatch {
    pub connection: Connection,
    pub node: String,
    pub shared: Arc<Shared>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error("incomplete or unexpected response of the API server: {}", kube::redact::problem(.0))]
    InvalidResponse(#[from] serde_json::Error),
    #[error("the API server ended the watch with status {code}: {message}")]
    ServerStatus { code: u16, message: String },
    #[error("the watch ended after {lasted:.0?} instead of {requested:.0?}")]
    EndedEarly { lasted: Duration, requested: Duration },
}

impl Error {
    /// Whether only a new list recovers from the error.
    fn needs_new_list(&self) -> bool {
        match self {
            Error::Request(error) => error.code() == Some(410),
            // A new list recovers from every error that the API server sends inside a watch.
            Error::ServerStatus { .. } => true,
            _ => false,
        }
    }

    /// Wait that the API server requests by a `Retry-After` header; zero without the header.
    fn retry_after(&self) -> Duration {
        match self {
            Error::Request(error) => capped_retry_after(error.retry()),
            _ => Duration::ZERO,
        }
    }
}

/// Returns the wait of a `Retry-After` header, capped, plus up to half of it as jitter:
/// the API server sends the same header to all nodes.
fn capped_retry_after(retry: Retry) -> Duration {
    match retry {
        Retry::After(wait) => {
            let wait = wait.min(RETRY_AFTER_CAP);
            wait + jitter(wait / 2)
        }
        _ => Duration::ZERO,
    }
}

/// One list or watch request.
struct RequestProgress {
    began: Instant,
    /// Whether the watch has received an event or a bookmark.
    received: bool,
}

impl RequestProgress {
    fn begin() -> Self {
        RequestProgress { began: Instant::now(), received: false }
    }

    /// Whether the next watch may continue from the last resourceVersion after `error`.
    ///
    /// After a long watch without a single bookmark, a new list is needed: if etcd was
    /// restored from a backup, resourceVersions restart at a lower number, and a watch from
    /// the old, higher number receives nothing.
    fn can_continue(&self, error: &Error, now: Instant) -> bool {
        let is_silent = !self.received && now - self.began >= WATCH_READ_TIMEOUT;
        !error.needs_new_list() && !is_silent
    }
}

impl PodWatch {
    /// Runs until the process exits; there is no state to clean up.
    ///
    /// Without failures, sends one request in 30 to 60 minutes. After a failure, waits with
    /// jitter and backoff before the next request: a restart of the API server ends the
    /// watches of all nodes at once. Only a watch of at least a minute resets the backoff.
    pub fn run(mut self) {
        thread::sleep(jitter(START_SPREAD));
        let mut backoff = retries();
        let mut relist = Relist::new(Instant::now());
        let mut version = None;
        loop {
            let mut request = RequestProgress::begin();
            let result = match &mut version {
                None => self.list().map(|listed| {
                    relist.listed(Instant::now());
                    version = Some(listed);
                }),
                Some(version) => {
                    let result = self.watch(version, &mut request, &relist);
                    if request.began.elapsed() >= STEADY {
                        backoff.reset();
                    }
                    result
                }
            };
            let now = Instant::now();
            if self.must_list_again(&relist, now) {
                version = None;
            }
            let Err(error) = result else { continue };
            if !request.can_continue(&error, now) {
                version = None;
            }
            let wait = backoff.next_delay().max(error.retry_after());
            self.shared.metrics.watch_errors.inc();
            self.shared.readiness.record_failure(error.to_string());
            tracing::warn!(err = %error, "Cannot watch the pods of this node; retrying in {wait:.1?}");
            thread::sleep(wait);
        }
    }

    /// Whether unrepaired pods need a new list and enough time has passed since the last list.
    fn must_list_again(&self, relist: &Relist, now: Instant) -> bool {
        self.shared.unrepaired.needs_list(now) && relist.is_due(now)
    }

    /// Lists the node's pods and returns the list's resourceVersion.
    ///
    /// The list comes from the API server's cache. It may be older than the last watch event,
    /// e.g. if another API server responds. An old list is safe:
    ///
    /// - No change is lost, because the watch continues from the list's own version and
    ///   repeats all events since then.
    /// - No repair relies on the list alone: a deletion has UID and resourceVersion as
    ///   preconditions, and in the other modes the worker reads the pod again.
    fn list(&mut self) -> Result<String, Error> {
        let response = self.connection.client()?.read_list(&list_path(&self.node))?;
        self.shared.unrepaired.clear();
        let PodList { resource_version, pods, dropped } = pod_stream::list(response)?;
        let stranded = pods.into_iter().filter(|pod| self.accept_stranded(pod)).collect();
        self.shared.queue.replace_listed(stranded);
        for _ in 0..dropped {
            self.shared.record_dropped(FoundBy::Validator);
        }
        self.shared.readiness.record_list();
        Ok(resource_version)
    }

    /// Watches from `version` on. Updates `version`, from which the next watch continues.
    fn watch(
        &mut self,
        version: &mut String,
        request: &mut RequestProgress,
        relist: &Relist,
    ) -> Result<(), Error> {
        let requested = watch_time();
        let path = watch_path(&self.node, version, requested);
        let response = self.connection.client()?.watch(&path)?;
        self.shared.readiness.record_contact();
        for event in pod_stream::events(response) {
            let seen_version = match event? {
                WatchEvent::Error { code, message } => {
                    let message = kube::redact::message(&message, self.connection.token());
                    return Err(Error::ServerStatus { code, message });
                }
                WatchEvent::Other { version } => version,
                WatchEvent::Pod { version, stranded } => {
                    if let Some(pod) = stranded.filter(|pod| self.accept_stranded(pod)) {
                        self.shared.enqueue(pod);
                    }
                    version
                }
            };
            if !seen_version.is_empty() {
                *version = seen_version;
            }
            request.received = true;
            self.shared.readiness.record_contact();
            // If etcd reports its progress, a bookmark arrives about once a minute, so the list is
            // late by a minute at most.
            if self.must_list_again(relist, Instant::now()) {
                return Ok(());
            }
        }
        let lasted = request.began.elapsed();
        if lasted + EARLY_END_TOLERANCE < requested {
            return Err(Error::EndedEarly { lasted, requested });
        }
        Ok(())
    }

    /// Whether to repair the pod: not if a server that ignores the selector returns the pod of
    /// another node. Logs an accepted pod.
    fn accept_stranded(&self, pod: &StrandedPod) -> bool {
        if pod.is_on_other_node(&self.node) {
            return false;
        }
        tracing::debug!(namespace = pod.namespace, name = pod.name, "Pod is stranded");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_continues_unless_its_version_expired_or_it_received_nothing_for_long() {
        let request = |received| RequestProgress { began: Instant::now(), received };
        let ended_early =
            || Error::EndedEarly { lasted: Duration::ZERO, requested: WATCH_READ_TIMEOUT };
        let expired = Error::ServerStatus { code: 410, message: String::new() };
        let now = Instant::now();
        let later = now + 2 * WATCH_READ_TIMEOUT;
        for (name, received, error, now, expected) in [
            ("ended early", true, ended_early(), now, true),
            ("ended early after a long time", true, ended_early(), later, true),
            ("ended at once", false, ended_early(), now, true),
            ("received nothing for long", false, ended_early(), later, false),
            ("expired", true, expired, now, false),
        ] {
            assert_eq!(request(received).can_continue(&error, now), expected, "{name}");
        }
    }

    #[test]
    fn the_wait_of_a_retry_after_header_is_respected_up_to_a_cap() {
        let second = Duration::from_secs(1);
        for (seconds, least, most) in [(0, 0, 0), (10, 10, 15), (3600, 60, 90)] {
            let wait = capped_retry_after(Retry::After(second * seconds));
            assert!(second * least <= wait && wait <= second * most, "{wait:?}");
        }
        assert_eq!(capped_retry_after(Retry::Soon), Duration::ZERO);
    }
}
