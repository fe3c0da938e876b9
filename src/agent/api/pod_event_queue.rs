//! Queues and rate-limits Events on other pods of this node. Pure.
//!
//! A node may start many pods with the same problem at once, and every process that can write to
//! the agent's socket can cause Events. So each problem of a pod is reported once in
//! [`REPEAT_AFTER`], the queue is bounded, and after a burst one Event is posted per
//! [`POST_INTERVAL`]. Warnings come before other Events, which are dropped while the queue is half
//! full.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::kube::event::{EventContent, EventType};

/// Time after which the same problem of a pod is reported again.
const REPEAT_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of remembered problems. While it is reached, new Events are dropped.
const MAX_REPORTED: usize = 256;
/// Maximum number of queued Events. While it is reached, new Events are dropped.
const MAX_WAITING: usize = 64;
/// Events that are posted without a pause between them.
const BURST: u32 = 5;
/// Time between two Events after such a burst.
const POST_INTERVAL: Duration = Duration::from_secs(6);

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

/// The queue, in order of arrival.
pub struct PodEventQueue {
    /// Events with the time at which each was queued.
    waiting: VecDeque<(Instant, PodEvent)>,
    /// Time, pod UID and subject of the accepted Events, oldest first.
    reported: VecDeque<(Instant, String, &'static str)>,
    /// When a full burst is allowed again.
    recovered_at: Instant,
    /// No Event is posted before this time.
    paused_until: Instant,
    /// New Events are dropped before this time.
    closed_until: Instant,
}

impl PodEventQueue {
    pub fn new(now: Instant) -> Self {
        PodEventQueue {
            waiting: VecDeque::new(),
            reported: VecDeque::new(),
            recovered_at: now,
            paused_until: now,
            closed_until: now,
        }
    }

    /// Queues an Event. Returns `false` if it is dropped.
    pub fn offer(&mut self, event: PodEvent, now: Instant) -> bool {
        while self.reported.front().is_some_and(|(at, ..)| *at + REPEAT_AFTER <= now) {
            self.reported.pop_front();
        }
        let is_reported = |(_, uid, subject): &(Instant, String, &str)| {
            *uid == event.uid && *subject == event.subject
        };
        let share = match event.content.kind {
            EventType::Warning => 1,
            EventType::Normal => 2,
        };
        let is_full = self.waiting.len() >= MAX_WAITING / share
            || self.reported.len() >= MAX_REPORTED / share;
        if now < self.closed_until || is_full || self.reported.iter().any(is_reported) {
            return false;
        }
        self.reported.push_back((now, event.uid.clone(), event.subject));
        self.waiting.push_back((now, event));
        true
    }

    /// Takes the next Event if it is due at `now`, with the time at which it was queued.
    pub fn take(&mut self, now: Instant) -> Option<(Instant, PodEvent)> {
        if self.due()? > now {
            return None;
        }
        self.recovered_at = self.recovered_at.max(now) + POST_INTERVAL;
        let is_warning =
            |(_, event): &(Instant, PodEvent)| event.content.kind == EventType::Warning;
        self.waiting.remove(self.waiting.iter().position(is_warning).unwrap_or(0))
    }

    /// Puts back an Event that [`PodEventQueue::take`] returned and that could not be posted, and
    /// makes no Event due until `end`, and no burst then. Drops it if it is older than [`REPEAT_AFTER`] or if the queue
    /// is full.
    pub fn put_back(&mut self, (queued, event): (Instant, PodEvent), now: Instant, end: Instant) {
        self.paused_until = end;
        self.recovered_at = self.recovered_at.max(end + POST_INTERVAL * (BURST - 1));
        if now < queued + REPEAT_AFTER && self.waiting.len() < MAX_WAITING {
            self.waiting.push_front((queued, event));
        }
    }

    /// Returns when the next Event may be posted; `None` if the queue is empty.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.front()?;
        let burst = POST_INTERVAL * (BURST - 1);
        let recovered_at = self.recovered_at;
        let allowed = recovered_at.checked_sub(burst).unwrap_or(recovered_at);
        Some(allowed.max(self.paused_until))
    }

    /// Drops all queued Events, and each new Event until `end`.
    pub fn close(&mut self, end: Instant) {
        self.waiting.clear();
        self.closed_until = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(uid: &str, subject: &'static str) -> PodEvent {
        PodEvent {
            namespace: "ns".into(),
            pod: "web".into(),
            uid: uid.into(),
            subject,
            content: EventContent {
                kind: EventType::Warning,
                reason: "R",
                action: "A",
                note: String::new(),
            },
        }
    }

    #[test]
    fn a_problem_of_a_pod_is_reported_once_in_ten_minutes() {
        let begin = Instant::now();
        let mut events = PodEventQueue::new(begin);
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
        let mut events = PodEventQueue::new(now);
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
        let mut events = PodEventQueue::new(now);
        assert_eq!(events.due(), None);
        for number in 0..=BURST {
            assert!(events.offer(event(&number.to_string(), "a"), now));
        }
        for number in 0..BURST {
            assert_eq!(events.take(now).unwrap().1.uid, number.to_string());
        }
        assert_eq!(events.take(now), None);
        assert_eq!(events.due(), Some(now + POST_INTERVAL));
        assert!(events.take(now + POST_INTERVAL).is_some());
    }

    #[test]
    fn an_event_that_was_not_posted_is_taken_again_after_the_pause_unless_it_is_old() {
        let now = Instant::now();
        let mut events = PodEventQueue::new(now);
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
        assert_eq!(events.take(later + POST_INTERVAL).unwrap().1.uid, "2");
    }

    #[test]
    fn warnings_are_posted_first_and_half_of_the_queue_is_theirs() {
        let now = Instant::now();
        let mut events = PodEventQueue::new(now);
        let offer = |events: &mut PodEventQueue, number: usize, kind| {
            let mut event = event(&number.to_string(), "a");
            event.content.kind = kind;
            events.offer(event, now)
        };
        let accepted =
            (0..MAX_WAITING).filter(|n| offer(&mut events, *n, EventType::Normal)).count();
        assert_eq!(accepted, MAX_WAITING / 2);
        assert!(offer(&mut events, 1000, EventType::Warning));
        assert_eq!(events.take(now).unwrap().1.uid, "1000");
        assert_eq!(events.take(now).unwrap().1.uid, "0");
    }

    #[test]
    fn a_closed_queue_drops_its_events() {
        let now = Instant::now();
        let mut events = PodEventQueue::new(now);
        events.offer(event("1", "a"), now);
        events.close(now + REPEAT_AFTER);
        assert_eq!(events.due(), None);
        assert!(!events.offer(event("2", "a"), now));
        assert!(events.offer(event("2", "a"), now + REPEAT_AFTER));
    }
}
