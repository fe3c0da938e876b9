//! Counts and reports what an audit found, and queues the damaged pods. The worker repairs them.
//!
//! Pods with drift, whose rules are complete but not those of today's values, are not repaired.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::findings::{Findings, PodError};
use super::pod_reports::{PodReports, ReportTimes};
use super::suspension::{MostlyDamaged, suspension};
use crate::kube::connection::Connection;
use crate::kube::event::{EventContent, EventType, Regarding};
use crate::kube::pod_list::MAX_PODS;
use crate::repair::Shared;
use crate::repair::find::stranded::FoundPod;
use crate::repair::pod_events::{
    HELD_BACK, REPAIRS_SUSPENDED, RULES_UNKNOWN, audited_event, complete_event, known_event,
    unknown_event,
};
use crate::repair::turn::attempts::FAILURE_GRACE;

pub struct AuditReporter {
    shared: Arc<Shared>,
    /// Whether the last audit found pods with drift.
    had_drift: bool,
    /// Pods whose rules are unknown.
    unknown: PodReports,
    /// Damaged pods that are left unchanged while evictions are suspended.
    held_back: PodReports,
    /// Since when evictions are suspended. `None` while evictions go on.
    suspended: Option<ReportTimes>,
    /// Since when audits have failed, and so judged no pod. `None` after a successful audit.
    failing: Option<ReportTimes>,
    /// Whether the reports of earlier controllers were ended.
    has_ended_earlier_reports: bool,
}

impl AuditReporter {
    pub fn new(shared: Arc<Shared>) -> Self {
        AuditReporter {
            shared,
            had_drift: false,
            unknown: PodReports::after(FAILURE_GRACE),
            held_back: PodReports::after(Duration::ZERO),
            suspended: None,
            failing: None,
            has_ended_earlier_reports: false,
        }
    }

    /// Counts and reports the findings, and queues the damaged pods unless they are too many.
    pub fn conclude(&mut self, connection: &mut Connection, findings: &Findings, now: Instant) {
        let suspension = suspension(self.shared.settings.mode, findings);
        let is_suspended = suspension.is_some();
        // Suspend evictions before the reports, which take requests: meanwhile the worker would
        // evict pods that earlier audits queued.
        self.shared.queue.suspend_audit_repairs(is_suspended);
        if !is_suspended {
            for pod in &findings.damaged {
                self.shared.enqueue(pod.clone());
            }
        }
        log_gaps(findings);
        self.count(findings);
        self.end_failure(connection);
        self.end_unknown_reports(connection, findings);
        self.end_damage_reports(connection, findings);
        self.report_unknown(connection, findings, now);
        self.report_drift(connection, findings.drifted);
        match suspension {
            Some(mostly_damaged) => {
                self.report_suspension(connection, mostly_damaged, now);
                self.report_held_back(connection, findings, now);
            }
            None => self.end_suspension(connection),
        }
        self.end_earlier_reports(connection, findings);
        if findings.not_shown > 0 {
            self.request_restart(findings.not_shown);
        }
        let metrics = &self.shared.metrics;
        metrics.audit_repairs_suspended.set(is_suspended.into());
        metrics.audits.inc();
    }

    /// Counts and logs a failed audit, which judged no pod. Once audits have failed for
    /// [`FAILURE_GRACE`], publishes an Event on the node.
    pub fn record_failure(&mut self, connection: &mut Connection, error: &str, now: Instant) {
        tracing::warn!(err = %error, "Cannot audit the pods of this node");
        let metrics = &self.shared.metrics;
        metrics.audit_errors.inc();
        let times = self.failing.get_or_insert_with(|| ReportTimes::begin(now));
        metrics.audits_failing.set(times.is_older_than(FAILURE_GRACE, now).into());
        if times.record(FAILURE_GRACE, now) {
            let note = format!(
                "Cannot audit the pods of this node, so their redirect rules are unknown: {error}"
            );
            self.publish(connection, EventType::Warning, RULES_UNKNOWN, note);
        }
    }

    fn count(&self, findings: &Findings) {
        let metrics = &self.shared.metrics;
        metrics.audit_errors.inc_by((findings.errors.len() + findings.not_listed) as u64);
        metrics.audit_pods_complete.inc_by(findings.complete.len() as u64);
        metrics.audit_pods_incomplete.inc_by(findings.damaged.len() as u64);
        metrics.audit_pods_unreadable.inc_by(findings.unreadable.len() as u64);
        metrics.audit_pods_drifted.set(findings.drifted as i64);
    }

    /// Records that audits do not fail any more. If an Event on the node reported the failures,
    /// publishes another one that ends the report.
    fn end_failure(&mut self, connection: &mut Connection) {
        self.shared.metrics.audits_failing.set(0);
        let Some(times) = self.failing.take() else { return };
        if times.is_reported() {
            let note = "The pods of this node are audited again".to_owned();
            self.publish(connection, EventType::Normal, RULES_UNKNOWN, note);
        }
    }

    /// Publishes an Event on each pod whose rules were reported as unknown and are known now.
    fn end_unknown_reports(&self, connection: &mut Connection, findings: &Findings) {
        for pod in self.unknown.ended(findings.judged()) {
            self.shared.publish_event(connection, Regarding::from(pod), &known_event());
        }
    }

    /// Publishes an Event on each pod that was held back or that the worker left unrepaired, and
    /// that has all its rules now. If the worker repairs a pod, it publishes an Event that ends the
    /// report.
    fn end_damage_reports(&self, connection: &mut Connection, findings: &Findings) {
        for pod in &findings.complete {
            let was_left_by_worker = self.shared.queue.end_report(pod);
            if was_left_by_worker || self.held_back.is_reported(pod) {
                self.shared.publish_event(connection, Regarding::from(pod), &complete_event());
            }
        }
    }

