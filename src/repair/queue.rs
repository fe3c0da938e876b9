//! Queue of stranded pods, from the watch and the audit to the worker that repairs them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::stranded::{FoundBy, StrandedPod};
use crate::kube::pod_stream::MAX_PODS;

/// A queue that can be closed. Holds each pod once, until it is deleted, so it is about as long as the
/// node has pods.
#[derive(Default)]
pub struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    pods: Vec<StrandedPod>,
    closed: bool,
}

impl QueueState {
    /// Returns the first pod with the lowest `turn`: how long the pod has to wait, and its index.
    fn next<T: Ord>(
        &self,
        turn: impl Fn(&StrandedPod) -> (Duration, T),
    ) -> Option<(Duration, usize)> {
        let ((wait, _), index) = self.pods.iter().map(turn).zip(0..).min()?;
        Some((wait, index))
    }

    /// Adds a pod at the end unless there are `limit` pods. If the pod is already queued, replaces it by
    /// its new version in the same place: each failure of a validator causes several events.
    fn push(&mut self, pod: StrandedPod, limit: usize) -> bool {
        let is_full = self.pods.len() >= limit;
        match self.pods.iter_mut().find(|other| other.is_same(&pod)) {
            Some(queued) => *queued = pod,
            None if is_full => return false,
            None => self.pods.push(pod),
        }
        true
    }
}

impl Queue {
    /// Adds a pod, or replaces it by its new version. Returns `false` if the queue is full, to bound
    /// memory.
    #[must_use]
    pub fn push(&self, pod: StrandedPod) -> bool {
        let is_queued = self.lock().push(pod, MAX_PODS);
        self.changed.notify_all();
        is_queued
    }

    /// Removes the pod with this UID, which is gone: a tenant may create and delete pods without end.
    pub fn remove(&self, uid: &str) {
        self.lock().pods.retain(|pod| pod.uid != uid);
    }

    /// Replaces the pods that were found by their validator with those of a new list, which contains
    /// every pod that is still stranded. The watch continues from the list, and repeats what is newer.
    pub fn replace_listed(&self, pods: Vec<StrandedPod>) {
        let mut state = self.lock();
        let is_listed = |pod: &StrandedPod| pods.iter().any(|listed| listed.is_same(pod));
        state.pods.retain(|pod| pod.found_by == FoundBy::Audit || is_listed(pod));
        for pod in pods {
            // A list is bounded itself.
            state.push(pod, usize::MAX);
        }
        state.pods.shrink_to_fit();
        self.changed.notify_all();
    }

    /// Waits for a pod and removes it from the queue. Returns `None` once the queue is
    /// closed.
    ///
    /// `turn` returns how long a pod has to wait, and its rank among pods that wait as long. Calls
    /// `on_wait` once if every queued pod has to wait.
    pub fn pop<T: Ord>(
        &self,
        turn: impl Fn(&StrandedPod) -> (Duration, T),
        on_wait: impl FnOnce(Duration),
    ) -> Option<StrandedPod> {
        let mut on_wait = Some(on_wait);
        let mut state = self.lock();
        while !state.closed {
            let wait = match state.next(&turn) {
                None => Duration::MAX,
                Some((Duration::ZERO, index)) => return Some(state.pods.remove(index)),
                Some((wait, _)) => {
                    on_wait.take().into_iter().for_each(|on_wait| on_wait(wait));
                    wait
                }
            };
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    /// Waits for `time` or until the queue is closed. Returns `true` if the queue is closed.
    pub fn is_closed_within(&self, time: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, time, |state| !state.closed)
            .unwrap_or_else(PoisonError::into_inner);
        state.closed
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the queue and ends all waits. Pods that are still queued are dropped; the
    /// next controller finds them again in its first list.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn pop(queue: &Queue) -> Option<StrandedPod> {
        queue.pop(|_| (Duration::ZERO, ()), |_| ())
    }

    fn pod(name: usize) -> StrandedPod {
        StrandedPod { name: name.to_string(), uid: name.to_string(), ..StrandedPod::default() }
    }

    fn queue(pods: usize) -> Queue {
        let queue = Queue::default();
        assert!((0..pods).all(|name| queue.push(pod(name))));
        queue
    }

    #[test]
    fn a_full_queue_rejects_pods_until_one_is_deleted_or_a_list_lacks_them() {
        let queue = queue(MAX_PODS);
        assert!(!queue.is_closed_within(Duration::from_millis(1)));
        assert!(!queue.push(pod(MAX_PODS)));
        assert_eq!(pop(&queue), Some(pod(0)));
        assert!(queue.push(pod(MAX_PODS)) && queue.push(pod(1)) && !queue.push(pod(0)));
        queue.remove("1");
        assert!(queue.push(pod(0)) && !queue.push(pod(1)));
        queue.replace_listed(vec![pod(MAX_PODS)]);
        assert!(queue.push(pod(0)));
        assert_eq!([pop(&queue), pop(&queue)], [Some(pod(MAX_PODS)), Some(pod(0))]);
    }

    #[test]
    fn a_queued_pod_that_is_pushed_again_keeps_its_place_and_is_not_duplicated() {
        let queue = queue(3);
        let newer = StrandedPod { resource_version: "2".into(), ..pod(1) };
        assert!(queue.push(newer.clone()));
        assert_eq!(pop(&queue), Some(pod(0)));
        assert_eq!(pop(&queue), Some(newer));
        assert_eq!(pop(&queue), Some(pod(2)));
    }

    #[test]
    fn a_list_keeps_the_places_of_queued_pods_and_the_pods_of_audits() {
        let queue = queue(3);
        let audited = StrandedPod { found_by: FoundBy::Audit, ..pod(9) };
        assert!(queue.push(audited.clone()));
        let newer = StrandedPod { resource_version: "2".into(), ..pod(2) };
        queue.replace_listed(vec![pod(4), newer.clone(), pod(1)]);
        let all: Vec<_> = (0..4).filter_map(|_| pop(&queue)).collect();
        assert_eq!(all, [pod(1), newer, audited, pod(4)]);
    }

    #[test]
    fn the_pod_with_the_lowest_turn_is_next_and_a_new_pod_ends_the_wait_of_others() {
        let queue = Queue::default();
        assert!(queue.push(pod(2)) && queue.push(pod(1)));
        let turn = |pod: &StrandedPod| (Duration::ZERO, pod.name.clone());
        assert_eq!(queue.pop(turn, |_| ()), Some(pod(1)));
        let hour = Duration::from_secs(3600);
        let held = |queued: &StrandedPod| match *queued == pod(2) {
            true => (hour, ()),
            false => (Duration::ZERO, ()),
        };
        let (waiting, waits) = mpsc::channel();
        thread::scope(|scope| {
            let popper = scope.spawn(|| queue.pop(held, |wait| waiting.send(wait).unwrap()));
            assert_eq!(waits.recv().unwrap(), hour);
            assert!(queue.push(pod(3)));
            assert_eq!(popper.join().unwrap(), Some(pod(3)));
        });
    }

    #[test]
    fn closing_ends_all_waits_at_once() {
        let queue = queue(1);
        queue.close();
        assert_eq!(pop(&queue), None);
        assert!(queue.is_closed_within(Duration::from_secs(60)));
        let empty = Queue::default();
        thread::scope(|scope| {
            let popper = scope.spawn(|| pop(&empty));
            empty.close();
            assert_eq!(popper.join().unwrap(), None);
        });
    }
}
