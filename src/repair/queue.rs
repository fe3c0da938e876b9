//! The pods that may need a repair, from the watch and the audit to the worker that repairs them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::find::stranded::{FoundBy, FoundPod, StrandedPod};
use super::turn::attempts::Attempts;
use super::turn::{Turn, Turns, WaitReason};
use crate::kube::pod_list::MAX_PODS;

/// Keeps each found pod, with the earlier attempts to repair it, until the pod is deleted or a full
/// queue forgets it. A pod that a validator and an audit have found is kept twice, once for each.
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    pods: Vec<QueuedPod>,
    turns: Turns,
    /// Whether a restart was requested. The process restarts once no waiting pod can be repaired
    /// first.
    is_restart_due: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct QueuedPod {
    pod: StrandedPod,
    /// Whether the pod waits for its turn. If not, its next event or audit queues it again.
    is_waiting: bool,
    attempts: Attempts,
}

/// What the worker does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Check this pod, and repair it if it needs a repair.
    Check(StrandedPod),
    /// Ask the agent whether it is ready, and tell the queue.
    AskAgent,
    /// Restart the process.
    Restart,
}

impl Queue {
    pub fn new(turns: Turns) -> Self {
        let state = State { pods: Vec::new(), turns, is_restart_due: false };
        Queue { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Queues a pod at the end. If a version of the pod waits already, the new version takes its
    /// place, because each failure of a validator causes several events. Returns `false` if too
    /// many pods wait, to bound memory.
    #[must_use]
    pub fn push(&self, pod: StrandedPod) -> bool {
        let mut state = self.lock();
        let is_pushed = state.push(pod, Instant::now());
        self.changed.notify_all();
        is_pushed
    }

    /// Removes the pod with this UID, which was deleted. Otherwise a tenant that creates and
    /// deletes pods without end would fill the queue.
    pub fn remove(&self, uid: &str) {
        self.lock().pods.retain(|queued| queued.pod.found.uid != uid);
    }

    /// Removes the pods with failed validators that a new list lacks: they were deleted while the
    /// watch was interrupted.
    pub fn retain_listed(&self, listed: &[StrandedPod]) {
        self.lock().pods.retain(|queued| {
            let FoundPod { found_by, uid, .. } = &queued.pod.found;
            *found_by == FoundBy::Audit || listed.iter().any(|listed| listed.found.uid == *uid)
        });
    }

    /// Waits until the worker has something to do. A pod whose turn has come is taken: it no longer
    /// waits, until a retry, its next event or the next audit queues it again.
    pub fn next(&self) -> Next {
        let mut is_budget_logged = false;
        let mut state = self.lock();
        loop {
            if state.is_restart_due && !state.has_repairable_pod(Instant::now()) {
                return Next::Restart;
            }
            let Some((index, turn)) = state.first_in_turn(Instant::now()) else {
                state = self.wait_for_change(state, Duration::MAX);
                continue;
            };
            match turn {
                Turn::Now => return Next::Check(state.take(index)),
                Turn::AskAgent => return Next::AskAgent,
                Turn::UntilNextAudit => state.leave_to_next_audit(index),
                Turn::Wait(reason, wait) => {
                    if reason == WaitReason::Budget && !is_budget_logged {
                        is_budget_logged = true;
                        tracing::info!(
                            "The repair budget is used up; the next repair is possible in \
                             {wait:.0?}"
                        );
                    }
                    state = self.wait_for_change(state, wait);
                }
            }
        }
    }

    /// Unlocks the state until it changes, or for `longest_wait`.
    fn wait_for_change<'q>(
        &self,
        state: MutexGuard<'q, State>,
        longest_wait: Duration,
    ) -> MutexGuard<'q, State> {
        let waited = self.changed.wait_timeout(state, longest_wait);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state
    }

    /// Requests a restart of the process. The restart follows once no waiting pod can be repaired
    /// without it.
    pub fn request_restart(&self) {
        self.lock().is_restart_due = true;
        self.changed.notify_all();
    }

