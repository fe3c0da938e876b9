//! The audit: after the start and periodically, compares the rules of all running meshed pods with
//! those that they started with, and queues pods with missing rules. The worker repairs them. Pods
//! whose rules are not those of today's values are only counted. `firewall::check` compares.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use super::inspect::Inspector;
use super::plugin_config;
use super::stranded::{FoundBy, StrandedPod};
use super::suspension::{Findings, MostlyDamaged};
use crate::backoff::{Backoff, Limits, between, jitter};
use crate::kube::connection::Connection;
use crate::kube::event::{EventContent, EventType, Regarding};
use crate::kube::object_reader::ReadFrom;
use crate::kube::pod_list::{FromPod, MAX_PODS};
use crate::kube::pod_watch::{self, Selection};
use crate::kube::types::Pod;
use crate::pod::Decision;
use crate::pod::facts::{ObjectFacts, object_facts};
use crate::repair::settings::{RepairMode, Settings};
use crate::repair::{Shared, agent_ready};

/// Shortest and longest time between the start of the controller and the first audit in mode
/// `in-place`. By then kubelet has started the node's pods after a reboot.
const FIRST_AUDIT: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(120)];

/// First and longest wait before the audit after the start is repeated, because it failed or found
/// damaged pods.
const REPETITIONS: Limits = [Duration::from_secs(60), Duration::from_secs(3600)];

/// A pod to audit. All pods of the list are in memory at once, so that reading the response does
/// not wait for the inspections.
struct AuditedPod {
    pod: StrandedPod,
    facts: Decision<ObjectFacts>,
}

impl FromPod for AuditedPod {
    fn from_pod(object: Pod) -> Option<Self> {
        let pod = StrandedPod::from_object(&object, FoundBy::Audit)?;
        Some(AuditedPod { pod, facts: object_facts(object).ok()? })
    }
}

/// Returns the time from the start of the controller to its first audit; `None`: no audits.
///
/// After a reboot kubelet skips the init containers, the validator among them, of a pod whose app
/// container was created but not started. Such a pod runs without redirect rules, and only an
/// audit finds it. So mode `in-place`, which changes no pod that has its rules, always audits after
/// the start.
pub fn first_wait(settings: &Settings) -> Option<Duration> {
    // The first audit comes at a random time within the period, so that the nodes of a cluster do
    // not audit together.
    let in_period = settings.audit_period().map(jitter);
    if settings.mode != RepairMode::InPlace {
        return in_period;
    }
    let after_start = between(FIRST_AUDIT[0], FIRST_AUDIT[1]);
    Some(in_period.map_or(after_start, |wait| wait.min(after_start)))
}

pub struct Audit {
    connection: Connection,
    shared: Arc<Shared>,
    /// Whether the last audit found pods with drift.
    had_drift: bool,
    /// Time since which the plugin installs the rules of each new pod. Only the audits after the
    /// start need the time.
    plugin_works_since: Option<SystemTime>,
}

impl Audit {
    pub fn new(connection: Connection, shared: Arc<Shared>) -> Self {
        Audit { connection, shared, had_drift: false, plugin_works_since: None }
    }

    /// Audits after `wait`, and then in each period of the settings, or without a period until all
    /// pods have their rules.
    pub fn run(self, wait: Duration) {
        match self.shared.settings.audit_period() {
            Some(period) => self.audit_each(period, wait),
            None => self.audit_until_complete(wait),
        }
    }

    /// Audits in each period, which varies by a tenth.
    fn audit_each(mut self, period: Duration, wait: Duration) {
        thread::sleep(wait);
        loop {
            // A failure is logged, and the next audit is due anyway.
            self.audit();
            thread::sleep(between(period * 9 / 10, period * 11 / 10));
        }
    }

    /// Audits until an audit finds no damaged pod: nothing else would find a pod again whose repair
    /// failed.
    fn audit_until_complete(mut self, wait: Duration) {
        let mut backoff = Backoff::spread(REPETITIONS);
        self.wait_for_agent();
        self.read_plugin_works_since();
        thread::sleep(wait);
        loop {
            self.wait_for_agent();
            self.read_plugin_works_since();
            if self.audit().is_some_and(|damaged| damaged == 0) {
                return;
            }
            thread::sleep(backoff.next_delay());
        }
    }

    /// Waits until the agent is ready, because before that the node may have no plugin entry.
    fn wait_for_agent(&self) {
        if let Some(address) = &self.shared.settings.agent_addr {
            agent_ready::wait_until_ready(address);
        }
    }

    fn read_plugin_works_since(&mut self) {
        let net_dir = self.shared.settings.net_dir();
        self.plugin_works_since = self.shared.restart_policy.plugin_works_since(&net_dir);
    }

    /// Audits once. Returns the number of damaged pods, or `None` after a failure, which is logged.
    fn audit(&mut self) -> Option<usize> {
        match self.inspect_pods() {
            Ok(findings) => {
                let damaged = findings.damaged.len();
                self.conclude(findings);
                Some(damaged)
            }
            Err(error) => {
                self.shared.metrics.audit_errors.inc();
                tracing::warn!(err = %error, "Cannot audit the pods of this node");
                None
            }
        }
    }

