//! The pods that may need a repair, from the watch and the audit to the worker that repairs them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::find::stranded::{FoundBy, StrandedPod};
use crate::backoff::{Limits, delay};
use crate::kube::pod_stream::MAX_PODS;

/// Waits before the repair of a pod is tried again.
const RETRIES: Limits = [Duration::from_secs(5), Duration::from_secs(300)];

/// How long to ignore a pod that has all its rules although its validator failed. The kubelet
/// restarts the validator after at most 5 minutes, which then succeeds.
const COMPLETE_HOLD: Duration = Duration::from_secs(600);

/// Time between two reports of a pod that is left unchanged.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(3600);

/// Keeps each pod once, until it is deleted, with what came of its repair.
#[derive(Default)]
pub struct Queue {
    pods: Mutex<Vec<QueuedPod>>,
    changed: Condvar,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPod {
    pub pod: StrandedPod,
    /// Whether the pod waits for its repair. Otherwise its next event or audit queues it again.
    waits: bool,
    pub not_before: Instant,
    /// Number of attempts since the last repair.
    pub failures: u32,
    /// The last reported reason to leave the pod unchanged for now, and when it was reported.
    reported: Option<(String, Instant)>,
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

    /// Records that the pod has all its rules, although its validator failed, which may not have run since.
    /// Returns `true` if that was found some minutes before, too: the validator fails in spite of them.
    pub fn found_complete(&mut self) -> bool {
        let now = Instant::now();
        let is_again = self.had_rules && now < self.not_before + COMPLETE_HOLD;
        (self.had_rules, self.not_before) = (true, now + COMPLETE_HOLD);
        is_again
    }

    /// Marks the pod as reported at `now`. Returns `true` for a new reason, and at most once in
    /// [`REPORT_INTERVAL`] for the same one.
    pub fn mark_reported(&mut self, why: &str, now: Instant) -> bool {
        let is_recent = |(last, at): &(String, Instant)| last == why && now < *at + REPORT_INTERVAL;
        let is_due = !self.reported.as_ref().is_some_and(is_recent);
        if is_due {
            self.reported = Some((why.to_owned(), now));
        }
        is_due
    }
}

fn position(pods: &[QueuedPod], pod: &StrandedPod) -> Option<usize> {
    let found = (pod.found_by, &pod.uid);
    pods.iter().position(|queued| (queued.pod.found_by, &queued.pod.uid) == found)
}

impl Queue {
    /// Queues a pod at the end, or replaces it by its new version. A pod that waits already keeps its
    /// place: each failure of a validator causes several events. Returns `false` if too many pods wait, to
    /// bound memory.
    #[must_use]
    pub fn push(&self, pod: StrandedPod) -> bool {
        let mut pods = self.lock();
        if pods.len() >= MAX_PODS {
            pods.retain(|queued| queued.waits);
        }
        match position(&pods, &pod) {
            Some(index) if pods[index].waits => pods[index].pod = pod,
            Some(index) => {
                let known = pods.remove(index);
                pods.push(QueuedPod { pod, waits: true, ..known });
            }
            None if pods.len() >= MAX_PODS => return false,
            None => pods.push(QueuedPod {
                pod,
                waits: true,
                not_before: Instant::now(),
                failures: 0,
                reported: None,
                had_rules: false,
            }),
        }
        self.changed.notify_all();
        true
    }

    /// Changes what is known of the pod, unless it was deleted meanwhile.
    pub fn update<T>(
        &self,
        pod: &StrandedPod,
        change: impl FnOnce(&mut QueuedPod) -> T,
    ) -> Option<T> {
        let mut pods = self.lock();
        let index = position(&pods, pod)?;
        Some(change(&mut pods[index]))
    }

    /// Removes the pod with this UID, which is gone: a tenant may create and delete pods without end.
    pub fn remove(&self, uid: &str) {
        self.lock().retain(|queued| queued.pod.uid != uid);
    }

    /// Removes the pods of validators that a new list lacks: the watch may have missed that they are gone.
    pub fn retain_listed(&self, listed: &[StrandedPod]) {
        let is_listed = |pod: &StrandedPod| listed.iter().any(|listed| listed.uid == pod.uid);
        self.lock()
            .retain(|QueuedPod { pod, .. }| pod.found_by == FoundBy::Audit || is_listed(pod));
    }