    /// Ends the reports of earlier controllers, once none of them is needed any more.
    ///
    /// A report may be of a controller that has restarted since, and no longer knows of the report.
    /// Listing Events would need a permission to read those of all tenants.
    fn end_earlier_reports(&mut self, connection: &mut Connection, findings: &Findings) {
        if self.has_ended_earlier_reports || !self.replaces_earlier_reports(findings) {
            return;
        }
        self.has_ended_earlier_reports = true;
        let settings = &self.shared.settings;
        let node = Regarding::node(&settings.node);
        self.shared.publish_earlier_event(connection, node, &audited_event(), settings.started);
    }

    /// Whether the audit shows that the reason of each earlier report has ended or was reported
    /// again: no pod lacks rules, and each pod whose rules are unknown has been reported by this
    /// controller.
    fn replaces_earlier_reports(&self, findings: &Findings) -> bool {
        let is_each_pod_seen = findings.not_listed == 0 && findings.not_shown == 0;
        let is_each_unknown_reported =
            findings.unknown().all(|(pod, _)| self.unknown.is_reported(pod));
        findings.damaged.is_empty() && is_each_pod_seen && is_each_unknown_reported
    }

    /// Publishes an Event on each pod whose rules have been unknown for [`FAILURE_GRACE`], and
    /// counts these pods.
    fn report_unknown(&mut self, connection: &mut Connection, findings: &Findings, now: Instant) {
        for (pod, why) in self.unknown.record(findings.unknown(), now) {
            let FoundPod { namespace, name, .. } = pod;
            let event = unknown_event(why);
            tracing::warn!(namespace, name, "{}", event.note);
            self.shared.publish_event(connection, Regarding::from(pod), &event);
        }
        let unknown = self.unknown.lasting(now) + findings.not_listed;
        self.shared.metrics.audit_pods_unknown.set(unknown as i64);
    }

    /// Publishes an Event on each damaged pod that is held back while evictions are suspended.
    fn report_held_back(&mut self, connection: &mut Connection, findings: &Findings, now: Instant) {
        let damaged = findings.damaged.iter().map(|pod| (&pod.found, HELD_BACK));
        for (pod, why) in self.held_back.record(damaged, now) {
            self.shared.publish_skip(connection, pod, why);
        }
    }

    /// Reports drift, unless the audit before also found drift.
    fn report_drift(&mut self, connection: &mut Connection, drifted: usize) {
        if drifted > 0 && !self.had_drift {
            let note = format!(
                "{drifted} running pods have redirect rules of other chart values or annotations \
                 than today's, or of an earlier version of the plugin, and keep them; to apply \
                 today's, restart the pods"
            );
            tracing::info!("{note}");
            self.publish(connection, EventType::Normal, "LinkerdCNIRulesDrifted", note);
        }
        self.had_drift = drifted > 0;
    }

    /// Logs that evictions are suspended, and publishes an Event on the node about that.
    fn report_suspension(
        &mut self,
        connection: &mut Connection,
        mostly_damaged: MostlyDamaged,
        now: Instant,
    ) {
        let MostlyDamaged { damaged, compared } = mostly_damaged;
        let note = format!(
            "{damaged} of {compared} audited pods have missing or changed redirect rules; the \
             audit repairs none while these are more than half; check that the CNI plugin works on \
             this node, then restart the pods, each of which has an Event"
        );
        tracing::warn!("{note}");
        let times = self.suspended.get_or_insert_with(|| ReportTimes::begin(now));
        if times.record(Duration::ZERO, now) {
            self.publish(connection, EventType::Warning, REPAIRS_SUSPENDED, note);
        }
    }

    /// Records that evictions go on, and forgets the pods that were held back. If evictions were
    /// suspended, publishes an Event on the node that ends the report.
    fn end_suspension(&mut self, connection: &mut Connection) {
        if self.suspended.take().is_some() {
            let note = "Audits evict damaged pods of this node again".to_owned();
            self.publish(connection, EventType::Normal, REPAIRS_SUSPENDED, note);
        }
        self.held_back = PodReports::after(Duration::ZERO);
    }

    /// Requests a restart, without which this number of pods cannot be audited.
    fn request_restart(&self, not_shown: usize) {
        tracing::info!(
            "{not_shown} pods are not audited before a restart: their network namespaces were \
             mounted after this container had started"
        );
        self.shared.queue.request_restart();
    }

    /// Publishes an Event on the node.
    fn publish(
        &self,
        connection: &mut Connection,
        kind: EventType,
        reason: &'static str,
        note: String,
    ) {
        let content = EventContent { kind, reason, action: "Reporting", note };
        let node = Regarding::node(&self.shared.settings.node);
        self.shared.publish_event(connection, node, &content);
    }
}

/// Logs how many pods could not be audited, and why. Errors take one line for each audit, with the
/// first error, because an invalid setting causes the same error for every pod.
fn log_gaps(findings: &Findings) {
    if let Some(PodError { pod, why }) = findings.errors.first() {
        let err = format!("{}/{}: {why}", pod.namespace, pod.name);
        let pods = findings.errors.len();
        tracing::warn!(err, "Cannot audit {pods} pods; err is the first error");
    }
    if findings.not_listed > 0 {
        let pods = findings.not_listed;
        tracing::warn!("Cannot audit {pods} pods: the list has more than {MAX_PODS} pods");
    }
    if !findings.unreadable.is_empty() {
        tracing::warn!(
            "Skipped {} pods in the audit: their network namespaces have a table of \
             iptables-legacy, or too many rules, which the repair controller cannot read",
            findings.unreadable.len()
        );
    }
}
