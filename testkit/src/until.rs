//! Waits until a condition is true.

use std::thread;
use std::time::{Duration, Instant};

/// Longest wait of [`until`]. It is long, because the machine may be busy, and because kubelet
/// makes long pauses between its retries.
const LIMIT: Duration = Duration::from_secs(120);
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE_OF_A_SLOW_CONDITION: Duration = Duration::from_secs(1);

/// Waits at most [`LIMIT`] for `condition`.
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    until_within(LIMIT, what, condition);
}

/// Waits at most [`LIMIT`] until `find` returns a value, and returns it.
pub fn until_found<T>(what: &str, find: impl FnMut() -> Option<T>) -> T {
    until_some(LIMIT, what, find)
}

/// Waits at most `limit` until `find` returns a value, and returns it.
pub fn until_some<T>(limit: Duration, what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    until_within(limit, what, || {
        found = find();
        found.is_some()
    });
    found.expect("the condition is true")
}

/// Waits at most `limit` for `condition`. Prints waits of more than a second, which show where a
/// test's time goes.
pub fn until_within(limit: Duration, what: &str, condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    assert!(becomes_true(limit, condition), "not within {limit:?}: {what}");
    if begin.elapsed() > Duration::from_secs(1) {
        println!("{:>6.1?} {what}", begin.elapsed());
    }
}

/// Waits at most `limit` for `condition`, and returns whether it became true.
pub fn becomes_true(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        let checked_at = Instant::now();
        if condition() {
            return true;
        }
        if begin.elapsed() >= limit {
            return false;
        }
        // A check of the condition may be expensive, for example if it starts a process. Many tests
        // wait at the same time, so the pause is at least three times as long as the check.
        let pause = (begin.elapsed() / 20).min(LONGEST_PAUSE).max(3 * checked_at.elapsed());
        thread::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE_OF_A_SLOW_CONDITION));
    }
}