    /// Waits for the next pod, which no longer waits then.
    ///
    /// `turn` returns how long the repair budget lets a pod wait, and its rank among pods that wait as
    /// long. Calls `on_wait` once if the next pod has to wait for the budget.
    pub fn pop<T: Ord>(
        &self,
        turn: impl Fn(&StrandedPod) -> (Duration, T),
        on_wait: impl FnOnce(Duration),
    ) -> StrandedPod {
        let mut on_wait = Some(on_wait);
        let mut pods = self.lock();
        loop {
            let now = Instant::now();
            let waiting = pods.iter().enumerate().filter(|(_, queued)| queued.waits);
            let turns = waiting.map(|(index, QueuedPod { pod, not_before, .. })| {
                let (for_budget, rank) = turn(pod);
                let wait = for_budget.max(not_before.saturating_duration_since(now));
                (wait, rank, for_budget, index)
            });
            let wait = match turns.min() {
                None => Duration::MAX,
                Some((Duration::ZERO, .., index)) => {
                    pods[index].waits = false;
                    return pods[index].pod.clone();
                }
                Some((wait, _, for_budget, _)) => {
                    if for_budget == wait {
                        on_wait.take().into_iter().for_each(|on_wait| on_wait(wait));
                    }
                    wait
                }
            };
            let waited = self.changed.wait_timeout(pods, wait);
            pods = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<QueuedPod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn pop(queue: &Queue) -> StrandedPod {
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
    fn a_full_queue_rejects_pods_until_one_is_repaired_or_deleted() {
        let queue = queue(MAX_PODS);
        assert!(!queue.push(pod(MAX_PODS)));
        assert_eq!(pop(&queue), pod(0));
        assert!(queue.push(pod(MAX_PODS)) && queue.push(pod(1)) && !queue.push(pod(0)));
        queue.remove("1");
        assert!(queue.push(pod(0)) && !queue.push(pod(1)));
    }

    #[test]
    fn a_pod_that_waits_keeps_its_place_and_one_that_was_taken_is_queued_at_the_end() {
        let queue = queue(3);
        assert_eq!(pop(&queue), pod(0));
        assert!(queue.push(newer(0)) && queue.push(newer(2)));
        let all: Vec<_> = (0..3).map(|_| pop(&queue)).collect();
        assert_eq!(all, [pod(1), newer(2), newer(0)]);
    }

    #[test]
    fn a_list_keeps_the_places_of_queued_pods_and_the_pods_of_audits() {
        let queue = queue(3);
        let audited = StrandedPod { found_by: FoundBy::Audit, ..pod(1) };
        assert!(queue.push(audited.clone()));
        queue.retain_listed(&[pod(4), newer(2), pod(1)]);
        assert!(queue.push(pod(4)) && queue.push(newer(2)));
        let all: Vec<_> = (0..4).map(|_| pop(&queue)).collect();
        assert_eq!(all, [pod(1), newer(2), audited, pod(4)]);
    }

    #[test]
    fn the_pod_with_the_lowest_turn_is_next_and_a_new_pod_ends_the_wait_of_others() {
        let queue = Queue::default();
        assert!(queue.push(pod(2)) && queue.push(pod(1)));
        let turn = |pod: &StrandedPod| (Duration::ZERO, pod.name.clone());
        assert_eq!(queue.pop(turn, |_| ()), pod(1));
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
            assert_eq!(popper.join().unwrap(), pod(3));
        });
    }

    #[test]
    fn a_reason_to_leave_a_pod_unchanged_is_reported_at_once_and_then_once_an_hour() {
        let queue = queue(1);
        let now = Instant::now();
        for (why, minutes, is_due) in
            [("a", 0, true), ("a", 30, false), ("a", 60, true), ("a", 90, false), ("b", 91, true)]
        {
            let at = now + Duration::from_secs(60 * minutes);
            let reported = queue.update(&pod(0), |queued| queued.mark_reported(why, at));
            assert_eq!(reported, Some(is_due), "{why} after {minutes} min");
        }
    }

    #[test]
    fn a_pod_that_has_all_its_rules_waits_and_is_reported_if_its_validator_still_fails() {
        let queue = queue(1);
        let begin = Instant::now();
        let complete = || {
            let found = |queued: &mut QueuedPod| (queued.found_complete(), queued.not_before);
            queue.update(&pod(0), found).unwrap()
        };
        let (is_again, not_before) = complete();
        assert!(!is_again, "its validator has to run again first");
        assert!(not_before >= begin + COMPLETE_HOLD);
        let audited = StrandedPod { found_by: FoundBy::Audit, ..pod(0) };
        assert!(queue.push(audited.clone()));
        assert_eq!([pop(&queue)], [audited], "it lost rules since");
        assert!(complete().0);
    }

    #[test]
    fn a_retried_pod_waits_for_its_time_also_if_a_new_version_is_found() {
        let queue = queue(1);
        let audited = StrandedPod { found_by: FoundBy::Audit, ..pod(1) };
        assert!(queue.push(audited.clone()));
        let begin = Instant::now();
        let soon = begin + Duration::from_millis(50);
        for taken in [pop(&queue), pop(&queue)] {
            queue.update(&taken, |queued| {
                queued.retry_after(Duration::ZERO);
                assert!(queued.not_before > begin + RETRIES[0] / 2);
                queued.retry_after(Duration::from_secs(60));
                assert!(queued.not_before >= begin + Duration::from_secs(60));
                queued.not_before = soon;
            });
        }
        assert!(queue.push(newer(0)));
        assert_eq!(pop(&queue), newer(0));
        assert!(Instant::now() >= soon);
        // The next audit finds the other one.
        assert!(queue.push(pod(2)));
        assert_eq!(pop(&queue), pod(2));
        assert!(queue.push(audited.clone()));
        assert_eq!(pop(&queue), audited);
        queue.remove("0");
        assert_eq!(queue.update(&pod(0), |queued| queued.failures), None);
    }
}
