//! Queues, rate-limits and posts the Events on the node and on its pods.
//!
//! A node may start many pods with the same problem at once, and every process that can write to
//! the agent's socket can cause Events on pods. So each problem of a pod is reported once in
//! [`REPEAT_AFTER`], the queue is bounded, and after a burst one Event is posted in each
//! [`POST_INTERVAL`]. The agent's own Events are posted first. The pods of one namespace get at
//! most half of the Events, so that one tenant cannot use up the queue of the others.

use std::collections::VecDeque;
use std::mem;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::worker::Worker;
use crate::agent::identity::USER_AGENT;
use crate::agent::settings::Settings;
use crate::backoff::{RateLimit, between};
use crate::cni::args::PodRef;
use crate::kube::FORBIDDEN;
use crate::kube::connection::{Connection, Error};
use crate::kube::event::{self, EventContent, Regarding, Reporter};
use crate::node::failed_uninstall;

/// Time after which the same problem of a pod is reported again.
const REPEAT_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of queued Events, and of remembered problems. This is slightly more than can be
/// posted in [`REPEAT_AFTER`]. At the maximum, new Events on pods are dropped.
const MAX_QUEUED: usize = 128;
/// Maximum number of remembered problems in one namespace.
const MAX_REPORTED_IN_NAMESPACE: usize = MAX_QUEUED / 2;
/// Number of Events that are posted without a pause between them.
const BURST: u32 = 5;
/// Time between two Events after such a burst.
const POST_INTERVAL: Duration = Duration::from_secs(6);
/// Shortest and longest pause after a failure that concerns all Events, such as an unreachable API
/// server or, with upstream's chart, a missing permission. The pause is random, because such a
/// failure may hit all nodes at once.
const PAUSE: [Duration; 2] = [Duration::from_secs(120), Duration::from_secs(300)];

/// An Event on a pod or on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `None` if the Event is on the node. The agent's own Events are on the node and not on the
    /// agent's pod, because the node outlives that pod. They are dropped if the settings do not
    /// name the node.
    pub pod: Option<PodRef>,
    /// What the Event is about, such as the name of an annotation. Two Events with the same subject
    /// and the same UID of a pod count as repetitions of each other.
    pub subject: &'static str,
    pub content: EventContent,
    /// The record of a failed uninstall, which is removed once the Event is posted.
    pub record: Option<PathBuf>,
}

impl Event {
    pub fn on_node(content: EventContent) -> Event {
        Event { pod: None, subject: content.reason, content, record: None }
    }
}

/// An Event that waits to be posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedEvent {
    queued_at: Instant,
    event: Event,
}

/// A problem of a pod for which an Event was queued.
struct ReportedProblem {
    reported_at: Instant,
    namespace: String,
    pod_uid: String,
    subject: &'static str,
}

pub struct EventQueue {
    /// Events on pods, the oldest first. The agent's own Events are in front of them.
    waiting: VecDeque<QueuedEvent>,
    /// Problems that are not reported again yet, the oldest first.
    reported: VecDeque<ReportedProblem>,
    /// Namespace of the pod of the last Event that was taken. The next Event is from another
    /// namespace if possible.
    last_namespace: String,
    rate_limit: RateLimit,
    /// Whether the last Event could not be posted.
    is_failing: bool,
}

impl EventQueue {
    pub fn new(now: Instant) -> Self {
        EventQueue {
            waiting: VecDeque::new(),
            reported: VecDeque::new(),
            last_namespace: String::new(),
            rate_limit: RateLimit::new(POST_INTERVAL, BURST, now),
            is_failing: false,
        }
    }

    /// Queues an Event. Returns `false` if it is dropped.
    pub fn offer(&mut self, event: Event, now: Instant) -> bool {
        let Some(pod) = &event.pod else {
            self.push_front(QueuedEvent { queued_at: now, event });
            return true;
        };
        self.reported.retain(|problem| now < problem.reported_at + REPEAT_AFTER);
        if self.is_reported(&pod.uid, event.subject) || !self.has_room_for(&pod.namespace) {
            return false;
        }
        self.reported.push_back(ReportedProblem {
            reported_at: now,
            namespace: pod.namespace.clone(),
            pod_uid: pod.uid.clone(),
            subject: event.subject,
        });
        self.waiting.push_back(QueuedEvent { queued_at: now, event });
        true
    }

    fn is_reported(&self, pod_uid: &str, subject: &str) -> bool {
        self.reported.iter().any(|problem| problem.pod_uid == pod_uid && problem.subject == subject)
    }

    /// Returns whether an Event on a pod of this namespace may be queued.
    fn has_room_for(&self, namespace: &str) -> bool {
        if self.waiting.len() >= MAX_QUEUED || self.reported.len() >= MAX_QUEUED {
            return false;
        }
        let in_namespace = self.reported.iter().filter(|problem| problem.namespace == namespace);
        in_namespace.count() < MAX_REPORTED_IN_NAMESPACE
    }

