//! Events on pods that wait for the API server. Pure.
//!
//! Whoever can write to the agent's socket can ask for Events, and a node may start many
//! pods with the same mistake at once: so each mistake of a pod is told once in
//! [`REPEAT`], the queue is bounded, and Events are posted at [`EACH`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::kube::event::Message;

/// Time for which a mistake of a pod is not told again.
const REPEAT: Duration = Duration::from_secs(600);
/// How many mistakes are remembered for that.
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
    /// When which subject of which pod was told.
    told: VecDeque<(Instant, String, &'static str)>,
    /// When the Events posted so far are paid for.
    paid: Instant,
    /// Nothing is posted before.
    rest_until: Instant,
    /// Nothing is taken in before.
    closed_until: Instant,
}

impl PodEvents {
    pub fn new(now: Instant) -> Self {
        PodEvents {
            waiting: VecDeque::new(),
            told: VecDeque::new(),
            paid: now,
            rest_until: now,
            closed_until: now,
        }
    }

    /// Takes in an Event at `now`; `false` if it is dropped.
    pub fn offer(&mut self, event: PodEvent, now: Instant) -> bool {
        while self
            .told
            .front()
            .is_some_and(|(at, ..)| *at + REPEAT <= now)
        {
            self.told.pop_front();
        }
        let is_told = |(_, uid, subject): &(Instant, String, &str)| {
            *uid == event.uid && *subject == event.subject
        };
        let is_full = self.waiting.len() >= WAITING || self.told.len() >= REMEMBERED;
        if now < self.closed_until || is_full || self.told.iter().any(is_told) {
            return false;
        }
        self.told.push_back((now, event.uid.clone(), event.subject));
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

    /// Drops what waits, and takes nothing in until `end`.
    pub fn close(&mut self, end: Instant) {
        self.waiting.clear();
        self.closed_until = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::event::Kind;

    fn event(uid: &str, subject: &'static str) -> PodEvent {
        PodEvent {
            namespace: "ns".into(),
            pod: "web".into(),
            uid: uid.into(),
            subject,
            message: Message {
                kind: Kind::Warning,
                reason: "R",
                action: "A",
                note: String::new(),
            },
        }
    }

    #[test]
    fn a_mistake_of_a_pod_is_told_once_in_ten_minutes() {
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
            assert!(events.waiting.len() <= WAITING && events.told.len() <= REMEMBERED);
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
