//! Queue of stranded pods, from the watch and the audit to the worker that repairs them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::stranded::{FoundBy, StrandedPod};

/// Maximum number of queued pods from watch events and audits. Upstream's value.
pub const CAPACITY: usize = 32;

/// A queue that can be closed. [`CAPACITY`] limits the pods of watch events and audits, but
/// not those of lists.
#[derive(Default)]
pub struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// First the pods of watch events and audits, then those of the last list.
    pods: Vec<StrandedPod>,
    /// Number of pods of watch events and audits.
    events: usize,
    closed: bool,
}

impl QueueState {
    /// Removes and returns the newest pod of the namespace with the most pods of events, for a pod of
    /// `namespace`. Returns `None` if no namespace has more pods than that one.
    fn drop_for(&mut self, namespace: &str) -> Option<StrandedPod> {
        let events = &self.pods[..self.events];
        let count = |name: &str| events.iter().filter(|pod| pod.namespace == name).count();
        let counts = events.iter().map(|pod| count(&pod.namespace));
        let (most, index) = counts.zip(0..).max()?;
        (most > count(namespace)).then(|| self.remove(index))
    }

    /// Returns the first pod with the lowest `turn`: how long the pod has to wait, and its index.
    fn next<T: Ord>(
        &self,
        turn: impl Fn(&StrandedPod) -> (Duration, T),
    ) -> Option<(Duration, usize)> {
        let ((wait, _), index) = self.pods.iter().map(turn).zip(0..).min()?;
        Some((wait, index))
    }

    fn remove(&mut self, index: usize) -> StrandedPod {
        self.events -= usize::from(index < self.events);
        self.pods.remove(index)
    }

    /// Finds the same pod in the queue, whatever its resourceVersion.
    fn find(&mut self, pod: &StrandedPod) -> Option<&mut StrandedPod> {
        self.pods.iter_mut().find(|other| other.is_same(pod))
    }
}

impl Queue {
    /// Adds a pod at the end. If the pod is already queued, replaces it by its new version in
    /// the same place: each failure of a validator causes several events.
    ///
    /// If the queue is full, drops a pod of the namespace with the most pods: the pods of one tenant
    /// must not keep out those of others. Returns how the dropped pod was found.
    pub fn push(&self, pod: StrandedPod) -> Option<FoundBy> {
        let mut state = self.lock();
        if let Some(queued) = state.find(&pod) {
            *queued = pod;
            return None;
        }
        let is_full = state.events >= CAPACITY;
        let dropped = is_full.then(|| state.drop_for(&pod.namespace));
        if let Some(None) = dropped {
            return Some(pod.found_by);
        }
        let end = state.events;
        state.pods.insert(end, pod);
        state.events += 1;
        self.changed.notify_all();
        dropped.flatten().map(|dropped| dropped.found_by)
    }

    /// Replaces the pods of the last list with those of a new list, which contains every
    /// pod that is still stranded.
    ///
    /// Queues all pods, because a list is bounded by
    /// [`MAX_PODS`](crate::kube::pod_stream::MAX_PODS). So pods that wait for the repair budget do
    /// not cause another list.
    pub fn replace_listed(&self, pods: Vec<StrandedPod>) {
        let mut state = self.lock();
        let events = state.events;
        state.pods.truncate(events);
        for pod in pods {
            match state.find(&pod) {
                Some(queued) => *queued = pod,
                None => state.pods.push(pod),
            }
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
                Some((Duration::ZERO, index)) => return Some(state.remove(index)),
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
        StrandedPod { name: name.to_string(), ..StrandedPod::default() }
    }

    fn full() -> Queue {
        let queue = Queue::default();
        for name in 0..CAPACITY {
            assert_eq!(queue.push(pod(name)), None);
        }
        queue
    }

    #[test]
    fn a_full_queue_rejects_pods_and_keeps_its_order() {
        let queue = full();
        assert!(!queue.is_closed_within(Duration::from_millis(1)));
        assert_eq!(queue.push(pod(99)), Some(FoundBy::Validator));
        assert_eq!(pop(&queue), Some(pod(0)));
        assert_eq!(queue.push(pod(99)), None);
        assert_eq!(pop(&queue), Some(pod(1)));
    }

    #[test]
    fn a_queued_pod_that_is_pushed_again_keeps_its_place_and_is_not_duplicated() {
        let queue = full();
        let newer = StrandedPod { resource_version: "2".into(), ..pod(1) };
        assert_eq!(queue.push(newer.clone()), None);
        assert_eq!(pop(&queue), Some(pod(0)));
        assert_eq!(pop(&queue), Some(newer));
        assert_eq!(pop(&queue), Some(pod(2)));
    }

    #[test]
    fn a_list_does_not_duplicate_pods_that_events_have_queued() {
        let queue = full();
        queue.replace_listed((0..CAPACITY).map(pod).collect());
        assert!((0..CAPACITY).filter_map(|_| pop(&queue)).eq((0..CAPACITY).map(pod)));
        assert_eq!(queue.push(pod(CAPACITY)), None);
        assert_eq!(pop(&queue), Some(pod(CAPACITY)));
    }

    #[test]
    fn a_new_list_replaces_the_last_list_and_an_event_updates_its_pods() {
        let queue = Queue::default();
        queue.replace_listed(vec![pod(0), pod(1), pod(2)]);
        queue.replace_listed(vec![pod(1), pod(2)]);
        let newer = StrandedPod { resource_version: "2".into(), ..pod(2) };
        assert_eq!(queue.push(newer.clone()), None);
        assert_eq!(pop(&queue), Some(pod(1)));
        assert_eq!(pop(&queue), Some(newer));
    }

    #[test]
    fn a_full_queue_drops_the_newest_pod_of_the_namespace_with_the_most_pods() {
        let queue = full();
        let few = StrandedPod { namespace: "few".into(), found_by: FoundBy::Audit, ..pod(99) };
        assert_eq!(queue.push(few.clone()), Some(FoundBy::Validator));
        let queued: Vec<_> = (0..CAPACITY).filter_map(|_| pop(&queue)).collect();
        assert!(queued.contains(&few) && !queued.contains(&pod(CAPACITY - 1)), "{queued:?}");
    }

    #[test]
    fn the_pod_with_the_lowest_turn_is_next_and_a_new_pod_ends_the_wait_of_others() {
        let queue = Queue::default();
        queue.push(pod(2));
        queue.replace_listed(vec![pod(1)]);
        let turn = |pod: &StrandedPod| (Duration::ZERO, pod.name.clone());
        assert_eq!(queue.pop(turn, |_| ()), Some(pod(1)));
        let hour = Duration::from_secs(3600);
        let held = |queued: &StrandedPod| match *queued == pod(2) {
            true => (hour, ()),
            false => (Duration::ZERO, ()),
        };
        queue.push(pod(2));
        let (waiting, waits) = mpsc::channel();
        thread::scope(|scope| {
            let popper = scope.spawn(|| queue.pop(held, |wait| waiting.send(wait).unwrap()));
            assert_eq!(waits.recv().unwrap(), hour);
            queue.push(pod(3));
            assert_eq!(popper.join().unwrap(), Some(pod(3)));
        });
    }

    #[test]
    fn closing_ends_all_waits_at_once() {
        let queue = full();
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
