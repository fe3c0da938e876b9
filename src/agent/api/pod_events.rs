//! Events on pods that wait for the API server. Pure.
//!
//! A node may start many pods with the same mistake at once, and anybody who can write to
//! the agent's socket can cause Events. So each mistake of a pod is reported once within
//! [`REPEAT`], the queue is bounded, and Events are posted one each [`EACH`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::kube::event::Message;

/// Time within which a mistake of a pod is not reported again.
const REPEAT: Duration = Duration::from_secs(600);
/// How many reported mistakes are remembered; beyond that new ones are dropped.
const REMEMBERED: usize = 256;
/// How many Events wait; another one is dropped.
const WAITING: usize = 64;
/// How many Events are posted at once,
const BURST: u32 = 5;
/// and time between those that follow.
const EACH: Duration = Duration::from_secs(6);

/// One Event on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    /// What the Event is about; one of few.
    pub subject: &'static str,
    pub message: Message,
}

/// Events in the order in which they came.
pub struct PodEvents {
    waiting: VecDeque<PodEvent>,
    /// Time, pod UID and subject of what was reported, oldest first.
    reported: VecDeque<(Instant, String, &'static str)>,
    /// When the Events posted so far are paid for.
    paid: Instant,
    /// Nothing is posted before.
    rest_until: Instant,
    /// What is offered before is dropped.
    closed_until: Instant,
}

impl PodEvents {
    pub fn new(now: Instant) -> Self {
        PodEvents {
            waiting: VecDeque::new(),
            reported: VecDeque::new(),
            paid: now,
            rest_until: now,
            closed_until: now,
        }
    }

    /// Queues an Event at `now`; `false` if it is dropped.
    pub fn offer(&mut self, event: PodEvent, now: Instant) -> bool {
        while self
            .reported
            .front()
            .is_some_and(|(at, ..)| *at + REPEAT <= now)
        {
            self.reported.pop_front();
        }
        let is_reported = |(_, uid, subject): &(Instant, String, &str)| {
            *uid == event.uid && *subject == event.subject
        };
        let is_full = self.waiting.len() >= WAITING || self.reported.len() >= REMEMBERED;
        if now < self.closed_until || is_full || self.reported.iter().any(is_reported) {
            return false;
        }
        self.reported
            .push_back((now, event.uid.clone(), event.subject));
        self.waiting.push_back(event);
        true
    }

    /// The next Event, if one may be posted at `now`.
    pub fn take(&mut self, now: Instant) -> Option<PodEvent> {
        if self.due()? > now {
            return None;
        }
        self.paid = self.paid.max(now) + EACH;
        self.waiting.pop_front()
    }

    /// When the next Event may be posted; `None` if none waits.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.front()?;
        let credit = EACH * (BURST - 1);
        let paced = self.paid.checked_sub(credit).unwrap_or(self.paid);
        Some(paced.max(self.rest_until))
    }

    /// Posts nothing until `end`.
    pub fn rest(&mut self, end: Instant) {
        self.rest_until = end;
    }

    /// Drops what waits, and what is offered until `end`.
    pub fn close(&mut self, end: Instant) {
        self.waiting.clear();
        self.closed_until = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::event::EventType;

    fn event(uid: &str, subject: &'static str) -> PodEvent {
        PodEvent {
            namespace: "ns".into(),
            pod: "web".into(),
            uid: uid.into(),
            subject,
            message: Message {
                kind: EventType::Warning,
                reason: "R",
                action: "A",
                note: String::new(),
            },
        }
    }

    #[test]
    fn a_mistake_of_a_pod_is_reported_once_in_ten_minutes() {
        let begin = Instant::now();
        let mut events = PodEvents::new(begin);
        assert!(events.offer(event("1", "a"), begin));
        for later in [Duration::ZERO, REPEAT - Duration::from_secs(1)] {
            assert!(!events.offer(event("1", "a"), begin + later));
        }
        assert!(events.offer(event("2", "a"), begin));
        assert!(events.offer(event("1", "b"), begin));
        assert!(events.offer(event("1", "a"), begin + REPEAT));
    }

    #[test]
    fn a_flood_is_bounded_in_memory_and_posted_at_a_steady_pace() {
        let begin = Instant::now();
        let mut now = begin;
        let mut events = PodEvents::new(now);
        let mut posted = 0;
        for number in 0..100_000 {
            now += Duration::from_millis(10);
            events.offer(event(&number.to_string(), "a"), now);
            posted += u32::from(events.take(now).is_some());
            assert!(events.waiting.len() <= WAITING && events.reported.len() <= REMEMBERED);
        }
        let allowed = BURST + ((now - begin).as_secs() / EACH.as_secs()) as u32;
        assert!((BURST..=allowed).contains(&posted), "{posted} of {allowed}");
    }

    #[test]
    fn a_burst_goes_at_once_and_the_next_event_when_it_is_due() {
        let now = Instant::now();
        let mut events = PodEvents::new(now);
        assert_eq!(events.due(), None);
        for number in 0..=BURST {
            assert!(events.offer(event(&number.to_string(), "a"), now));
        }
        for number in 0..BURST {
            assert_eq!(events.take(now).unwrap().uid, number.to_string());
        }
        assert_eq!(events.take(now), None);
        assert_eq!(events.due(), Some(now + EACH));
        assert!(events.take(now + EACH).is_some());
    }

    #[test]
    fn a_rest_keeps_what_waits_and_a_closed_queue_drops_it() {
        let now = Instant::now();
        let mut events = PodEvents::new(now);
        events.offer(event("1", "a"), now);
        events.rest(now + EACH);
        assert_eq!((events.take(now), events.due()), (None, Some(now + EACH)));
        events.close(now + REPEAT);
        assert_eq!(events.due(), None);
        assert!(!events.offer(event("2", "a"), now));
        assert!(events.offer(event("2", "a"), now + REPEAT));
    }
}
