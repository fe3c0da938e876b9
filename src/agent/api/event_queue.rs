//! Queues and rate-limits the Events that the agent posts on the node and on its pods. Pure.
//!
//! A node may start many pods with the same problem at once, and every process that can write to
//! the agent's socket can cause Events on pods. So each problem of a pod is reported once in
//! [`REPEAT_AFTER`], the queue is bounded, and after a burst one Event is posted per
//! [`POST_INTERVAL`]. The agent's own Events come first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::backoff::RateLimit;
use crate::kube::event::EventContent;

/// Time after which the same problem of a pod is reported again.
const REPEAT_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of remembered problems. While it is reached, new Events on pods are dropped.
const MAX_REPORTED: usize = 256;
/// Maximum number of queued Events. While it is reached, new Events on pods are dropped.
const MAX_WAITING: usize = 64;
/// Events that are posted without a pause between them.
const BURST: u32 = 5;
/// Time between two Events after such a burst.
const POST_INTERVAL: Duration = Duration::from_secs(6);

/// An Event that the agent posts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// On the node, which outlives the agent's pod. Dropped if the settings do not name the node.
    OnNode(EventContent),
    OnPod(PodEvent),
}

impl Event {
    pub fn content(&self) -> &EventContent {
        match self {
            Event::OnNode(content) => content,
            Event::OnPod(event) => &event.content,
        }
    }
}

/// An Event on a pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    /// What the Event is about, such as the name of an annotation. With the pod's UID it tells
    /// whether an Event repeats another.
    pub subject: &'static str,
    pub content: EventContent,
}

/// An Event, and when it was queued.
pub type Queued = (Instant, Event);

/// The queue.
pub struct EventQueue {
    /// The agent's own Events, then those on pods, oldest first.
    waiting: VecDeque<Queued>,
    /// Time, pod UID and subject of the accepted Events on pods, oldest first.
    reported: VecDeque<(Instant, String, &'static str)>,
    rate_limit: RateLimit,
    /// No Event is posted before this time.
    paused_until: Instant,
}

impl EventQueue {
    pub fn new(now: Instant) -> Self {
        EventQueue {
            waiting: VecDeque::new(),
            reported: VecDeque::new(),
            rate_limit: RateLimit::new(POST_INTERVAL, BURST, now),
            paused_until: now,
        }
    }

    /// Queues an Event. Returns `false` if it is dropped.
    pub fn offer(&mut self, event: Event, now: Instant) -> bool {
        let Event::OnPod(pod_event) = &event else {
            self.push_front((now, event));
            return true;
        };
        while self.reported.front().is_some_and(|(at, ..)| *at + REPEAT_AFTER <= now) {
            self.reported.pop_front();
        }
        let is_reported = |(_, uid, subject): &(Instant, String, &str)| {
            *uid == pod_event.uid && *subject == pod_event.subject
        };
        let is_full = self.waiting.len() >= MAX_WAITING || self.reported.len() >= MAX_REPORTED;
        if is_full || self.reported.iter().any(is_reported) {
            return false;
        }
        self.reported.push_back((now, pod_event.uid.clone(), pod_event.subject));
        self.waiting.push_back((now, event));
        true
    }

    /// Takes the next Event if it is due at `now`, with the time at which it was queued.
    pub fn take(&mut self, now: Instant) -> Option<Queued> {
        if self.due()? > now {
            return None;
        }
        self.rate_limit.count(now);
        self.waiting.pop_front()
    }

    /// Puts back an Event that [`EventQueue::take`] returned and that could not be posted. Makes no
    /// Event due until `end`, and no burst then. Drops the Event if it is older than [`REPEAT_AFTER`].
    pub fn put_back(&mut self, (queued, event): Queued, now: Instant, end: Instant) {
        self.paused_until = end;
        self.rate_limit.exhaust_until(end);
        if now < queued + REPEAT_AFTER {
            self.push_front((queued, event));
        }
    }

    /// Returns when the next Event may be posted; `None` if the queue is empty.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.front()?;
        Some(self.rate_limit.due().max(self.paused_until))
    }