    /// Records whether the agent is ready. Returns whether this response begins a pause of repairs.
    pub fn record_agent(&self, is_ready: bool) -> bool {
        self.lock().turns.record_agent(is_ready, Instant::now())
    }

    /// Suspends the repairs of pods that audits found, or lets them continue.
    pub fn suspend_audit_repairs(&self, is_suspended: bool) {
        self.lock().turns.suspend_audit_repairs(is_suspended);
    }

    /// Returns how long the pod, which needs a repair, is held because of an earlier repair. `None`
    /// if it is not held.
    pub fn hold(&self, pod: &StrandedPod) -> Option<Duration> {
        self.lock().turns.hold(pod, Instant::now())
    }

    /// Counts an attempt that may have changed the pod against the repair budget.
    pub fn spend_budget(&self, pod: &StrandedPod) {
        self.lock().turns.spend_budget(&pod.found.namespace, Instant::now());
    }

    /// Records that the pod was repaired.
    pub fn record_repair(&self, pod: &StrandedPod) {
        let mut state = self.lock();
        state.turns.record_repair(pod, Instant::now(), SystemTime::now());
        if let Some(attempts) = state.attempts(pod) {
            attempts.record_repair();
        }
    }

    /// Records that the pod was only reported, in mode `report`.
    pub fn record_report_only(&self, pod: &StrandedPod) {
        let mut state = self.lock();
        state.turns.record_repair(pod, Instant::now(), SystemTime::now());
        if let Some(attempts) = state.attempts(pod) {
            attempts.record_report_only(Instant::now());
        }
    }

    /// Records an attempt that did not repair the pod. A pod with a failed validator is tried again
    /// after at least `wait`. A pod that an audit found waits for the next audit.
    pub fn retry(&self, pod: &StrandedPod, wait: Duration) {
        let mut state = self.lock();
        if let Some(attempts) = state.queue_again(pod) {
            attempts.record_attempt(Instant::now(), wait);
        }
    }

    /// Like [`Queue::retry`], after a failed request or inspection. Returns whether to report the
    /// failure (see [`Attempts::record_failure`]); `false` if the pod was deleted meanwhile.
    pub fn retry_after_failure(&self, pod: &StrandedPod) -> bool {
        match self.lock().queue_again(pod) {
            Some(attempts) => attempts.record_failure(Instant::now()),
            None => false,
        }
    }

    /// Records that the pod has all its rules, although its validator failed. Returns whether the
    /// validator keeps failing in spite of the rules (see [`Attempts::record_complete`]).
    pub fn record_complete(&self, pod: &StrandedPod) -> bool {
        match self.lock().attempts(pod) {
            Some(attempts) => attempts.record_complete(Instant::now()),
            None => false,
        }
    }

    /// Records a report of `why` the pod is left unchanged, if the report is due (see
    /// [`Attempts::record_report_if_due`]). Returns whether it is due; `false` if the pod was
    /// deleted meanwhile.
    pub fn record_report_if_due(&self, pod: &StrandedPod, why: &str) -> bool {
        match self.lock().attempts(pod) {
            Some(attempts) => attempts.record_report_if_due(why, Instant::now()),
            None => false,
        }
    }

