//! Takes stranded pods from the queue, repairs one at a time, and reports each result by log
//! line, metric and Event. [`RepairAttempt`] is the repair itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use super::agent_ready;
use super::attempt::{Error, RepairAttempt, RepairOutcome};
use super::event::{REPAIRED_RECENTLY, RepairEvent};
use super::histories::Histories;
use super::history::HOLD;
use super::host_dirs::HostDirs;
use super::metrics::Metrics;
use super::rate_limit::RepairBudget;
use super::stranded_pod::{FoundBy, StrandedPod};
use super::{RepairMode, Shared};
use crate::firewall::describe_missing;
use crate::kube::connection::Connection;
use crate::kube::event::{self, Regarding, Reporter};

/// Timeout of each API request of the worker, once for connecting and once for the
/// response. Upstream's value.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for the API server to subtract a deleted pod from its disruption budgets. An eviction
/// does so itself, a dry run and a deletion do not.
const BUDGET_UPDATE: Duration = Duration::from_secs(5);

/// Why the worker reports a pod whose validator fails again in spite of all rules.
const COMPLETE: &str = "its linkerd-network-validator fails, although it has all its redirect \
                        rules; check its annotations config.linkerd.io/skip-outbound-ports and \
                        config.linkerd.io/skip-subnets, and its log";

/// Repairs the pods of the queue.
pub struct Worker {
    pub connection: Connection,
    pub reporter: Reporter,
    pub mode: RepairMode,
    /// Whether mode `delete` deletes pods without a controller.
    pub delete_unmanaged: bool,
    pub host: HostDirs,
    /// `host:port` of the node's agent, which has to be ready before each repair. `None`:
    /// repair without that check.
    pub agent_address: Option<String>,
    pub budget: RepairBudget,
    pub histories: Histories,
    pub shared: Arc<Shared>,
}

