//! Follows the node's meshed pods: lists them, watches them from there, and goes on
//! where a watch ended. Finds; never acts.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::connection::{self, Connection};
use super::pace::{Pace, Relist, watch_time};
use super::pod_stream;
use super::pod_stream::{Event, PodList};
use super::verdict::Stranded;
use super::{SILENCE, Shared};
use crate::kube;
use crate::kube::backoff::jitter;
use crate::kube::retry::Retry;

/// Longest wait before the first list, so that controllers that start together on many
/// nodes do not list together.
const START: Duration = Duration::from_secs(2);

/// A watch that lasted this long resets the back-off.
const STEADY: Duration = Duration::from_secs(60);

/// How much earlier than its `timeoutSeconds` a watch may end without being a failure.
const EARLY: Duration = Duration::from_secs(10);

/// Longest wait taken from a `Retry-After` header.
const RETRY_AFTER_CAP: Duration = Duration::from_secs(60);

/// The one that watches.
pub struct Watch {
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
    #[error("the API server's answer broke off or is not what the API promises: {}", kube::redact::problem(.0))]
    Answer(#[from] serde_json::Error),
    #[error("the API server ended the watch: {code}: {message}")]
    Refused { code: u16, message: String },
    #[error("the API server ended the watch after {lasted:.0?} of {asked:.0?}")]
    Early { lasted: Duration, asked: Duration },
}

impl Error {
    /// Whether the pods' history no longer reaches back to where the watch was.
    fn is_expired(&self) -> bool {
        match self {
            Error::Request(error) => error.code() == Some(410),
            // Whatever the server says inside a watch, a new list is the cure.
            Error::Refused { .. } => true,
            _ => false,
        }
    }

    /// When the API server wants to be asked again, if it says so.
    fn retry_after(&self) -> Duration {
        match self {
            Error::Request(error) => asked_wait(error.retry()),
            _ => Duration::ZERO,
        }
    }
}

/// Returns the wait of a `Retry-After` header, capped, plus up to half of it as jitter:
/// the API server sends the same header to all nodes.
fn asked_wait(retry: Retry) -> Duration {
    match retry {
        Retry::After(wait) => {
            let wait = wait.min(RETRY_AFTER_CAP);
            wait + jitter(wait / 2)
        }
        _ => Duration::ZERO,
    }
}

/// One list or watch request.
struct Round {
    began: Instant,
    /// Whether the watch has brought an event or a bookmark.
    heard: bool,
}

impl Round {
    fn begin() -> Self {
        Round {
            began: Instant::now(),
            heard: false,
        }
    }

    /// Whether the next watch may continue from the last resourceVersion after `error`.
    /// A new list is needed after a watch without a single bookmark: after a restore of
    /// etcd from a backup, resourceVersions start lower, and a watch from the old, higher
    /// one stays silent.
    fn can_go_on(&self, error: &Error, now: Instant) -> bool {
        let is_mute = !self.heard && now - self.began >= SILENCE;
        !error.is_expired() && !is_mute
    }
}

impl Watch {
    /// Never ends; it keeps nothing that would have to be put in order at the end.
    ///
    /// Sends one request in 5 to 10 minutes while nothing fails. After every failure the
    /// next request waits with jitter and back-off, which only a watch of a minute resets:
    /// a restart of the API server ends the watches of all nodes at once.
    pub fn run(mut self) {
        thread::sleep(jitter(START));
        let mut pace = Pace::retries();
        let mut relist = Relist::new(Instant::now());
        let mut version = None;
        loop {
            let mut round = Round::begin();
            let result = match &mut version {
                None => self.list().map(|listed| {
                    relist.listed(Instant::now());
                    version = Some(listed);
                }),
                Some(version) => {
                    let result = self.watch(version, &mut round, &relist);
                    if round.began.elapsed() >= STEADY {
                        pace.reset();
                    }
                    result
                }
            };
            let now = Instant::now();
            if self.must_list_again(&relist, now) {
                version = None;
            }
            let Err(error) = result else { continue };
            if !round.can_go_on(&error, now) {
                version = None;
            }
            let wait = pace.lengthen().max(error.retry_after());
            self.shared.metrics.watch_errors.increment();
            self.shared.health.trouble(error.to_string());
            tracing::warn!(err = %error, "Cannot watch the pods of this node; next try in {wait:.1?}");
            thread::sleep(wait);
        }
    }

    /// Whether stranded pods were missed and enough time has passed since the last list.
    fn must_list_again(&self, relist: &Relist, now: Instant) -> bool {
        self.shared.missed.is_due(now) && relist.is_due(now)
    }

