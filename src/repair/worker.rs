//! Takes stranded pods from the queue, repairs one at a time, and records each result as
//! log line, metric and Event. One repair is an [`Attempt`].

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Shared;
use super::agent_ready;
use super::attempt::{Attempt, Error, Outcome};
use super::budget::RepairBudget;
use super::connection::Connection;
use super::history::{HOLD, History, HistoryKey};
use super::host::Host;
use super::message::{PodEvent, message};
use super::mode::RepairMode;
use super::verdict::StrandedPod;
use crate::kube::event::{self, Regarding, Reporter};

/// Timeout of each API request of the worker, once for connecting and once for the
/// response. Upstream's value.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Time between two requests to an agent that is not ready.
const AGENT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long to ignore a pod after reporting or skipping it.
const REPORT_HOLD: Duration = Duration::from_secs(3600);

/// Repairs the pods of the queue.
pub struct Worker {
    pub connection: Connection,
    pub reporter: Reporter,
    pub mode: RepairMode,
    pub host: Host,
    /// `host:port` of the node's agent; the worker repairs only while its `/ready`
    /// succeeds. `None`: repair without asking the agent.
    pub agent_address: Option<String>,
    pub budget: RepairBudget,
    pub histories: Histories,
    pub shared: Arc<Shared>,
}

/// Pods that the worker handled recently, by what happened to them.
pub struct Histories {
    /// Repaired pods, or the owners of deleted pods: not repaired again for [`HOLD`].
    repaired: History,
    /// Reported or skipped pods: ignored for [`REPORT_HOLD`].
    ignored: History,
    /// Pods whose eviction a disruption budget refused: not evicted again for [`HOLD`].
    evictions_refused: History,
    /// Pods whose refused eviction was reported: not reported again for [`REPORT_HOLD`].
    refusals_reported: History,
}

impl Histories {
    pub fn new(mode: RepairMode) -> Self {
        let repaired_by = match mode {
            RepairMode::Delete => HistoryKey::Owner,
            RepairMode::InPlace | RepairMode::Label | RepairMode::Report => HistoryKey::Pod,
        };
        Histories {
            repaired: History::new(repaired_by, HOLD),
            ignored: History::new(HistoryKey::Pod, REPORT_HOLD),
            evictions_refused: History::new(HistoryKey::Pod, HOLD),
            refusals_reported: History::new(HistoryKey::Pod, REPORT_HOLD),
        }
    }
}

