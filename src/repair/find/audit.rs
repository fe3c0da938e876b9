//! The audit: after the start and periodically, compares the rules of all running meshed pods with those that
//! they started with, and queues pods with missing rules. The worker repairs them. Pods whose rules are not those of
//! today's values are only counted.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::{Backoff, Limits, between, jitter};
use crate::firewall::{Survey, describe_missing};
use crate::kube::connection::Connection;
use crate::kube::event::{EventContent, EventType, Regarding};
use crate::kube::object_reader::ReadFrom;
use crate::kube::pod_stream::{FromPod, MAX_PODS};
use crate::kube::pod_watch::{self, RETRIES};
use crate::kube::types::Pod;
use crate::pod::Decision;
use crate::pod::facts::{OwnFacts, own_facts};
use crate::repair::act::agent_ready;
use crate::repair::inspect::{self, Inspected, Inspector};
use crate::repair::settings::{RepairMode, Settings};
use crate::repair::stranded::{FoundBy, StrandedPod};
use crate::repair::{Shared, plugin_config};

/// Time between the start of the controller and the first audit in mode `in-place`. By then kubelet has
/// started the node's pods after a reboot.
const FIRST_AUDIT: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(120)];

/// Waits before the audit after the start is repeated, because it failed or found damaged pods.
const UNTIL_COMPLETE: Limits = [Duration::from_secs(60), Duration::from_secs(3600)];

/// Number of pods up to which an audit repairs all pods of a node.
const FEW_PODS: usize = 2;

/// Audits the rules of the node's pods.
pub struct Audit {
    connection: Connection,
    shared: Arc<Shared>,
    /// [`Config::rules_digest`](crate::config::Config::rules_digest) for which drift was reported.
    drift_reported: Option<u64>,
    suspension_reported: bool,
}

/// A pod to audit. All pods of the list are in memory at once, so that reading the response does not
/// wait for the inspections.
pub struct AuditedPod {
    pub pod: StrandedPod,
    pub facts: Decision<OwnFacts>,
}

impl FromPod for AuditedPod {
    fn from_pod(object: Pod) -> Option<Self> {
        let pod = StrandedPod::found(&object, FoundBy::Audit)?;
        Some(AuditedPod { pod, facts: own_facts(object).ok()? })
    }
}

#[derive(Debug, Default)]
struct Findings {
    errors: usize,
    first_error: String,
    unreadable: usize,
    complete: usize,
    /// Number of those whose rules are not today's.
    drifted: usize,
    /// Namespaces of pods with all rules.
    complete_namespaces: BTreeSet<String>,
    damaged: Vec<StrandedPod>,
}

impl Findings {
    fn add(&mut self, pod: StrandedPod, inspected: Result<Option<Inspected>, inspect::Error>) {
        let inspected = match inspected {
            Ok(Some(inspected)) => inspected,
            Ok(None) => return,
            Err(error) => {
                return self.add_errors(1, || format!("{}/{}: {error}", pod.namespace, pod.name));
            }
        };
        match inspected.survey {
            Survey::Unreadable => self.unreadable += 1,
            Survey::Missing(_, missing) => {
                tracing::info!(
                    namespace = pod.namespace,
                    name = pod.name,
                    netns = %inspected.netns.display(),
                    "Pod lacks redirect rules: {}",
                    describe_missing(&missing)
                );
                self.damaged.push(pod);
            }
            survey @ (Survey::Complete | Survey::Drifted(_)) => {
                self.complete += 1;
                self.complete_namespaces.insert(pod.namespace);
                self.drifted += usize::from(survey != Survey::Complete);
            }
        }
    }

    /// Counts `pods` more pods with an error.
    fn add_errors(&mut self, pods: usize, error: impl FnOnce() -> String) {
        if self.errors == 0 {
            self.first_error = error();
        }
        self.errors += pods;
    }

    /// Logs once for each audit, not for each pod: an invalid setting affects every pod.
    fn log(&self) {
        if self.errors > 0 {
            let (errors, err) = (self.errors, &self.first_error);
            tracing::warn!(err, "Cannot audit {errors} pods; err is the first error");
        }
        if self.unreadable > 0 {
            tracing::warn!(
                "Skipped {} pods in the audit: the repair controller cannot read iptables-legacy rules, nor too many rules",
                self.unreadable
            );
        }
    }

