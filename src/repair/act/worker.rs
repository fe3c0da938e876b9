//! Takes stranded pods from the queue, repairs one at a time, and reports each result by log
//! line, metric and Event.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::check::{CheckedPod, check};
use super::not_repaired::{self, COMPLETE, NotRepaired, Retry};
use super::{delete, in_place};
use crate::firewall::describe_missing;
use crate::kube::connection::Connection;
use crate::kube::event::Regarding;
use crate::repair::find::netns_lookup::NetnsUnknown;
use crate::repair::find::stranded::{FoundPod, StrandedPod};
use crate::repair::pod_events::{REPAIRED_RECENTLY, REPLACE, failing, repair_event};
use crate::repair::queue::Next;
use crate::repair::settings::RepairMode;
use crate::repair::{Shared, agent_ready};

/// Timeout of each API request of the worker, once for connecting and once more for the response.
/// The value is upstream's.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

const LATER_RESTART: &str = "the repair controller restarts when it has run for 10 minutes, and \
                             then repairs the pod; to replace the pod now, delete it";

pub struct Worker {
    connection: Connection,
    shared: Arc<Shared>,
}

impl Worker {
    pub fn new(connection: Connection, shared: Arc<Shared>) -> Self {
        Worker { connection, shared }
    }

    /// Repairs pods until the process exits, or has to restart. The process may end at any step of
    /// a repair, because the next controller finds the pod again.
    pub fn run(mut self) {
        loop {
            match self.shared.queue.next() {
                Next::Check(pod) => self.repair(&pod),
                Next::AskAgent => self.ask_agent(),
                Next::Restart => return restart(),
            }
        }
    }

    /// Asks the agent whether it is ready, and tells the queue. Logs a warning if that pauses
    /// repairs.
    fn ask_agent(&self) {
        let Some(address) = &self.shared.settings.agent_addr else { return };
        let response = agent_ready::ask(address);
        let begins_pause = self.shared.queue.record_agent(response.is_ok());
        if let Err(why) = response
            && begins_pause
        {
            tracing::warn!("Repairs are paused: {why}");
        }
    }

    fn repair(&mut self, pod: &StrandedPod) {
        let began = Instant::now();
        match self.attempt(pod) {
            Ok(missing_rules) => self.record_repair(pod, began, &missing_rules),
            Err(reason) => self.record_not_repaired(pod, &reason),
        }
    }

    /// Applies the repair mode to the pod if the pod still needs a repair. Returns the missing
    /// rules; empty if the rules were not read.
    fn attempt(&mut self, found: &StrandedPod) -> Result<Vec<String>, NotRepaired> {
        let checked = check(&mut self.connection, &self.shared.settings, found)?;
        if let Some(wait) = self.shared.queue.hold(&checked.pod) {
            self.shared.metrics.pods_held.inc();
            return Err(NotRepaired::skip(REPAIRED_RECENTLY, Retry::After(wait)));
        }
        let result = self.apply_mode(&checked);
        if may_have_changed_pod(&result) {
            self.shared.queue.spend_budget(&checked.pod);
        }
        result?;
        Ok(checked.missing_rules().to_vec())
    }

    /// Deletes the pod, installs its rules, or leaves it unchanged, according to the repair mode.
    fn apply_mode(&mut self, checked: &CheckedPod) -> Result<(), NotRepaired> {
        let CheckedPod { pod, inspected } = checked;
        let settings = &self.shared.settings;
        match settings.mode {
            RepairMode::Delete => {
                not_repaired::check_replacement(&pod.facts, settings.delete_unmanaged)?;
                delete::evict_or_delete(&self.connection.client()?, &pod.found)?;
            }
            RepairMode::InPlace => {
                if let Some(inspected) = inspected {
                    in_place::install_rules(inspected)?;
                }
            }
            RepairMode::Report => {}
        }
        Ok(())
    }

    /// Counts, logs and reports a pod to which the repair mode was applied.
    fn record_repair(&mut self, pod: &StrandedPod, began: Instant, missing_rules: &[String]) {
        let mode = self.shared.settings.mode;
        self.count_repair(pod, began);
        let line = match mode {
            RepairMode::Delete => "Deleted pod",
            RepairMode::InPlace => "Repaired pod in place",
            RepairMode::Report => "Reported stranded pod",
        };
        let missing = describe_missing_rules(missing_rules);
        let FoundPod { namespace, name, found_by, .. } = &pod.found;
        tracing::info!(namespace, name, "{line}{missing}");
        let event = repair_event(mode, *found_by, missing_rules.len());
        self.shared.publish_event(&mut self.connection, Regarding::from(&pod.found), &event);
    }

    /// Counts a repair that took from `began` until now, and tells the queue.
    fn count_repair(&self, pod: &StrandedPod, began: Instant) {
        let Shared { settings, queue, metrics, .. } = &*self.shared;
        match settings.mode {
            RepairMode::Delete => {
                metrics.pods_delete_latency_seconds.observe(began.elapsed().as_secs_f64());
                metrics.pods_deleted.inc();
                queue.record_repair(pod);
            }
            RepairMode::InPlace => {
                metrics.pods_repaired.inc();
                queue.record_repair(pod);
            }
            RepairMode::Report => {
                metrics.pods_reported.inc();
                queue.record_report_only(pod);
            }
        }
    }

