//! The pods that may need a repair, from the watch and the audit to the worker that repairs them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stranded::{FoundBy, StrandedPod};
use crate::backoff::{Limits, delay};
use crate::kube::pod_stream::MAX_PODS;

/// Waits before the repair of a pod is tried again.
const RETRIES: Limits = [Duration::from_secs(5), Duration::from_secs(300)];

/// A queue that can be closed. Keeps each pod once, until it is deleted, with what came of its repair.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPod {
    pub pod: StrandedPod,
    /// Whether the pod waits for its repair. Otherwise its next event or audit queues it again.
    waits: bool,
    pub not_before: Instant,
    /// Number of attempts since the last repair.
    pub failures: u32,
    /// When it was reported that the pod is left unchanged for now.
    pub reported: Option<Instant>,
    /// Whether the pod had all its rules, although its validator had failed.
    pub had_rules: bool,
}

impl QueuedPod {
    /// Lets the pod wait for its next repair, which the next audit asks for if an audit found the pod. Waits
    /// at least for `wait`, and longer after each failure.
    pub fn retry_after(&mut self, wait: Duration) {
        self.not_before = Instant::now() + wait.max(delay(RETRIES, self.failures));
        self.failures += 1;
        self.waits |= self.pod.found_by == FoundBy::Validator;
    }
}

impl QueueState {
    fn position(&self, pod: &StrandedPod) -> Option<usize> {
        self.pods.iter().position(|queued| queued.pod.is_same(pod))
    }

    /// Queues a pod at the end unless too many wait. A pod that waits already keeps its place: each
    /// failure of a validator causes several events.
    fn push(&mut self, pod: StrandedPod) -> bool {
        if self.pods.len() >= MAX_PODS {
            self.pods.retain(|queued| queued.waits);
        }
        match self.position(&pod) {
            Some(index) if self.pods[index].waits => self.pods[index].pod = pod,
            Some(index) => {
                let known = self.pods.remove(index);
                self.pods.push(QueuedPod { pod, waits: true, ..known });
            }
            None if self.pods.len() >= MAX_PODS => return false,
            None => self.pods.push(QueuedPod {
                pod,
                waits: true,
                not_before: Instant::now(),
                failures: 0,
                reported: None,
                had_rules: false,
            }),
        }
        true
    }
}

impl Queue {
    /// Queues a pod, or replaces it by its new version. Returns `false` if the queue is full, to bound
    /// memory.
    #[must_use]
    pub fn push(&self, pod: StrandedPod) -> bool {
        let is_queued = self.lock().push(pod);
        self.changed.notify_all();
        is_queued
    }

    /// Changes what is known of the pod, unless it was deleted meanwhile.
    pub fn update<T>(
        &self,
        pod: &StrandedPod,
        change: impl FnOnce(&mut QueuedPod) -> T,
    ) -> Option<T> {
        let mut state = self.lock();
        let index = state.position(pod)?;
        Some(change(&mut state.pods[index]))
    }

    /// Removes the pod with this UID, which is gone: a tenant may create and delete pods without end.
    pub fn remove(&self, uid: &str) {
        self.lock().pods.retain(|queued| queued.pod.uid != uid);
    }

    /// Removes the pods that were found by their validator and are not in a new list, which contains
    /// every pod that is still stranded. The watch continues from the list, and repeats what is newer.
    pub fn retain_listed(&self, pods: &[StrandedPod]) {
        let is_listed = |pod: &StrandedPod| pods.iter().any(|listed| listed.is_same(pod));
        let mut state = self.lock();
        state.pods.retain(|QueuedPod { pod, .. }| pod.found_by == FoundBy::Audit || is_listed(pod));
        state.pods.shrink_to_fit();
    }