    /// Records that an audit found the pod with all its rules. Returns whether the worker has
    /// reported that the pod is left unchanged, so that the report has to be ended.
    pub fn end_report(&self, pod: &FoundPod) -> bool {
        let mut state = self.lock();
        let Some(index) = state.position(FoundBy::Audit, &pod.uid) else { return false };
        state.pods[index].attempts.end(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn position(&self, found_by: FoundBy, uid: &str) -> Option<usize> {
        self.pods.iter().position(|queued| {
            let found = &queued.pod.found;
            found.found_by == found_by && found.uid == uid
        })
    }

    fn attempts(&mut self, pod: &StrandedPod) -> Option<&mut Attempts> {
        let index = self.position(pod.found.found_by, &pod.found.uid)?;
        Some(&mut self.pods[index].attempts)
    }

    /// Lets a pod with a failed validator wait for another attempt. Returns its attempts.
    fn queue_again(&mut self, pod: &StrandedPod) -> Option<&mut Attempts> {
        let index = self.position(pod.found.found_by, &pod.found.uid)?;
        let queued = &mut self.pods[index];
        if pod.found.found_by == FoundBy::Validator {
            queued.is_waiting = true;
        }
        Some(&mut queued.attempts)
    }

    /// Does the work of [`Queue::push`]. If the queue is full, first forgets the pods that do not
    /// wait.
    fn push(&mut self, pod: StrandedPod, now: Instant) -> bool {
        if self.is_full() {
            self.pods.retain(|queued| queued.is_waiting);
        }
        match self.position(pod.found.found_by, &pod.found.uid) {
            Some(index) => {
                self.push_again(index, pod);
                true
            }
            None => self.push_new(pod, now),
        }
    }

    fn is_full(&self) -> bool {
        self.pods.len() >= MAX_PODS
    }

    fn push_new(&mut self, pod: StrandedPod, now: Instant) -> bool {
        if self.is_full() {
            return false;
        }
        let attempts = Attempts::none(now);
        self.pods.push(QueuedPod { pod, is_waiting: true, attempts });
        true
    }

    /// Replaces the pod at `index` by its new version. A waiting pod keeps its place. Any other pod
    /// is queued at the end.
    fn push_again(&mut self, index: usize, pod: StrandedPod) {
        if self.pods[index].is_waiting {
            self.pods[index].pod = pod;
            return;
        }
        let QueuedPod { attempts, .. } = self.pods.remove(index);
        self.pods.push(QueuedPod { pod, is_waiting: true, attempts });
    }

    /// Returns the waiting pod whose turn comes first, and its turn. If the turns of several pods
    /// come at the same time, the pod is first whose namespace has had the fewest recent repairs.
    fn first_in_turn(&self, now: Instant) -> Option<(usize, Turn)> {
        let mut first: Option<(usize, Turn)> = None;
        let mut lowest = (Duration::MAX, usize::MAX);
        for (index, QueuedPod { pod, is_waiting, attempts }) in self.pods.iter().enumerate() {
            if !is_waiting {
                continue;
            }
            let turn = self.turns.turn_of(pod, attempts, now);
            let rank = (turn.wait(), self.turns.recent_repairs(&pod.found.namespace, now));
            if rank < lowest {
                lowest = rank;
                first = Some((index, turn));
            }
        }
        first
    }

    /// Whether a restart has to wait for a pod. It does not for pods that wait only because of an
    /// earlier attempt, or for the next audit. It does for pods that wait for the repair budget,
    /// because the next process would not know how much of the budget is used up.
    fn has_repairable_pod(&self, now: Instant) -> bool {
        for QueuedPod { pod, is_waiting, attempts } in &self.pods {
            if !is_waiting {
                continue;
            }
            match self.turns.turn_of(pod, attempts, now) {
                Turn::Wait(WaitReason::EarlierAttempt, _) | Turn::UntilNextAudit => {}
                Turn::Wait(WaitReason::Budget | WaitReason::AgentNotReady, _)
                | Turn::Now
                | Turn::AskAgent => return true,
            }
        }
        false
    }

    /// Lets the pod no longer wait, until an audit queues it again.
    fn leave_to_next_audit(&mut self, index: usize) {
        let queued = &mut self.pods[index];
        queued.is_waiting = false;
        let FoundPod { namespace, name, .. } = &queued.pod.found;
        tracing::debug!(namespace, name, "Ignoring pod: repairs of audited pods are suspended");
    }

    fn take(&mut self, index: usize) -> StrandedPod {
        self.turns.record_taken();
        let queued = &mut self.pods[index];
        queued.is_waiting = false;
        queued.pod.clone()
    }
}

#[cfg(test)]
mod tests;
