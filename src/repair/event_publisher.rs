//! Publishes the controller's Events, and counts and logs failed publications.
//!
//! An Event that cannot be posted waits in the [`Outbox`], from which a thread posts it again. So
//! whoever reports a state, or its end, need not remember whether the report has arrived.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::find::stranded::FoundPod;
use super::pod_events::skip_event;
use super::settings::date_of;
use super::{CONTROLLER, Shared};
use crate::backoff::{Backoff, Limits};
use crate::kube;
use crate::kube::connection::{self, Connection};
use crate::kube::event::{self, EventContent, Regarding, Reporter};

/// First and longest wait before the waiting Events are posted again.
const RETRIES: Limits = [Duration::from_secs(5), Duration::from_secs(300)];
/// Longest time for which an Event waits: the time after which the API server deletes Events. The
/// report that an older Event would end has been deleted, too.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Maximum number of waiting Events. At the maximum, the one that has waited longest is dropped.
const MAX_WAITING: usize = 256;
/// Number of namespaces in which the API server may deny Events before the other Events wait, too.
/// With so many, the account probably lacks the permission to create Events. Without a limit, a
/// node would then send a request for each namespace of its pods after each wait.
const MAX_DENIED_NAMESPACES: usize = 8;

#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
}

impl PublishError {
    /// Whether the API server denies the Event. A ResourceQuota or an admission webhook may deny
    /// the Events of one namespace, and a missing permission those of all namespaces.
    fn is_denied(&self) -> bool {
        matches!(self, PublishError::Request(error)
            if error.is_kubernetes_status() && error.code() == Some(403))
    }
}

/// Result of an attempt to post an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// The API server has accepted the Event, or rejects it whenever it is posted.
    Done,
    /// The API server denies the Event, and may accept Events in other namespaces.
    Denied,
    /// Other Events would probably fail, too: the API server is unreachable or overloaded.
    Failed,
}

/// An Event that is posted until the API server has accepted or rejected it.
struct WaitingEvent {
    object: EventObject,
    content: EventContent,
    /// When the Event happened. This is its date, whenever it is posted: of several Events on one
    /// object, the one with the newest date says what applies, also if an older one is posted later.
    happened: Instant,
    since: Instant,
}

impl WaitingEvent {
    /// Whether `newer` is of the same report as this Event, and so says what applies now. Events
    /// with the same reason and different actions are different reports: for example, the Event
    /// [`AUDITED`](super::pod_events::AUDITED) does not say whether audits fail.
    fn is_replaced_by(&self, newer: &WaitingEvent) -> bool {
        self.object.uid == newer.object.uid
            && self.content.reason == newer.content.reason
            && self.content.action == newer.content.action
    }
}

/// The object that a waiting Event is about. The fields are those of [`Regarding`].
struct EventObject {
    kind: &'static str,
    namespace: String,
    name: String,
    uid: String,
}

impl EventObject {
    fn regarding(&self) -> Regarding<'_> {
        let EventObject { kind, namespace, name, uid } = self;
        Regarding { kind, namespace, name, uid }
    }
}

impl From<Regarding<'_>> for EventObject {
    fn from(Regarding { kind, namespace, name, uid }: Regarding<'_>) -> EventObject {
        let [namespace, name, uid] = [namespace, name, uid].map(str::to_owned);
        EventObject { kind, namespace, name, uid }
    }
}