impl Worker {
    /// Repairs pods until the queue is closed.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(pod) = self.next_pod() {
            let is_agent_ready = self
                .agent_address
                .as_ref()
                .is_none_or(|address| agent_ready::wait_until_ready(address, &shared));
            if !is_agent_ready {
                return;
            }
            self.repair(&pod);
        }
    }

    /// Waits for a pod that the budget allows to repair. Returns `None` once the queue is closed.
    fn next_pod(&self) -> Option<StrandedPod> {
        let turn = |pod: &StrandedPod| self.budget.turn(&pod.namespace, Instant::now());
        self.shared.queue.pop(turn, |wait| {
            self.shared.metrics.budget_waits.inc();
            tracing::info!(
                "The repair budget is used up; the next repair is possible in {wait:.0?}"
            );
        })
    }

    /// Tries to repair the pod, unless it was reported or skipped recently.
    fn repair(&mut self, pod: &StrandedPod) {
        let shared = Arc::clone(&self.shared);
        let (namespace, name) = (&pod.namespace, &pod.name);
        // Queued before the audit that suspended repairs. The next audit finds the pod again.
        if pod.found_by == FoundBy::Audit && shared.audit_repairs_suspended.load(Ordering::Relaxed)
        {
            tracing::debug!(namespace, name, "Ignoring pod: repairs of audited pods are suspended");
            return;
        }
        if !self.histories.ignored.allows(pod, Instant::now()) {
            tracing::debug!(
                namespace,
                name,
                "Ignoring pod: reported or skipped less than an hour ago"
            );
            return;
        }
        if self.histories.was_complete(pod, Instant::now()) {
            tracing::debug!(namespace, name, "Ignoring pod: it had all its redirect rules");
            return;
        }
        if !self.histories.evictions_rejected.allows(pod, Instant::now()) {
            shared.unrepaired.add(pod.found_by, Instant::now() + HOLD);
            return;
        }
        let began = Instant::now();
        let attempt = RepairAttempt {
            connection: &mut self.connection,
            mode: self.mode,
            delete_unmanaged: self.delete_unmanaged,
            host: &self.host,
            budget: &mut self.budget,
            repaired: &self.histories.repaired,
            shared: &shared,
        };
        match attempt.run(pod) {
            Ok(RepairOutcome::Repaired { missing_rules, dry_run }) => {
                self.record_repair(pod, began, &missing_rules);
                self.publish(pod, RepairEvent::Repaired(self.mode, missing_rules.len()));
                // A pod with a failed validator is not ready, so no budget counts it.
                if dry_run && pod.found_by == FoundBy::Audit {
                    shared.queue.is_closed_within(BUDGET_UPDATE);
                }
            }
            Ok(RepairOutcome::NotNeeded(why)) => tracing::debug!(namespace, name, "{why}"),
            Ok(RepairOutcome::Complete) => {
                tracing::debug!(namespace, name, "Pod has all its redirect rules");
                if self.histories.record_complete(pod, Instant::now()) {
                    self.report_unchanged(pod, COMPLETE);
                }
            }
            Ok(RepairOutcome::RepairedRecently(end)) => self.hold(pod, end),
            Ok(RepairOutcome::CannotRepair(why)) => self.skip(pod, &why),
            Ok(RepairOutcome::EvictionRejected(why)) => self.postpone_eviction(pod, &why),
            // Checked again on the pod's next event or audit: a controller may adopt the pod.
            Ok(RepairOutcome::Unmanaged(why)) => self.report_unchanged(pod, why),
            Err(error) => self.record_error(pod, &error),
        }
    }

    /// Counts and logs a repair, and starts the hold of the pod or of its owner.
    fn record_repair(&mut self, pod: &StrandedPod, began: Instant, missing_rules: &[String]) {
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
                "Reported stranded pod"
            }
        };
        match missing_rules {
            [] => tracing::info!(namespace, name, "{line}"),
            missing => tracing::info!(
                namespace,
                name,
                "{line}; missing rules in the format of iptables-save: {}",
                describe_missing(missing)
            ),
        }
        let repaired = &mut self.histories.repaired;
        repaired.record(pod, Instant::now(), SystemTime::now());
    }

    /// Skips a pod that is stranded again soon after a repair, until its hold ends at `end`.
    /// Reports each hold once.
    fn hold(&mut self, pod: &StrandedPod, end: Instant) {
        self.shared.metrics.pods_held.inc();
        self.shared.unrepaired.add(pod.found_by, end);
        if self.histories.repaired.mark_hold_reported(pod) {
            self.report_skipped(pod, RepairEvent::SkippedForNow(REPAIRED_RECENTLY));
        }
    }

    /// Reports a pod that cannot be repaired, and ignores the pod for [`REPORT_HOLD`](super::histories::REPORT_HOLD).
    fn skip(&mut self, pod: &StrandedPod, why: &str) {
        self.shared.metrics.pods_skipped.inc();
        let ignored = &mut self.histories.ignored;
        ignored.record(pod, Instant::now(), SystemTime::now());
        self.report_skipped(pod, RepairEvent::Skipped(why));
    }

    /// Holds a pod whose eviction was rejected, and requests a list after the hold, which finds
    /// the pod again. A disruption budget may allow the eviction once other pods of the workload
    /// are ready.
    fn postpone_eviction(&mut self, pod: &StrandedPod, why: &str) {
        let now = Instant::now();
        self.histories.evictions_rejected.record(pod, now, SystemTime::now());
        self.shared.unrepaired.add(pod.found_by, now + HOLD);
        self.report_unchanged(pod, why);
    }

    /// Reports a pod that is left unchanged for now, at most once in [`REPORT_HOLD`](super::histories::REPORT_HOLD).
    fn report_unchanged(&mut self, pod: &StrandedPod, why: &str) {
        let now = Instant::now();
        let reported = &mut self.histories.left_unchanged_reported;
        if reported.allows(pod, now) {
            self.shared.metrics.pods_skipped.inc();
            reported.record(pod, now, SystemTime::now());
            self.report_skipped(pod, RepairEvent::SkippedForNow(why));
        }
    }

    /// Logs and publishes why the pod was skipped, in the same words.
    fn report_skipped(&mut self, pod: &StrandedPod, event: RepairEvent<'_>) {
        tracing::warn!(namespace = pod.namespace, name = pod.name, "{}", event.note());
        self.publish(pod, event);
    }

    /// Counts and logs a failed repair. A new list or the next audit finds the pod again.
    fn record_error(&self, pod: &StrandedPod, error: &Error) {
        let line = count_error(self.mode, error, &self.shared.metrics);
        self.shared.unrepaired.add(pod.found_by, Instant::now());
        let (namespace, name) = (&pod.namespace, &pod.name);
        tracing::warn!(err = %error, namespace, name, "{line}");
    }

    /// Publishes an Event on the pod. A failure is only counted and logged.
    fn publish(&mut self, pod: &StrandedPod, event: RepairEvent<'_>) {
        let began = Instant::now();
        let result = self.try_publish(pod, event);
        let metrics = &self.shared.metrics;
        match result {
            Ok(()) => metrics.events_publish_latency.observe(began.elapsed().as_secs_f64()),
            Err(error) => {
                error.count_unpublished(metrics);
                tracing::warn!(
                    err = %error,
                    namespace = pod.namespace,
                    name = pod.name,
                    "Error publishing event"
                );
            }
        }
    }

    fn try_publish(&mut self, pod: &StrandedPod, event: RepairEvent<'_>) -> Result<(), Error> {
        let regarding =
            Regarding { kind: "Pod", namespace: &pod.namespace, name: &pod.name, uid: &pod.uid };
        let message = event.message(pod.found_by);
        let client = self.connection.client()?;
        Ok(event::publish(&client, &self.reporter, regarding, &message, None)?)
    }
}

/// Counts a failed repair. Returns its log line. The metrics of deletions, which upstream has too,
/// count only API requests.
fn count_error(mode: RepairMode, error: &Error, metrics: &Metrics) -> &'static str {
    let counter = match (mode, error) {
        (RepairMode::Delete, Error::Request(_)) if error.is_timeout() => {
            &metrics.pods_delete_timeout
        }
        (RepairMode::Delete, Error::Request(_) | Error::Connection(_)) => {
            &metrics.pods_delete_errors
        }
        _ => {
            metrics.repair_errors.inc();
            return "Error repairing pod";
        }
    };
    counter.inc();
    "Error deleting pod"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni;
    use crate::repair::inspect_rules;

    #[test]
    fn a_failed_inspection_is_no_failed_deletion() {
        let error = cni::Error::new(crate::failure::Failure::ApiError, "HTTP 500");
        let error = Error::Inspect(inspect_rules::Error::Redirect(error));
        let metrics = Metrics::default();
        assert_eq!(count_error(RepairMode::Delete, &error, &metrics), "Error repairing pod");
        assert_eq!((metrics.repair_errors.get(), metrics.pods_delete_errors.get()), (1, 0));
    }
}