impl Worker {
    /// Repairs pods until the queue is closed.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(pod) = shared.queue.pop() {
            if !self.wait_for_turn() {
                return;
            }
            self.repair(&pod);
        }
    }

    /// Waits until the budget allows another repair and the agent is ready. Returns
    /// `false` if the queue is closed first.
    fn wait_for_turn(&mut self) -> bool {
        let Shared { queue, metrics, .. } = &*Arc::clone(&self.shared);
        let wait = self.budget.wait(Instant::now());
        if !wait.is_zero() {
            metrics.budget_waits.inc();
            tracing::info!("Waiting {wait:.0?} for the rate of acts to allow another");
            if queue.is_closed_within(wait) {
                return false;
            }
        }
        let Some(address) = &self.agent_address else {
            return true;
        };
        let mut logged = false;
        while let Err(error) = agent_ready::ready(address) {
            if !logged {
                metrics.agent_waits.inc();
                tracing::warn!("Doing nothing until the node is verified: {error}");
                logged = true;
            }
            if queue.is_closed_within(AGENT_POLL_INTERVAL) {
                return false;
            }
        }
        true
    }

    fn repair(&mut self, pod: &StrandedPod) {
        let shared = Arc::clone(&self.shared);
        let (namespace, name) = (&pod.namespace, &pod.name);
        if !self.histories.ignored.allows(pod, Instant::now()) {
            tracing::debug!(namespace, name, "Pod was told about already");
            return;
        }
        if !self.histories.evictions_refused.allows(pod, Instant::now()) {
            shared.missed.add(Instant::now() + HOLD);
            return;
        }
        let began = Instant::now();
        let attempt = Attempt {
            connection: &mut self.connection,
            mode: self.mode,
            host: &self.host,
            budget: &mut self.budget,
            repaired: &self.histories.repaired,
            shared: &shared,
        };
        match attempt.run(pod) {
            Ok(Outcome::Repaired { missing_rules }) => {
                self.record_repair(pod, began);
                self.publish(pod, PodEvent::Repaired(self.mode, &missing_rules));
            }
            Ok(Outcome::NotNeeded(why)) => tracing::debug!(namespace, name, "{why}"),
            Ok(Outcome::RepairedRecently) => self.hold(pod),
            Ok(Outcome::CannotRepair(why)) => self.skip(pod, &why),
            Ok(Outcome::EvictionRefused(why)) => self.postpone_eviction(pod, &why),
            Err(error) => self.record_error(pod, &error),
        }
    }

    /// Counts and logs a repair, and starts the hold of the pod or its owner.
    fn record_repair(&mut self, pod: &StrandedPod, began: Instant) {
        let (namespace, name) = (&pod.namespace, &pod.name);
        let metrics = &self.shared.metrics;
        let line = match self.mode {
            RepairMode::Delete => {
                metrics.pods_delete_latency.observe(began.elapsed().as_secs_f64());
                metrics.pods_deleted.inc();
                "Deleted pod"
            }
            RepairMode::InPlace => {
                metrics.pods_repaired.inc();
                "Repaired pod in place"
            }
            RepairMode::Label => {
                metrics.pods_labelled.inc();
                "Labelled pod"
            }
            RepairMode::Report => {
                metrics.pods_reported.inc();
                // The pod stays stranded: its validator fails again every few seconds.
                self.histories.ignored.record(pod, began, SystemTime::now());
                "Pod is stranded"
            }
        };
        tracing::info!(namespace, name, "{line}");
        let repaired = &mut self.histories.repaired;
        repaired.record(pod, Instant::now(), SystemTime::now());
    }

    /// Leaves a pod that is stranded soon after a repair until its hold ends. Reports each
    /// hold once.
    fn hold(&mut self, pod: &StrandedPod) {
        self.shared.metrics.pods_held.inc();
        self.shared.missed.add(Instant::now() + HOLD);
        if self.histories.repaired.is_first_refusal(pod) {
            tracing::warn!(
                namespace = pod.namespace,
                name = pod.name,
                "Pod is stranded again after it, or its owner's last one, was dealt with; \
                 leaving it for now: is the CNI plugin of this node working?"
            );
            self.publish(pod, PodEvent::RepairedRecently);
        }
    }

    /// Reports a pod that cannot be repaired, and ignores it from now on.
    fn skip(&mut self, pod: &StrandedPod, why: &str) {
        let (namespace, name) = (&pod.namespace, &pod.name);
        self.shared.metrics.pods_skipped.inc();
        let ignored = &mut self.histories.ignored;
        ignored.record(pod, Instant::now(), SystemTime::now());
        tracing::warn!(namespace, name, "Leaving pod: {why}");
        self.publish(pod, PodEvent::Skipped(why));
    }

    /// Schedules another eviction for later: the disruption budget may allow it once other
    /// pods of the workload are ready.
    fn postpone_eviction(&mut self, pod: &StrandedPod, why: &str) {
        let (namespace, name) = (&pod.namespace, &pod.name);
        let now = Instant::now();
        let Histories { evictions_refused, refusals_reported, .. } = &mut self.histories;
        evictions_refused.record(pod, now, SystemTime::now());
        self.shared.missed.add(now + HOLD);
        if refusals_reported.allows(pod, now) {
            self.shared.metrics.pods_skipped.inc();
            refusals_reported.record(pod, now, SystemTime::now());
            tracing::warn!(namespace, name, "Leaving pod for now: {why}");
            self.publish(pod, PodEvent::Skipped(why));
        }
    }

    fn record_error(&self, pod: &StrandedPod, error: &Error) {
        let metrics = &self.shared.metrics;
        let line = match self.mode {
            RepairMode::Delete if error.is_timeout() => {
                metrics.pods_delete_timeout.inc();
                "Error deleting pod"
            }
            RepairMode::Delete => {
                metrics.pods_delete_errors.inc();
                "Error deleting pod"
            }
            _ => {
                metrics.repair_errors.inc();
                "Error repairing pod"
            }
        };
        self.shared.missed.add(Instant::now());
        let (namespace, name) = (&pod.namespace, &pod.name);
        tracing::warn!(err = %error, namespace, name, "{line}");
    }

    /// Publishes an Event on the pod. A failure is only counted and logged.
    fn publish(&mut self, pod: &StrandedPod, event: PodEvent<'_>) {
        let began = Instant::now();
        let result = self.try_publish(pod, event);
        let metrics = &self.shared.metrics;
        match result {
            Ok(()) => metrics.events_publish_latency.observe(began.elapsed().as_secs_f64()),
            Err(error) => {
                let counter = match error.is_timeout() {
                    true => &metrics.events_publish_timeouts,
                    false => &metrics.events_publish_errors,
                };
                counter.inc();
                tracing::warn!(
                    err = %error,
                    namespace = pod.namespace,
                    name = pod.name,
                    "Error publishing event"
                );
            }
        }
    }

    fn try_publish(&mut self, pod: &StrandedPod, event: PodEvent<'_>) -> Result<(), Error> {
        let regarding =
            Regarding { kind: "Pod", namespace: &pod.namespace, name: &pod.name, uid: &pod.uid };
        let message = message(pod.cause, event);
        let client = self.connection.client()?;
        Ok(event::publish(&client, &self.reporter, regarding, &message)?)
    }
}