    /// Returns the numbers of damaged and of compared pods if most are damaged. Then the audit may be
    /// wrong, and evicting most pods of a node would be an outage. Damage in only one of several
    /// namespaces is no reason: its tenant must not suspend the repairs of the others.
    fn mostly_damaged(&self) -> Option<(usize, usize)> {
        let (damaged, compared) = (self.damaged.len(), self.damaged.len() + self.complete);
        let mut namespaces = self.damaged.iter().map(|pod| &pod.namespace);
        let first = namespaces.next()?;
        let is_of_one_of_several = namespaces.all(|namespace| namespace == first)
            && self.complete_namespaces.iter().any(|namespace| namespace != first);
        let is_most = damaged > FEW_PODS && 2 * damaged > compared;
        (is_most && !is_of_one_of_several).then_some((damaged, compared))
    }
}

/// Returns the time from the start of the controller to its first audit; `None`: no audits.
///
/// After a reboot kubelet skips the init containers, the validator among them, of a pod whose app
/// container was created but not started. Such a pod runs without redirect rules, and only an audit
/// finds it. So mode `in-place`, which changes no pod that has its rules, always audits after the start.
pub fn first(settings: &Settings) -> Option<Duration> {
    let after_start =
        (settings.mode == RepairMode::InPlace).then(|| between(FIRST_AUDIT[0], FIRST_AUDIT[1]));
    // At random within the first period, so that the nodes of a cluster do not audit at the same time.
    [after_start, settings.audit_period().map(jitter)].into_iter().flatten().min()
}

impl Audit {
    pub fn new(connection: Connection, shared: Arc<Shared>) -> Self {
        Audit { connection, shared, drift_reported: None, suspension_reported: false }
    }

    /// Audits after `wait`, and then in each period of the settings, which varies by a tenth, until the
    /// queue is closed. Without a period, audits until one audit finds no damaged pod, as nothing else
    /// would find a pod again whose repair failed.
    pub fn run(mut self, mut wait: Duration) {
        let period = self.shared.settings.audit_period();
        let mut backoff = Backoff::spread(if period.is_some() { RETRIES } else { UNTIL_COMPLETE });
        while !self.shared.queue.is_closed_within(wait) {
            // A node that is not ready may have no plugin entry yet.
            if period.is_none() && !agent_ready::wait_until_ready(&self.shared) {
                return;
            }
            let next = period.map(|period| between(period * 9 / 10, period * 11 / 10));
            wait = match (self.audit(), next) {
                (Ok(0), None) => return,
                (Ok(_), None) => backoff.next_delay(),
                (Ok(_), Some(next)) => {
                    backoff.reset();
                    next
                }
                (Err(error), next) => {
                    self.shared.metrics.audit_errors.inc();
                    tracing::warn!(err = %error, "Cannot audit the pods of this node");
                    backoff.next_delay().max(next.unwrap_or_default())
                }
            };
        }
    }

    /// Returns the number of damaged pods.
    fn audit(&mut self) -> Result<usize, Box<dyn Error>> {
        let settings = &self.shared.settings;
        let config = plugin_config::read(&settings.net_dir())?;
        let values = config.rules_digest();
        let list = pod_watch::list::<AuditedPod>(&mut self.connection, &settings.node)?;
        let client = self.connection.client()?;
        let mut inspector = Inspector::new(client, config, settings, ReadFrom::Cache);
        let mut findings = Findings::default();
        if list.dropped > 0 {
            let error = || format!("the list has more than {MAX_PODS} pods");
            findings.add_errors(list.dropped, error);
        }
        for AuditedPod { pod, facts } in list.pods {
            if !pod.is_on_other_node(&settings.node) {
                let inspected = inspector.inspect(&pod, facts);
                findings.add(pod, inspected);
            }
        }
        findings.log();
        let damaged = findings.damaged.len();
        self.conclude(findings, values);
        Ok(damaged)
    }