    /// Lists the pods of the node, and inspects each of them.
    fn inspect_pods(&mut self) -> Result<Findings, Box<dyn Error>> {
        let settings = &self.shared.settings;
        let config = plugin_config::read(&settings.net_dir())?;
        let pods = Selection::Node(settings.node.clone());
        let list = pod_watch::list_pods::<AuditedPod>(&mut self.connection, &pods)?;
        let client = self.connection.client()?;
        let mut inspector = Inspector::new(client, config, settings, ReadFrom::Cache);
        let mut findings = Findings::default();
        for _ in 0..list.dropped {
            findings.errors.push(format!("the list has more than {MAX_PODS} pods"));
        }
        for AuditedPod { pod, facts } in list.pods {
            let inspected = inspector.inspect(&pod, facts);
            findings.add(pod, inspected, self.plugin_works_since);
        }
        Ok(findings)
    }

    /// Counts and reports the findings, and queues the damaged pods unless they are too many.
    fn conclude(&mut self, findings: Findings) {
        let mostly_damaged = findings.mostly_damaged();
        // Repairs are suspended before the findings are reported: meanwhile the worker would repair
        // pods of earlier audits.
        let was_suspended = self.shared.queue.suspend_audit_repairs(mostly_damaged.is_some());
        log_gaps(&findings);
        self.count(&findings);
        self.report_drift(findings.drifted);
        match mostly_damaged {
            Some(damage) => self.report_suspension(damage, was_suspended),
            None => {
                for pod in findings.damaged {
                    self.shared.enqueue(pod);
                }
            }
        }
        if findings.not_shown > 0 {
            tracing::info!(
                "{} pods are not audited before a restart: their network namespaces were mounted \
                 after this container had started",
                findings.not_shown
            );
            self.shared.queue.request_restart();
        }
        self.shared.metrics.audits.inc();
    }

    fn count(&self, findings: &Findings) {
        let metrics = &self.shared.metrics;
        metrics.audit_errors.inc_by(findings.errors.len() as u64);
        metrics.audit_pods_complete.inc_by(findings.complete.len() as u64);
        metrics.audit_pods_incomplete.inc_by(findings.damaged.len() as u64);
        metrics.audit_pods_unreadable.inc_by(findings.unreadable as u64);
        metrics.audit_pods_drifted.set(findings.drifted as i64);
        metrics.audit_repairs_suspended.set(findings.mostly_damaged().is_some().into());
    }

    /// Reports drift, unless the last audit found drift, too.
    fn report_drift(&mut self, drifted: usize) {
        if drifted > 0 && !self.had_drift {
            let note = format!(
                "{drifted} running pods have redirect rules of other chart values or annotations \
                 than today's, or of an earlier version of the plugin, and keep them; to apply \
                 today's, restart the pods"
            );
            tracing::info!("{note}");
            self.publish(EventType::Normal, "LinkerdCNIRulesDrifted", note);
        }
        self.had_drift = drifted > 0;
    }

    /// Logs the suspension, and publishes an Event unless repairs were suspended before.
    fn report_suspension(&mut self, damage: MostlyDamaged, was_suspended: bool) {
        let MostlyDamaged { damaged, compared } = damage;
        let note = format!(
            "{damaged} of {compared} audited pods have missing or changed redirect rules; the \
             audit repairs none while these are more than half; check that the CNI plugin works on \
             this node, then restart the pods that the log names"
        );
        tracing::warn!("{note}");
        if !was_suspended {
            self.publish(EventType::Warning, "LinkerdCNIRepairsSuspended", note);
        }
    }

    fn publish(&mut self, kind: EventType, reason: &'static str, note: String) {
        let content = EventContent { kind, reason, action: "Reporting", note };
        let node = Regarding::node(&self.shared.settings.node);
        self.shared.publish_event(&mut self.connection, node, &content);
    }
}

/// Logs which pods could not be audited. Logs errors once for each audit, not for each pod: an
/// invalid setting affects every pod.
fn log_gaps(findings: &Findings) {
    if let Some(err) = findings.errors.first() {
        let pods = findings.errors.len();
        tracing::warn!(err, "Cannot audit {pods} pods; err is the first error");
    }
    if findings.unreadable > 0 {
        tracing::warn!(
            "Skipped {} pods in the audit: their network namespaces have a table of \
             iptables-legacy, or too many rules, which the repair controller cannot read",
            findings.unreadable
        );
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        settings: Settings,
    }

    #[test]
    fn mode_in_place_audits_within_two_minutes_and_others_within_the_period() {
        for (mode, period, seconds) in [
            ("delete", "0", None),
            ("report", "0", None),
            ("in-place", "0", Some(60..=120)),
            ("in-place", "10", Some(0..=10)),
            ("in-place", "36000", Some(0..=120)),
            ("delete", "10", Some(0..=10)),
        ] {
            let line = ["x", "--node-name=a", "--controller-pod-name=b", "--mode", mode];
            let flags = line.into_iter().chain(["--audit-seconds", period]);
            let Flags { settings } = Flags::try_parse_from(flags).unwrap();
            let first = first_wait(&settings).map(|wait| wait.as_secs());
            assert_eq!(first.is_some(), seconds.is_some(), "{mode} {period}");
            assert!(first.is_none_or(|first| seconds.unwrap().contains(&first)), "{first:?}");
        }
    }
}
