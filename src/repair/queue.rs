//! Stranded pods on their way from the watch to the one worker that deletes them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::verdict::Stranded;

/// As upstream's.
pub const CAPACITY: usize = 32;

/// The queue was full for as long as the giver wanted to wait.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// A bounded queue that can be closed.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pods: VecDeque<Stranded>,
    closed: bool,
}

impl Queue {
    /// Adds a pod, if need be waiting for room until `deadline`. One that waits already
    /// keeps its place: each failure of its validator is several events.
    pub fn give(&self, pod: Stranded, deadline: Instant) -> Result<(), Full> {
        let left = deadline.saturating_duration_since(Instant::now());
        let known = |state: &State| state.pods.iter().position(|other| other.is_same(&pod));
        let full = |state: &mut State| {
            state.pods.len() >= CAPACITY && !state.closed && known(state).is_none()
        };
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, left, full)
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = known(&state) {
            state.pods[place] = pod;
            return Ok(());
        }
        if state.pods.len() >= CAPACITY {
            return Err(Full);
        }
        state.pods.push_back(pod);
        self.changed.notify_all();
        Ok(())
    }

    /// The next pod, waiting for it; `None` once the queue is closed.
    pub fn take(&self) -> Option<Stranded> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self
            .changed
            .wait_while(state, |state| state.pods.is_empty() && !state.closed)
            .unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        self.changed.notify_all();
        state.pods.pop_front()
    }

    /// Waits for `time`; whether the queue was closed by then, which ends the wait.
    pub fn closed_within(&self, time: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, _) = self
            .changed
            .wait_timeout_while(state, time, |state| !state.closed)
            .unwrap_or_else(PoisonError::into_inner);
        state.closed
    }

    /// Lets the taker end; what is still queued is left for the next controller.
    pub fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn pod(name: usize) -> Stranded {
        Stranded {
            name: name.to_string(),
            ..Stranded::default()
        }
    }

    fn full() -> Queue {
        let queue = Queue::default();
        for name in 0..CAPACITY {
            assert_eq!(queue.give(pod(name), Instant::now()), Ok(()));
        }
        queue
    }

    #[test]
    fn a_full_queue_refuses_and_keeps_its_order() {
        let queue = full();
        assert!(!queue.closed_within(Duration::from_millis(1)));
        assert_eq!(queue.give(pod(99), Instant::now()), Err(Full));
        assert_eq!(queue.take(), Some(pod(0)));
        assert_eq!(queue.give(pod(99), Instant::now()), Ok(()));
        assert_eq!(queue.take(), Some(pod(1)));
    }

    #[test]
    fn a_pod_that_waits_already_keeps_its_place_and_takes_no_other() {
        let queue = full();
        let newer = Stranded {
            version: "2".into(),
            ..pod(1)
        };
        assert_eq!(queue.give(newer.clone(), Instant::now()), Ok(()));
        assert_eq!(queue.take(), Some(pod(0)));
        assert_eq!(queue.take(), Some(newer));
        assert_eq!(queue.take(), Some(pod(2)));
    }

    #[test]
    fn a_patient_giver_waits_for_room() {
        let queue = full();
        thread::scope(|scope| {
            let giver = scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(10);
                queue.give(pod(99), deadline)
            });
            assert_eq!(queue.take(), Some(pod(0)));
            assert_eq!(giver.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn closing_ends_the_taker_at_once() {
        let queue = full();
        queue.close();
        assert_eq!(queue.take(), None);
        assert!(queue.closed_within(Duration::from_secs(60)));
        let empty = Queue::default();
        thread::scope(|scope| {
            let taker = scope.spawn(|| empty.take());
            empty.close();
            assert_eq!(taker.join().unwrap(), None);
        });
    }
}
