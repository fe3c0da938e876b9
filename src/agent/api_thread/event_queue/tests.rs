use super::*;
use crate::kube;
use crate::kube::event::EventType;

fn on_node() -> Event {
    Event::on_node(EventContent {
        kind: EventType::Warning,
        reason: "R",
        action: "A",
        note: String::new(),
    })
}

fn event(uid: &str, subject: &'static str) -> Event {
    event_in("ns", uid, subject)
}

fn event_in(namespace: &str, uid: &str, subject: &'static str) -> Event {
    let pod = PodRef { namespace: namespace.into(), name: "web".into(), uid: uid.into() };
    Event { pod: Some(pod), subject, ..on_node() }
}

/// Takes the next Event, and returns the UID of its pod. `None` if no Event is due.
fn take_uid(events: &mut EventQueue, now: Instant) -> Option<String> {
    Some(events.take(now)?.event.pod.unwrap().uid)
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
        assert!(events.waiting.len().max(events.reported.len()) <= MAX_QUEUED);
    }
    let allowed = BURST + ((now - begin).as_secs() / POST_INTERVAL.as_secs()) as u32;
    assert!((BURST..=allowed).contains(&posted), "{posted} of {allowed}");
}

#[test]
fn an_event_that_was_not_posted_is_retried_unless_it_is_old() {
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
    // No burst is allowed after a pause, so the second Event is due an interval later.
    assert_eq!(events.take(later), None);
    assert_eq!(take_uid(&mut events, later + POST_INTERVAL).unwrap(), "2");
}

#[test]
fn the_agents_own_events_are_posted_first_even_if_the_queue_is_full() {
    let now = Instant::now();
    let mut events = EventQueue::new(now);
    for number in 0..MAX_QUEUED {
        let namespace = ["a", "b"][number % 2];
        assert!(events.offer(event_in(namespace, &number.to_string(), "a"), now));
    }
    let own = on_node();
    assert!(events.offer(own.clone(), now));
    assert_eq!(events.waiting.len(), MAX_QUEUED);
    assert_eq!(events.take(now), Some(QueuedEvent { queued_at: now, event: own }));
    assert_eq!(take_uid(&mut events, now).unwrap(), "0");
}

#[test]
fn a_namespace_gets_half_of_the_events_and_does_not_delay_another() {
    let now = Instant::now();
    let mut events = EventQueue::new(now);
    let mut offered = 0;
    for number in 0..2 * MAX_QUEUED {
        let uid = number.to_string();
        offered += usize::from(events.offer(event_in("many", &uid, "a"), now));
    }
    assert_eq!(offered, MAX_QUEUED / 2);
    assert!(events.offer(event_in("few", "x", "a"), now));
    assert!(events.offer(event_in("few", "y", "a"), now));
    let taken: Vec<String> = (0..4).map(|_| take_uid(&mut events, now).unwrap()).collect();
    assert_eq!(taken, ["0", "x", "1", "y"]);
}

fn status(code: u16, reason: Option<&str>, message: &str) -> Error {
    Error::Client(kube::Error::Status {
        request: String::new(),
        code,
        reason: reason.map(str::to_owned),
        message: message.into(),
        retry_after: None,
    })
}

#[test]
fn a_failure_of_one_event_drops_it_and_other_failures_pause_all() {
    let ending = "events is forbidden: unable to create new content in namespace a because \
                  it is being terminated";
    for (code, reason, message, is_dropped) in [
        (403, Some("Forbidden"), "events is forbidden", false),
        (403, Some("Forbidden"), ending, true),
        (404, Some("NotFound"), "namespaces \"a\" not found", true),
        (400, Some("BadRequest"), "bad request", true),
        (413, Some("RequestEntityTooLarge"), "too large", true),
        (422, Some("Invalid"), "invalid", true),
        (401, Some("Unauthorized"), "Unauthorized", false),
        (408, Some("Timeout"), "timeout", false),
        (429, Some("TooManyRequests"), "slow down", false),
        (503, Some("ServiceUnavailable"), "x", false),
        // A proxy in front of the API server.
        (404, None, "<html>404 page not found</html>", false),
        (422, None, "<html>", false),
    ] {
        let error = status(code, reason, message);
        assert_eq!(rejects_only_this_event(&error), is_dropped, "{error}");
    }
}