    /// Queues an Event as the next one. The last one is dropped if the queue is full.
    fn push_front(&mut self, event: Queued) {
        self.waiting.push_front(event);
        self.waiting.truncate(MAX_WAITING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::event::EventType;

    fn content() -> EventContent {
        let kind = EventType::Warning;
        EventContent { kind, reason: "R", action: "A", note: String::new() }
    }

    fn event(uid: &str, subject: &'static str) -> Event {
        let [namespace, pod, uid] = ["ns", "web", uid].map(str::to_owned);
        Event::OnPod(PodEvent { namespace, pod, uid, subject, content: content() })
    }

    /// UID of the pod of the next Event; `None` if no Event is due.
    fn take(events: &mut EventQueue, now: Instant) -> Option<String> {
        match events.take(now)?.1 {
            Event::OnPod(event) => Some(event.uid),
            own => panic!("{own:?}"),
        }
    }

    #[test]
    fn a_problem_of_a_pod_is_reported_once_in_ten_minutes() {
        let begin = Instant::now();
        let mut events = EventQueue::new(begin);
        assert!(events.offer(event("1", "a"), begin));
        for later in [Duration::ZERO, REPEAT_AFTER - Duration::from_secs(1)] {
            assert!(!events.offer(event("1", "a"), begin + later));
        }
        assert!(events.offer(event("2", "a"), begin));
        assert!(events.offer(event("1", "b"), begin));
        assert!(events.offer(event("1", "a"), begin + REPEAT_AFTER));
    }

    #[test]
    fn a_flood_is_bounded_in_memory_and_posted_at_a_steady_pace() {
        let begin = Instant::now();
        let mut now = begin;
        let mut events = EventQueue::new(now);
        let mut posted = 0;
        for number in 0..100_000 {
            now += Duration::from_millis(10);
            events.offer(event(&number.to_string(), "a"), now);
            posted += u32::from(events.take(now).is_some());
            assert!(events.waiting.len() <= MAX_WAITING && events.reported.len() <= MAX_REPORTED);
        }
        let allowed = BURST + ((now - begin).as_secs() / POST_INTERVAL.as_secs()) as u32;
        assert!((BURST..=allowed).contains(&posted), "{posted} of {allowed}");
    }

    #[test]
    fn a_burst_is_posted_at_once_and_the_next_event_when_it_is_due() {
        let now = Instant::now();
        let mut events = EventQueue::new(now);
        assert_eq!(events.due(), None);
        for number in 0..=BURST {
            assert!(events.offer(event(&number.to_string(), "a"), now));
        }
        for number in 0..BURST {
            assert_eq!(take(&mut events, now).unwrap(), number.to_string());
        }
        assert_eq!(events.take(now), None);
        assert_eq!(events.due(), Some(now + POST_INTERVAL));
        assert!(events.take(now + POST_INTERVAL).is_some());
    }

    #[test]
    fn an_event_that_was_not_posted_is_taken_again_after_the_pause_unless_it_is_old() {
        let now = Instant::now();
        let mut events = EventQueue::new(now);
        events.offer(event("1", "a"), now);
        events.offer(event("2", "a"), now);
        let first = events.take(now).unwrap();
        events.put_back(first.clone(), now, now + POST_INTERVAL);
        assert_eq!((events.take(now), events.due()), (None, Some(now + POST_INTERVAL)));
        let later = now + POST_INTERVAL;
        assert_eq!(events.take(later), Some(first.clone()));
        events.put_back(first, now + REPEAT_AFTER, later);
        // No burst follows a pause.
        assert_eq!(events.take(later), None);
        assert_eq!(take(&mut events, later + POST_INTERVAL).unwrap(), "2");
    }

    #[test]
    fn the_agents_own_events_are_posted_first_and_replace_the_last_event_of_a_full_queue() {
        let now = Instant::now();
        let mut events = EventQueue::new(now);
        (0..MAX_WAITING).for_each(|n| assert!(events.offer(event(&n.to_string(), "a"), now)));
        let own = Event::OnNode(content());
        assert!(events.offer(own.clone(), now));
        assert_eq!(events.waiting.len(), MAX_WAITING);
        assert_eq!(events.take(now), Some((now, own)));
        assert_eq!(take(&mut events, now).unwrap(), "0");
    }
}