    /// Records why a pod was not repaired, and decides when to try again.
    fn record_not_repaired(&mut self, pod: &StrandedPod, reason: &NotRepaired) {
        let FoundPod { namespace, name, .. } = &pod.found;
        match reason {
            NotRepaired::Unneeded(why) => tracing::debug!(namespace, name, "{why}"),
            NotRepaired::Complete => self.record_complete(pod, reason),
            NotRepaired::Skipped { why, retry } => self.record_skipped(pod, why, *retry),
            NotRepaired::NetnsUnknown(NetnsUnknown::MountedLater { at }) => {
                self.record_hidden_netns(pod, reason, *at);
            }
            NotRepaired::NetnsUnknown(NetnsUnknown::NoResult) => {
                self.record_missing_result(pod, reason);
            }
            NotRepaired::NetnsUnknown(NetnsUnknown::NoAddress | NetnsUnknown::TooManyAddresses)
            | NotRepaired::Connection(_)
            | NotRepaired::Request(_)
            | NotRepaired::Failed(_) => self.record_failure(pod, reason),
        }
    }

    /// Records that the pod has all its rules. If its validator keeps failing in spite of the
    /// rules, reports that.
    fn record_complete(&mut self, pod: &StrandedPod, reason: &NotRepaired) {
        let FoundPod { namespace, name, .. } = &pod.found;
        tracing::debug!(namespace, name, "{reason}");
        let keeps_failing = self.shared.queue.record_complete(pod);
        if keeps_failing {
            self.report_skipped(pod, COMPLETE);
        }
    }

    /// Reports why the pod was left unchanged, and lets it wait for its next attempt.
    fn record_skipped(&mut self, pod: &StrandedPod, why: &str, retry: Retry) {
        // Report before the wait starts. A wait can be as long as the time between two reports, and
        // this order makes the next report due by the time when the pod is checked again.
        self.report_skipped(pod, why);
        match retry {
            Retry::After(wait) => self.shared.queue.retry(pod, wait),
            Retry::WhenFoundAgain => {}
        }
    }

    /// Records that the pod's netns file was made at `made`, too late for this process to see the
    /// netns. Requests a restart if the process may restart now, or else reports the pod.
    fn record_hidden_netns(&mut self, pod: &StrandedPod, reason: &NotRepaired, made: SystemTime) {
        let net_dir = self.shared.settings.net_dir();
        let wait = self.shared.restart_policy.wait(made, &net_dir);
        self.shared.queue.retry(pod, wait);
        if !wait.is_zero() {
            self.report_skipped(pod, &format!("{reason}; {LATER_RESTART}"));
            return;
        }
        let FoundPod { namespace, name, .. } = &pod.found;
        tracing::info!(namespace, name, "Pod is not repaired before a restart: {reason}");
        self.shared.queue.request_restart();
    }

    /// Records that no cached CNI result leads to the pod's netns. The repair is tried again,
    /// because the runtime may cache the result later. But the pod is reported at once: if the
    /// runtime caches no results, only a person can repair the pod.
    fn record_missing_result(&mut self, pod: &StrandedPod, reason: &NotRepaired) {
        self.log_failure(pod, reason);
        self.shared.queue.retry(pod, Duration::ZERO);
        self.report_skipped(pod, &format!("{reason}; {REPLACE}"));
    }

    /// Records a failed request or inspection, and reports the pod once its repair has failed for
    /// some time.
    fn record_failure(&mut self, pod: &StrandedPod, reason: &NotRepaired) {
        self.log_failure(pod, reason);
        let is_report_due = self.shared.queue.retry_after_failure(pod);
        if is_report_due {
            self.shared.publish_skip(&mut self.connection, &pod.found, &failing(reason));
        }
    }

    fn log_failure(&self, pod: &StrandedPod, reason: &NotRepaired) {
        let FoundPod { namespace, name, .. } = &pod.found;
        let line = reason.count_failure(self.shared.settings.mode, &self.shared.metrics);
        tracing::warn!(err = %reason, namespace, name, "{line}");
    }

    /// Reports why the pod is left unchanged for now, unless the same reason was reported for it a
    /// short time ago.
    fn report_skipped(&mut self, pod: &StrandedPod, why: &str) {
        if self.shared.queue.record_report_if_due(pod, why) {
            self.shared.publish_skip(&mut self.connection, &pod.found, why);
        }
    }
}

/// Returns the end of a log line, which names the missing rules. Empty if there are none.
fn describe_missing_rules(missing: &[String]) -> String {
    if missing.is_empty() {
        return String::new();
    }
    format!("; missing rules in the format of iptables-save: {}", describe_missing(missing))
}

/// Ends the process by sending SIGTERM to itself. The kubelet then starts the container again, with
/// the netns mounts that the node has at that time.
fn restart() {
    tracing::info!("Restarting, to enter network namespaces that were mounted after the start");
    if let Err(error) = kill(Pid::this(), Signal::SIGTERM) {
        tracing::warn!("Cannot restart: {}", error.desc());
    }
}

/// Whether an attempt may have changed the pod, so that it counts against the repair budget.
fn may_have_changed_pod(result: &Result<(), NotRepaired>) -> bool {
    let Err(reason) = result else { return true };
    match reason {
        NotRepaired::Skipped { .. } | NotRepaired::Unneeded(_) => false,
        // A rejected request changed nothing, but a request without a response may have been
        // carried out.
        NotRepaired::Request(error) => error.code().is_none(),
        NotRepaired::Complete
        | NotRepaired::NetnsUnknown(_)
        | NotRepaired::Connection(_)
        | NotRepaired::Failed(_) => true,
    }
}
