//! Publishes the controller's Events, and counts and logs failed publications.
//!
//! An Event that cannot be posted waits in the [`Outbox`], from which a thread posts it again. So
//! whoever reports a state, or its end, need not remember whether the report has arrived.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::find::stranded::FoundPod;
use super::pod_events::skip_event;
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
/// Maximum number of waiting Events. At the maximum, the oldest is dropped.
const MAX_WAITING: usize = 256;

#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
}

impl PublishError {
    fn is_timeout(&self) -> bool {
        match self {
            PublishError::Request(error) => error.is_timeout(),
            PublishError::Connection(_) => false,
        }
    }

    /// Whether the API server rejects the Event whenever it is posted.
    fn is_rejection(&self) -> bool {
        match self {
            PublishError::Request(error) => event::is_rejected(error),
            PublishError::Connection(_) => false,
        }
    }
}

/// An Event that is posted until the API server has accepted or rejected it.
struct WaitingEvent {
    object: EventObject,
    content: EventContent,
    /// `None`: when the Event is posted.
    date: Option<SystemTime>,
    since: Instant,
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
    fn from(regarding: Regarding<'_>) -> EventObject {
        EventObject {
            kind: regarding.kind,
            namespace: regarding.namespace.to_owned(),
            name: regarding.name.to_owned(),
            uid: regarding.uid.to_owned(),
        }
    }
}

/// The Events that could not be posted, the oldest first.
#[derive(Default)]
pub struct Outbox {
    /// Locked while an Event is posted, so that of two Events on one object with one reason the
    /// newer one is also posted last: it says what applies.
    waiting: Mutex<VecDeque<WaitingEvent>>,
    added: Condvar,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<WaitingEvent>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is an Event to post again.
    fn wait_for_event(&self) {
        let mut waiting = self.lock();
        while waiting.is_empty() {
            waiting = self.added.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
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
        self.publish_event_dated(connection, regarding, content, None);
    }

    /// Like [`Shared::publish_event`], for an Event that happened at `date`.
    pub fn publish_event_dated(
        &self,
        connection: &mut Connection,
        regarding: Regarding<'_>,
        content: &EventContent,
        date: Option<SystemTime>,
    ) {
        let mut waiting = self.outbox.lock();
        // A waiting Event on the same object with the same reason says what applied earlier.
        waiting.retain(|event| {
            event.object.uid != regarding.uid || event.content.reason != content.reason
        });
        let event = WaitingEvent {
            object: EventObject::from(regarding),
            content: content.clone(),
            date,
            since: Instant::now(),
        };
        if self.post(connection, &event) {
            return;
        }
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
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

    /// Posts the waiting Events until one fails. Returns whether none is left.
    fn post_waiting(&self, connection: &mut Connection) -> bool {
        loop {
            let mut waiting = self.outbox.lock();
            let Some(event) = waiting.front() else { return true };
            let is_expired = event.since.elapsed() >= LONGEST_WAIT;
            if !is_expired && !self.post(connection, event) {
                return false;
            }
            waiting.pop_front();
        }
    }

    /// Posts an Event, and counts and logs a failure. Returns whether there is nothing left to do:
    /// the API server has accepted the Event, or rejects it whenever it is posted.
    fn post(&self, connection: &mut Connection, event: &WaitingEvent) -> bool {
        let began = Instant::now();
        match self.try_to_post(connection, event) {
            Ok(()) => {
                let took = began.elapsed().as_secs_f64();
                self.metrics.events_publish_latency_seconds.observe(took);
                true
            }
            Err(error) => {
                self.record_failed_publication(event, &error);
                error.is_rejection()
            }
        }
    }

    fn record_failed_publication(&self, event: &WaitingEvent, error: &PublishError) {
        if error.is_timeout() {
            self.metrics.events_publish_timeouts.inc();
        } else {
            self.metrics.events_publish_errors.inc();
        }
        let EventObject { namespace, name, .. } = &event.object;
        tracing::warn!(err = %error, namespace, name, "Error publishing event");
    }

    fn try_to_post(
        &self,
        connection: &mut Connection,
        event: &WaitingEvent,
    ) -> Result<(), PublishError> {
        let reporter = Reporter { controller: CONTROLLER, instance: &self.settings.pod_name };
        let regarding = event.object.regarding();
        let date = event.date.unwrap_or_else(SystemTime::now);
        event::publish_dated(&connection.client()?, reporter, regarding, &event.content, date)?;
        Ok(())
    }
}