    /// Counts and reports the findings, and queues the damaged pods unless they are too many. `values` is
    /// the digest of the values from which rules are made.
    fn conclude(&mut self, findings: Findings, values: u64) {
        let suspended = findings.mostly_damaged();
        let metrics = &self.shared.metrics;
        metrics.audit_errors.inc_by(findings.errors as u64);
        metrics.audit_pods_complete.inc_by(findings.complete as u64);
        metrics.audit_pods_incomplete.inc_by(findings.damaged.len() as u64);
        metrics.audit_pods_unreadable.inc_by(findings.unreadable as u64);
        metrics.audit_pods_drifted.set(findings.drifted as i64);
        metrics.audit_repairs_suspended.set(suspended.is_some().into());
        self.report_drift(findings.drifted, values);
        self.report_suspension(suspended);
        if suspended.is_none() {
            findings.damaged.into_iter().for_each(|pod| self.shared.enqueue(pod));
        }
        self.shared.metrics.audits.inc();
    }

    /// Reports that `pods` pods have drift, unless that was reported for values with this
    /// digest. During a rollout two repair controllers run on the node: the Event has one name.
    fn report_drift(&mut self, pods: usize, values: u64) {
        if pods == 0 || self.drift_reported == Some(values) {
            return;
        }
        let note = format!(
            "{pods} running pods have redirect rules of other chart values or annotations than \
             today's, and keep them; to apply today's, restart the pods"
        );
        tracing::info!("{note}");
        let id = format!("linkerd-cni-drift-{values:x}");
        if self.publish(EventType::Normal, "LinkerdCNIRulesDrifted", note, Some(&id)) {
            self.drift_reported = Some(values);
        }
    }

    /// Reports that `damaged` of the `compared` pods are damaged, unless that was reported. `None`:
    /// repairs are not suspended.
    fn report_suspension(&mut self, suspended: Option<(usize, usize)>) {
        let Some((damaged, compared)) = suspended else {
            self.suspension_reported = false;
            return;
        };
        let note = format!(
            "{damaged} of {compared} audited pods have missing or changed redirect rules; the audit \
             repairs none while these are more than half; check that the CNI plugin works on this \
             node, then restart the pods that the log names"
        );
        tracing::warn!("{note}");
        if !self.suspension_reported {
            let reason = "LinkerdCNIRepairsSuspended";
            self.suspension_reported = self.publish(EventType::Warning, reason, note, None);
        }
    }

    fn publish(
        &mut self,
        kind: EventType,
        reason: &'static str,
        note: String,
        id: Option<&str>,
    ) -> bool {
        let content = EventContent { kind, reason, action: "Reporting", note };
        let node = Regarding::node(&self.shared.settings.node);
        self.shared.publish(&mut self.connection, node, &content, id)
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
    fn the_first_audit_is_within_the_period_and_in_mode_in_place_within_2_minutes_without_one() {
        for (mode, period, seconds) in [
            ("delete", "0", None),
            ("label", "0", None),
            ("report", "0", None),
            ("in-place", "0", Some(60..=120)),
            ("in-place", "10", Some(0..=10)),
            ("in-place", "36000", Some(0..=120)),
            ("delete", "10", Some(0..=10)),
        ] {
            let line = ["x", "--node-name=a", "--controller-pod-name=b", "--mode", mode];
            let flags = line.into_iter().chain(["--audit-seconds", period]);
            let Flags { settings } = Flags::try_parse_from(flags).unwrap();
            let first = first(&settings).map(|wait| wait.as_secs());
            assert_eq!(first.is_some(), seconds.is_some(), "{mode} {period}");
            assert!(first.is_none_or(|first| seconds.unwrap().contains(&first)), "{first:?}");
        }
    }

    #[test]
    fn damage_of_most_pods_suspends_repairs_unless_it_is_in_one_of_several_namespaces() {
        for (damaged, complete, is_suspended) in [
            ("", "", false),
            ("aa", "", false),
            ("aaa", "", true),
            ("aaa", "aaa", false),
            ("aaaa", "aaa", true),
            ("a", "aaaaaaaaa", false),
            ("aaa", "a", true),
            ("aaa", "ab", false),
            ("aab", "ab", true),
            ("aba", "c", true),
        ] {
            let pod = |namespace| StrandedPod {
                namespace: String::from(namespace),
                ..StrandedPod::default()
            };
            let findings = Findings {
                damaged: damaged.chars().map(pod).collect(),
                complete: complete.len(),
                complete_namespaces: complete.chars().map(String::from).collect(),
                ..Findings::default()
            };
            assert_eq!(findings.mostly_damaged().is_some(), is_suspended, "{findings:?}");
        }
    }
}
