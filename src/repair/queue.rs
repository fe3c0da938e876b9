//! Stranded pods on their way from watch and audit to the one worker that acts on them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::verdict::Stranded;

/// As upstream's.
pub const CAPACITY: usize = 32;

/// The queue is full.
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
    /// Pods of the last list. They are taken when `pods` is empty.
    listed: VecDeque<Stranded>,
    closed: bool,
}

impl State {
    /// Finds the same pod in the queue, whatever its version.
    fn known(&mut self, pod: &Stranded) -> Option<&mut Stranded> {
        let mut all = self.pods.iter_mut().chain(&mut self.listed);
        all.find(|other| other.is_same(pod))
    }
}

impl Queue {
    /// Adds a pod. One that waits already keeps its place: each failure of its validator
    /// is several events.
    pub fn give(&self, pod: Stranded) -> Result<(), Full> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = state.known(&pod) {
            *known = pod;
            return Ok(());
        }
        if state.pods.len() >= CAPACITY {
            return Err(Full);
        }
        state.pods.push_back(pod);
        self.changed.notify_all();
        Ok(())
    }

    /// Replaces the pods of the last list with those of a new one, which has them again
    /// if they are still stranded. Without a limit other than that of the list, so that
    /// pods that wait for the rate of acts cause no further list.
    pub fn give_list(&self, pods: Vec<Stranded>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.listed.clear();
        for pod in pods {
            match state.known(&pod) {
                Some(known) => *known = pod,
                None => state.listed.push_back(pod),
            }
        }
        state.listed.shrink_to_fit();
        self.changed.notify_all();
    }

    /// The next pod, waiting for it; `None` once the queue is closed.
    pub fn take(&self) -> Option<Stranded> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_empty = |state: &State| state.pods.is_empty() && state.listed.is_empty();
        let mut state = self
            .changed
            .wait_while(state, |state| is_empty(state) && !state.closed)
            .unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        let next = state.pods.pop_front();
        next.or_else(|| state.listed.pop_front())
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
            assert_eq!(queue.give(pod(name)), Ok(()));
        }
        queue
    }

    #[test]
    fn a_full_queue_refuses_and_keeps_its_order() {
        let queue = full();
        assert!(!queue.closed_within(Duration::from_millis(1)));
        assert_eq!(queue.give(pod(99)), Err(Full));
        assert_eq!(queue.take(), Some(pod(0)));
        assert_eq!(queue.give(pod(99)), Ok(()));
        assert_eq!(queue.take(), Some(pod(1)));
    }

    #[test]
    fn a_pod_that_waits_already_keeps_its_place_and_takes_no_other() {
        let queue = full();
        let newer = Stranded {
            version: "2".into(),
            ..pod(1)
        };
        assert_eq!(queue.give(newer.clone()), Ok(()));
        assert_eq!(queue.take(), Some(pod(0)));
        assert_eq!(queue.take(), Some(newer));
        assert_eq!(queue.take(), Some(pod(2)));
    }

    #[test]
    fn a_list_of_any_length_is_taken_whole_after_what_waits_already() {
        let queue = full();
        queue.give_list((0..500).map(pod).collect());
        for name in 0..500 {
            assert_eq!(queue.take(), Some(pod(name)));
        }
    }

    #[test]
    fn a_new_list_takes_the_place_of_the_last_one_and_an_event_updates_it() {
        let queue = Queue::default();
        queue.give_list(vec![pod(0), pod(1), pod(2)]);
        queue.give_list(vec![pod(1), pod(2)]);
        let newer = Stranded {
            version: "2".into(),
            ..pod(2)
        };
        assert_eq!(queue.give(newer.clone()), Ok(()));
        assert_eq!(queue.take(), Some(pod(1)));
        assert_eq!(queue.take(), Some(newer));
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
