//! Queue of stranded pods, from the watch and the audit to the worker that repairs them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::stranded_pod::StrandedPod;

/// Maximum number of queued pods from watch events and audits. Upstream's value.
pub const CAPACITY: usize = 32;

/// The pod was not queued, because the queue is full.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueFull;

/// A queue that can be closed. [`CAPACITY`] limits the pods of watch events and audits, but
/// not those of lists.
#[derive(Default)]
pub struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// Pods from watch events and audits.
    pods: VecDeque<StrandedPod>,
    /// Pods of the last list. [`Queue::pop`] returns them once `pods` is empty.
    listed: VecDeque<StrandedPod>,
    closed: bool,
}

impl QueueState {
    /// Finds the same pod in the queue, whatever its resourceVersion.
    fn find(&mut self, pod: &StrandedPod) -> Option<&mut StrandedPod> {
        let mut all = self.pods.iter_mut().chain(&mut self.listed);
        all.find(|other| other.is_same(pod))
    }
}

impl Queue {
    /// Adds a pod at the end. If the pod is already queued, replaces it by its new version in
    /// the same place: each failure of a validator causes several events.
    pub fn push(&self, pod: StrandedPod) -> Result<(), QueueFull> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queued) = state.find(&pod) {
            *queued = pod;
            return Ok(());
        }
        if state.pods.len() >= CAPACITY {
            return Err(QueueFull);
        }
        state.pods.push_back(pod);
        self.changed.notify_all();
        Ok(())
    }

    /// Replaces the pods of the last list with those of a new list, which contains every
    /// pod that is still stranded.
    ///
    /// Queues all pods, because a list is bounded by
    /// [`MAX_PODS`](super::pod_stream::MAX_PODS). So pods that wait for the repair budget do
    /// not cause another list.
    pub fn replace_listed(&self, pods: Vec<StrandedPod>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.listed.clear();
        for pod in pods {
            match state.find(&pod) {
                Some(queued) => *queued = pod,
                None => state.listed.push_back(pod),
            }
        }
        state.listed.shrink_to_fit();
        self.changed.notify_all();
    }

    /// Waits for a pod and removes it from the queue. Returns `None` once the queue is
    /// closed.
    pub fn pop(&self) -> Option<StrandedPod> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_empty = |state: &QueueState| state.pods.is_empty() && state.listed.is_empty();
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

    /// Waits for `time` or until the queue is closed. Returns `true` if the queue is closed.
    pub fn is_closed_within(&self, time: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, _) = self
            .changed
            .wait_timeout_while(state, time, |state| !state.closed)
            .unwrap_or_else(PoisonError::into_inner);
        state.closed
    }

    /// Closes the queue and ends all waits. Pods that are still queued are dropped; the
    /// next controller finds them again in its first list.
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

    fn pod(name: usize) -> StrandedPod {
        StrandedPod { name: name.to_string(), ..StrandedPod::default() }
    }

    fn full() -> Queue {
        let queue = Queue::default();
        for name in 0..CAPACITY {
            assert_eq!(queue.push(pod(name)), Ok(()));
        }
        queue
    }

    #[test]
    fn a_full_queue_rejects_pods_and_keeps_its_order() {
        let queue = full();
        assert!(!queue.is_closed_within(Duration::from_millis(1)));
        assert_eq!(queue.push(pod(99)), Err(QueueFull));
        assert_eq!(queue.pop(), Some(pod(0)));
        assert_eq!(queue.push(pod(99)), Ok(()));
        assert_eq!(queue.pop(), Some(pod(1)));
    }

    #[test]
    fn a_queued_pod_that_is_pushed_again_keeps_its_place_and_is_not_duplicated() {
        let queue = full();
        let newer = StrandedPod { resource_version: "2".into(), ..pod(1) };
        assert_eq!(queue.push(newer.clone()), Ok(()));
        assert_eq!(queue.pop(), Some(pod(0)));
        assert_eq!(queue.pop(), Some(newer));
        assert_eq!(queue.pop(), Some(pod(2)));
    }

    #[test]
    fn all_pods_of_a_long_list_are_queued_without_duplicates() {
        let queue = full();
        queue.replace_listed((0..500).map(pod).collect());
        for name in 0..500 {
            assert_eq!(queue.pop(), Some(pod(name)));
        }
    }

    #[test]
    fn a_new_list_replaces_the_last_list_and_an_event_updates_its_pods() {
        let queue = Queue::default();
        queue.replace_listed(vec![pod(0), pod(1), pod(2)]);
        queue.replace_listed(vec![pod(1), pod(2)]);
        let newer = StrandedPod { resource_version: "2".into(), ..pod(2) };
        assert_eq!(queue.push(newer.clone()), Ok(()));
        assert_eq!(queue.pop(), Some(pod(1)));
        assert_eq!(queue.pop(), Some(newer));
    }

    #[test]
    fn closing_ends_all_waits_at_once() {
        let queue = full();
        queue.close();
        assert_eq!(queue.pop(), None);
        assert!(queue.is_closed_within(Duration::from_secs(60)));
        let empty = Queue::default();
        thread::scope(|scope| {
            let popper = scope.spawn(|| empty.pop());
            empty.close();
            assert_eq!(popper.join().unwrap(), None);
        });
    }
}
