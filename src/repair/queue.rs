//! Queue of stranded pods, from the watch and the audit to the worker that repairs them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    pods: Vec<QueuedPod>,
    closed: bool,
}

/// A pod that waits for its repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPod {
    pub pod: StrandedPod,
    /// Number of repairs of the pod that failed.
    pub failures: u32,
    pub not_before: Instant,
}

impl QueueState {
    /// Adds a pod at the end unless there are `limit` pods. If the pod is already queued, replaces it by
    /// its new version in the same place, which need not wait: each failure of a validator causes several
    /// events.
    fn push(&mut self, pod: StrandedPod, limit: usize) -> bool {
        let is_full = self.pods.len() >= limit;
        let not_before = Instant::now();
        match self.pods.iter_mut().find(|queued| queued.pod.is_same(&pod)) {
            Some(queued) => *queued = QueuedPod { pod, not_before, ..*queued },
            None if is_full => return false,
            None => self.pods.push(QueuedPod { pod, failures: 0, not_before }),
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

    /// Adds a pod whose repair has to wait, unless a new version of it was added meanwhile.
    pub fn retry(&self, again: QueuedPod) {
        let mut state = self.lock();
        let is_queued = state.pods.iter().any(|queued| queued.pod.is_same(&again.pod));
        if !is_queued && state.pods.len() < MAX_PODS {
            state.pods.push(again);
        }
    }

    /// Removes the pod with this UID, which is gone: a tenant may create and delete pods without end.
    pub fn remove(&self, uid: &str) {
        self.lock().pods.retain(|queued| queued.pod.uid != uid);
    }

    /// Replaces the pods that were found by their validator with those of a new list, which contains
    /// every pod that is still stranded. The watch continues from the list, and repeats what is newer.
    pub fn replace_listed(&self, pods: Vec<StrandedPod>) {
        let mut state = self.lock();
        let is_listed = |pod: &StrandedPod| pods.iter().any(|listed| listed.is_same(pod));
        state.pods.retain(|QueuedPod { pod, .. }| pod.found_by == FoundBy::Audit || is_listed(pod));
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
    /// `turn` returns how long the repair budget lets a pod wait, and its rank among pods that wait as
    /// long. Calls `on_wait` once if the next pod has to wait for the budget.
    pub fn pop<T: Ord>(
        &self,
        turn: impl Fn(&StrandedPod) -> (Duration, T),
        on_wait: impl FnOnce(Duration),
    ) -> Option<QueuedPod> {
        let mut on_wait = Some(on_wait);
        let mut state = self.lock();
        while !state.closed {
            let now = Instant::now();
            let turns = state.pods.iter().map(|QueuedPod { pod, not_before, .. }| {
                let (for_budget, rank) = turn(pod);
                let wait = for_budget.max(not_before.saturating_duration_since(now));
                (wait, rank, for_budget)
            });
            let wait = match turns.zip(0..).min() {
                None => Duration::MAX,
                Some(((Duration::ZERO, ..), index)) => return Some(state.pods.remove(index)),
                Some(((wait, _, for_budget), _)) => {
                    if for_budget == wait {
                        on_wait.take().into_iter().for_each(|on_wait| on_wait(wait));
                    }
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
        queue.pop(|_| (Duration::ZERO, ()), |_| ()).map(|queued| queued.pod)
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
        assert_eq!(queue.pop(turn, |_| ()).unwrap().pod, pod(1));
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
            assert_eq!(popper.join().unwrap().unwrap().pod, pod(3));
        });
    }

    #[test]
    fn a_pod_that_is_queued_again_waits_for_its_time_unless_a_new_version_is_found() {
        let queue = queue(1);
        let failed = queue.pop(|_| (Duration::ZERO, ()), |_| ()).unwrap();
        let soon = Instant::now() + Duration::from_millis(50);
        queue.retry(QueuedPod { failures: 1, not_before: soon, ..failed.clone() });
        let no_budget = |_| panic!("the pod does not wait for the budget");
        let again = queue.pop(|_| (Duration::ZERO, ()), no_budget).unwrap();
        assert!(Instant::now() >= soon);
        assert_eq!(again.failures, 1);

        let hour = Instant::now() + Duration::from_secs(3600);
        queue.retry(QueuedPod { not_before: hour, ..again.clone() });
        let newer = StrandedPod { resource_version: "2".into(), ..pod(0) };
        assert!(queue.push(newer.clone()));
        queue.retry(again);
        let found = queue.pop(|_| (Duration::ZERO, ()), |_| ()).unwrap();
        assert_eq!((found.pod, found.failures), (newer, 1));
    }
}