    /// Takes the next Event if it is due at `now`.
    pub fn take(&mut self, now: Instant) -> Option<QueuedEvent> {
        if self.due()? > now {
            return None;
        }
        self.rate_limit.count(now);
        let next = self.waiting.remove(self.next_index())?;
        if let Some(PodRef { namespace, .. }) = &next.event.pod {
            self.last_namespace.clone_from(namespace);
        }
        Some(next)
    }

    /// Returns the index of the next Event. The agent's own Events are posted first, then the
    /// oldest Event on a pod outside [`EventQueue::last_namespace`]. If all pods are in that
    /// namespace, the oldest Event is next, which has the index 0.
    fn next_index(&self) -> usize {
        for (index, queued) in self.waiting.iter().enumerate() {
            if queued.event.pod.is_none() {
                return index;
            }
        }
        for (index, queued) in self.waiting.iter().enumerate() {
            if let Some(pod) = &queued.event.pod
                && pod.namespace != self.last_namespace
            {
                return index;
            }
        }
        0
    }

    /// Puts back an Event that [`EventQueue::take`] returned and that could not be posted, or drops
    /// the Event if it is older than [`REPEAT_AFTER`]. Pauses all Events until `pause_end`; no
    /// burst is allowed then.
    pub fn put_back(&mut self, queued: QueuedEvent, now: Instant, pause_end: Instant) {
        self.rate_limit.exhaust_until(pause_end);
        if now < queued.queued_at + REPEAT_AFTER {
            self.push_front(queued);
        }
    }

    /// Returns when the next Event may be posted. `None` if the queue is empty.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.front()?;
        Some(self.rate_limit.due())
    }

    /// Queues an Event in front of all others. If the queue was full, its last Event is dropped.
    fn push_front(&mut self, queued: QueuedEvent) {
        self.waiting.push_front(queued);
        self.waiting.truncate(MAX_QUEUED);
    }
}

/// Posts an Event. Does nothing for an Event on the node if the settings do not name the node.
pub fn post(connection: &mut Connection, settings: &Settings, event: &Event) -> Result<(), Error> {
    let regarding = if let Some(PodRef { namespace, name, uid }) = &event.pod {
        Regarding { kind: "Pod", namespace, name, uid }
    } else if let Some(node) = &settings.node_name {
        Regarding::node(node)
    } else {
        return Ok(());
    };
    // The API requires the name of the reporting instance. Upstream's chart does not tell the agent
    // the name of its pod, so the name of the program stands in.
    let instance = settings.pod_name.as_deref().unwrap_or(USER_AGENT);
    let reporter = Reporter { controller: USER_AGENT, instance };
    Ok(event::publish(&connection.client()?, reporter, regarding, &event.content)?)
}

impl Worker {
    /// Posts all Events that are due. An Event that the API server rejects is dropped. After any
    /// other failure the Event is kept and all Events pause. So Events about an outage of the API
    /// server are posted after the outage. Logs only the first failure of a series.
    pub fn post_events(&mut self) {
        while let Some(queued) = self.next_event() {
            match post(&mut self.own_connection, &self.api.settings, &queued.event) {
                Ok(()) => {
                    self.record_posted();
                    if let Some(record) = &queued.event.record {
                        failed_uninstall::forget(record);
                    }
                }
                Err(error) if rejects_only_this_event(&error) => {}
                Err(error) => {
                    self.pause_events(queued);
                    self.log_failure(&error);
                }
            }
        }
    }

    fn next_event(&self) -> Option<QueuedEvent> {
        self.api.state().events.take(Instant::now())
    }

    fn record_posted(&self) {
        let was_failing = mem::take(&mut self.api.state().events.is_failing);
        if was_failing {
            info!("Events are posted again");
        }
    }

    /// Puts an Event that could not be posted back into the queue, and pauses all Events.
    fn pause_events(&self, queued: QueuedEvent) {
        let now = Instant::now();
        self.api.state().events.put_back(queued, now, now + between(PAUSE[0], PAUSE[1]));
    }

    fn log_failure(&self, error: &Error) {
        // The state is locked only for this statement and not while the line is logged: stderr may
        // be slow, and the reconciler needs the state.
        let was_failing = mem::replace(&mut self.api.state().events.is_failing, true);
        if was_failing {
            return;
        }
        let is_denied = matches!(error, Error::Client(error) if error.is_status(403, FORBIDDEN));
        let cause = if is_denied {
            ", because the agent's ServiceAccount may not create Events (the chart's ClusterRole \
             linkerd-cni-agent grants it, upstream's chart does not)"
        } else {
            ""
        };
        warn!("cannot post Events{cause}: {error}");
    }
}

/// Returns whether the API server rejects only this Event and may accept others.
fn rejects_only_this_event(error: &Error) -> bool {
    matches!(error, Error::Client(error) if event::is_rejected(error))
}

#[cfg(test)]
mod tests;