    /// Waits for the next pod, which no longer waits then. Returns `None` once the queue is closed.
    ///
    /// `turn` returns how long the repair budget lets a pod wait, and its rank among pods that wait as
    /// long. Calls `on_wait` once if the next pod has to wait for the budget.
    pub fn pop<T: Ord>(
        &self,
        turn: impl Fn(&StrandedPod) -> (Duration, T),
        on_wait: impl FnOnce(Duration),
    ) -> Option<StrandedPod> {
        let mut on_wait = Some(on_wait);
        let mut state = self.lock();
        while !state.closed {
            let now = Instant::now();
            let waiting = state.pods.iter().enumerate().filter(|(_, queued)| queued.waits);
            let turns = waiting.map(|(index, QueuedPod { pod, not_before, .. })| {
                let (for_budget, rank) = turn(pod);
                let wait = for_budget.max(not_before.saturating_duration_since(now));
                (wait, rank, for_budget, index)
            });
            let wait = match turns.min() {
                None => Duration::MAX,
                Some((Duration::ZERO, .., index)) => {
                    state.pods[index].waits = false;
                    return Some(state.pods[index].pod.clone());
                }
                Some((wait, _, for_budget, _)) => {
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
        queue.pop(|_| (Duration::ZERO, ()), |_| panic!("no pod waits for the budget"))
    }

    fn pod(name: usize) -> StrandedPod {
        StrandedPod { name: name.to_string(), uid: name.to_string(), ..StrandedPod::default() }
    }

    fn newer(name: usize) -> StrandedPod {
        StrandedPod { resource_version: "2".into(), ..pod(name) }
    }

    fn queue(pods: usize) -> Queue {
        let queue = Queue::default();
        assert!((0..pods).all(|name| queue.push(pod(name))));
        queue
    }

    #[test]
    fn a_full_queue_rejects_pods_until_one_is_repaired_or_deleted_or_a_list_lacks_them() {
        let queue = queue(MAX_PODS);
        assert!(!queue.is_closed_within(Duration::from_millis(1)));
        assert!(!queue.push(pod(MAX_PODS)));
        assert_eq!(pop(&queue), Some(pod(0)));
        assert!(queue.push(pod(MAX_PODS)) && queue.push(pod(1)) && !queue.push(pod(0)));
        queue.remove("1");
        assert!(queue.push(pod(0)) && !queue.push(pod(1)));
        queue.retain_listed(&[pod(MAX_PODS)]);
        assert!(queue.push(pod(0)));
        assert_eq!([pop(&queue), pop(&queue)], [Some(pod(MAX_PODS)), Some(pod(0))]);
    }

    #[test]
    fn a_pod_that_waits_keeps_its_place_and_one_that_was_taken_is_queued_at_the_end() {
        let queue = queue(3);
        assert_eq!(pop(&queue), Some(pod(0)));
        assert!(queue.push(newer(0)) && queue.push(newer(2)));
        let all: Vec<_> = (0..3).filter_map(|_| pop(&queue)).collect();
        assert_eq!(all, [pod(1), newer(2), newer(0)]);
    }

    #[test]
    fn a_list_keeps_the_places_of_queued_pods_and_the_pods_of_audits() {
        let queue = queue(3);
        let audited = StrandedPod { found_by: FoundBy::Audit, ..pod(1) };
        assert!(queue.push(audited.clone()));
        queue.retain_listed(&[pod(4), newer(2), pod(1)]);
        assert!(queue.push(pod(4)) && queue.push(newer(2)));
        let all: Vec<_> = (0..4).filter_map(|_| pop(&queue)).collect();
        assert_eq!(all, [pod(1), newer(2), audited, pod(4)]);
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
    fn a_retried_pod_waits_for_its_time_also_if_a_new_version_is_found() {
        let queue = queue(1);
        let audited = StrandedPod { found_by: FoundBy::Audit, ..pod(1) };
        assert!(queue.push(audited.clone()));
        let begin = Instant::now();
        let soon = begin + Duration::from_millis(50);
        for taken in [pop(&queue), pop(&queue)] {
            queue.update(&taken.unwrap(), |queued| {
                queued.retry_after(Duration::ZERO);
                assert!(queued.not_before > begin + RETRIES[0] / 2);
                queued.retry_after(Duration::from_secs(60));
                assert!(queued.not_before >= begin + Duration::from_secs(60));
                queued.not_before = soon;
            });
        }
        assert!(queue.push(newer(0)));
        assert_eq!(pop(&queue), Some(newer(0)));
        assert!(Instant::now() >= soon);
        // The next audit finds the other one.
        assert!(queue.push(pod(2)));
        assert_eq!(pop(&queue), Some(pod(2)));
        assert!(queue.push(audited.clone()));
        assert_eq!(pop(&queue), Some(audited));
        queue.remove("0");
        assert_eq!(queue.update(&pod(0), |queued| queued.failures), None);
    }
}