/// The Events that could not be posted. Those of namespaces in which the API server denies Events
/// come last. Apart from that, the oldest comes first.
#[derive(Default)]
pub struct Outbox {
    /// Locked while an Event is posted, so that a newer Event of the same report finds the older one
    /// posted or waiting.
    waiting: Mutex<VecDeque<WaitingEvent>>,
    added: Condvar,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<WaitingEvent>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is an Event to post again.
    fn wait_for_event(&self) {
        let waiting = self.lock();
        let is_empty = |waiting: &mut VecDeque<WaitingEvent>| waiting.is_empty();
        drop(self.added.wait_while(waiting, is_empty).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Shared {
    /// Counts and logs why a pod is left unchanged for now, and publishes an Event with the same
    /// text.
    pub fn publish_skip(&self, connection: &mut Connection, pod: &FoundPod, why: &str) {
        self.metrics.pods_skipped.inc();
        let FoundPod { namespace, name, found_by, .. } = pod;
        let event = skip_event(*found_by, why);
        tracing::warn!(namespace, name, "{}", event.note);
        self.publish_event(connection, Regarding::from(pod), &event);
    }

    /// Publishes an Event. After a failure, which is counted and logged, the Event is posted again
    /// later.
    pub fn publish_event(
        &self,
        connection: &mut Connection,
        regarding: Regarding<'_>,
        content: &EventContent,
    ) {
        self.publish_earlier_event(connection, regarding, content, Instant::now());
    }

    /// Like [`Shared::publish_event`], for an Event that `happened` earlier.
    pub fn publish_earlier_event(
        &self,
        connection: &mut Connection,
        regarding: Regarding<'_>,
        content: &EventContent,
        happened: Instant,
    ) {
        let event = WaitingEvent {
            object: EventObject::from(regarding),
            content: content.clone(),
            happened,
            since: Instant::now(),
        };
        let mut waiting = self.outbox.lock();
        waiting.retain(|earlier| !earlier.is_replaced_by(&event));
        if self.post(connection, &event) == Attempt::Done {
            return;
        }
        if waiting.len() >= MAX_WAITING {
            drop_oldest(&mut waiting);
        }
        waiting.push_back(event);
        self.outbox.added.notify_all();
    }

    /// Posts the waiting Events again until the process exits.
    pub fn retry_events(&self, mut connection: Connection) {
        let mut backoff = Backoff::spread(RETRIES);
        loop {
            self.outbox.wait_for_event();
            thread::sleep(backoff.next_delay());
            if self.post_waiting(&mut connection) {
                backoff.reset();
            }
            // The connection would only hold memory.
            connection.close();
        }
    }

    /// Tries to post each waiting Event once, but of a namespace in which the API server denies
    /// Events only one. Ends early after a failure that concerns all Events. Returns whether the
    /// next wait may be short: whether Events were posted, or none is left.
    fn post_waiting(&self, connection: &mut Connection) -> bool {
        let mut denied_namespaces = BTreeSet::new();
        let mut has_posted = false;
        loop {
            let mut waiting = self.outbox.lock();
            waiting.retain(|event| event.since.elapsed() < LONGEST_WAIT);
            let may_be_posted =
                |event: &WaitingEvent| !denied_namespaces.contains(&event.object.namespace);
            let Some(index) = waiting.iter().position(may_be_posted) else {
                return has_posted || waiting.is_empty();
            };
            match self.post(connection, &waiting[index]) {
                Attempt::Done => {
                    waiting.remove(index);
                    has_posted = true;
                }
                Attempt::Denied => {
                    let namespace = waiting[index].object.namespace.clone();
                    move_to_back(&mut waiting, &namespace);
                    denied_namespaces.insert(namespace);
                    if denied_namespaces.len() >= MAX_DENIED_NAMESPACES {
                        return false;
                    }
                }
                Attempt::Failed => return false,
            }
        }
    }

    /// Posts an Event, and counts and logs a failure.
    fn post(&self, connection: &mut Connection, event: &WaitingEvent) -> Attempt {
        let began = Instant::now();
        let error = match self.try_to_post(connection, event) {
            Ok(()) => {
                let took = began.elapsed().as_secs_f64();
                self.metrics.events_publish_latency_seconds.observe(took);
                return Attempt::Done;
            }
            Err(error) => error,
        };
        if matches!(&error, PublishError::Request(error) if error.is_timeout()) {
            self.metrics.events_publish_timeouts.inc();
        } else {
            self.metrics.events_publish_errors.inc();
        }
        let EventObject { namespace, name, .. } = &event.object;
        tracing::warn!(err = %error, namespace, name, "Error publishing event");
        if matches!(&error, PublishError::Request(error) if event::is_rejected(error)) {
            Attempt::Done
        } else if error.is_denied() {
            Attempt::Denied
        } else {
            Attempt::Failed
        }
    }

    fn try_to_post(
        &self,
        connection: &mut Connection,
        event: &WaitingEvent,
    ) -> Result<(), PublishError> {
        let reporter = Reporter { controller: CONTROLLER, instance: &self.settings.pod_name };
        let regarding = event.object.regarding();
        let date = date_of(event.happened, Instant::now(), SystemTime::now());
        event::publish_dated(&connection.client()?, reporter, regarding, &event.content, date)?;
        Ok(())
    }
}

/// Moves the Events of the namespace behind all others, so that the next Events to be posted are
/// those of other namespaces.
fn move_to_back(waiting: &mut VecDeque<WaitingEvent>, namespace: &str) {
    // The sort is stable, so that the order stays the same apart from that.
    waiting.make_contiguous().sort_by_key(|event| event.object.namespace == namespace);
}

fn drop_oldest(waiting: &mut VecDeque<WaitingEvent>) {
    let oldest = (0..waiting.len()).min_by_key(|index| waiting[*index].since);
    if let Some(index) = oldest {
        waiting.remove(index);
    }
}

#[cfg(test)]
mod tests;