    /// Lists the node's pods and returns the list's resourceVersion.
    ///
    /// The list comes from the API server's cache and may be older than what the watch
    /// has seen, e.g. when another API server answers. An old list is safe. No change is
    /// lost, because the watch continues from the list's own version and repeats all
    /// events since then. No act trusts the list: a deletion has UID and resourceVersion
    /// as preconditions, and in the other modes the worker reads the pod again.
    fn list(&mut self) -> Result<String, Error> {
        let answer = self
            .connection
            .client()?
            .read_list(&list_path(&self.node))?;
        self.shared.missed.clear();
        let PodList {
            version,
            kept,
            dropped,
        } = pod_stream::list(answer)?;
        let stranded = kept.into_iter().filter(|pod| self.is_here(pod)).collect();
        self.shared.queue.give_list(stranded);
        for _ in 0..dropped {
            self.overflow();
        }
        self.shared.health.listed();
        Ok(version)
    }

    /// Watches from `version` on, which is then where the next watch begins.
    fn watch(
        &mut self,
        version: &mut String,
        round: &mut Round,
        relist: &Relist,
    ) -> Result<(), Error> {
        let asked = watch_time();
        let path = watch_path(&self.node, version, asked);
        let answer = self.connection.client()?.watch(&path)?;
        self.shared.health.heard();
        for event in pod_stream::events(answer) {
            let seen = match event? {
                Event::Error { code, message } => {
                    let message = kube::redact::message(&message, self.connection.token());
                    return Err(Error::Refused { code, message });
                }
                Event::Other { version } => version,
                Event::Pod { version, stranded } => {
                    if let Some(pod) = stranded.filter(|pod| self.is_here(pod))
                        && self.shared.queue.give(pod).is_err()
                    {
                        self.overflow();
                    }
                    version
                }
            };
            if !seen.is_empty() {
                *version = seen;
            }
            round.heard = true;
            self.shared.health.heard();
            // Bookmarks arrive once a minute, so a due list waits a minute at most.
            if self.must_list_again(relist, Instant::now()) {
                return Ok(());
            }
        }
        let lasted = round.began.elapsed();
        if lasted + EARLY < asked {
            return Err(Error::Early { lasted, asked });
        }
        Ok(())
    }

    fn is_here(&self, pod: &Stranded) -> bool {
        if pod.is_elsewhere(&self.node) {
            return false;
        }
        tracing::debug!(
            namespace = pod.namespace,
            name = pod.name,
            "Pod is stranded"
        );
        true
    }

    fn overflow(&self) {
        self.shared.metrics.queue_overflow.increment();
        self.shared.missed.add(Instant::now());
    }
}

/// Path of the list of the node's meshed pods in all namespaces.
///
/// `resourceVersion=0` accepts any version, so that every supported API server answers
/// from its watch cache, which has an index by node. Without it, API servers before 1.31,
/// and with a `limit` later ones too, read all pods of the cluster from etcd.
pub(super) fn list_path(node: &str) -> String {
    format!("/api/v1/pods?{}&resourceVersion=0", selectors(node))
}

fn watch_path(node: &str, version: &str, time: Duration) -> String {
    format!(
        "/api/v1/pods?{}&watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
        selectors(node),
        time.as_secs(),
        encode(version)
    )
}

fn selectors(node: &str) -> String {
    let field = encode(&format!("spec.nodeName={node}"));
    let label = encode("linkerd.io/control-plane-ns");
    format!("fieldSelector={field}&labelSelector={label}")
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_ask_for_the_nodes_meshed_pods_only() {
        let selectors = "fieldSelector=spec%2EnodeName%3Dnode%2D1\
                         &labelSelector=linkerd%2Eio%2Fcontrol%2Dplane%2Dns";
        let list = format!("/api/v1/pods?{selectors}&resourceVersion=0");
        assert_eq!(list_path("node-1"), list);
        let watch = format!(
            "/api/v1/pods?{selectors}&watch=true&allowWatchBookmarks=true&timeoutSeconds=301\
             &resourceVersion=42"
        );
        let time = Duration::from_secs(301);
        assert_eq!(watch_path("node-1", "42", time), watch);
    }

    #[test]
    fn a_watch_goes_on_unless_its_version_is_gone_or_nothing_came_for_long() {
        let round = |heard| Round {
            began: Instant::now(),
            heard,
        };
        let early = || Error::Early {
            lasted: Duration::ZERO,
            asked: SILENCE,
        };
        let refused = Error::Refused {
            code: 410,
            message: String::new(),
        };
        let now = Instant::now();
        let later = now + 2 * SILENCE;
        for (name, heard, error, now, expected) in [
            ("broken off", true, early(), now, true),
            ("broken off late", true, early(), later, true),
            ("broken off at once", false, early(), now, true),
            ("never anything", false, early(), later, false),
            ("expired", true, refused, now, false),
        ] {
            assert_eq!(round(heard).can_go_on(&error, now), expected, "{name}");
        }
    }

    #[test]
    fn an_api_server_that_names_a_time_is_not_asked_before() {
        let second = Duration::from_secs(1);
        for (says, least, most) in [(0, 0, 0), (10, 10, 15), (3600, 60, 90)] {
            let wait = asked_wait(Retry::After(second * says));
            assert!(second * least <= wait && wait <= second * most, "{wait:?}");
        }
        assert_eq!(asked_wait(Retry::Soon), Duration::ZERO);
    }
}
