//! The audit: after the start and periodically, compares the rules of all running meshed pods with those that
//! they started with, and queues pods with missing rules. The worker repairs them. Pods whose rules are not those of
//! today's values are only counted.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::inspect::{Inspected, Inspector};
use super::plugin_config;
use super::stranded::{FoundBy, FoundPod, StrandedPod};
use crate::backoff::{Backoff, Limits, between, jitter};
use crate::firewall::{RulesState, describe_missing};
use crate::kube::connection::Connection;
use crate::kube::event::{EventContent, EventType, Regarding};
use crate::kube::object_reader::ReadFrom;
use crate::kube::pod_stream::{FromPod, MAX_PODS};
use crate::kube::pod_watch::{self, Selection};
use crate::kube::types::Pod;
use crate::pod::Decision;
use crate::pod::facts::{ObjectFacts, object_facts};
use crate::repair::settings::{RepairMode, Settings};
use crate::repair::{Shared, agent_ready};

/// Time between the start of the controller and the first audit in mode `in-place`. By then kubelet has
/// started the node's pods after a reboot.
const FIRST_AUDIT: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(120)];

/// Waits before the audit after the start is repeated, because it failed or found damaged pods.
const UNTIL_COMPLETE: Limits = [Duration::from_secs(60), Duration::from_secs(3600)];

/// Number of pods up to which an audit repairs all pods of a node.
const FEW_PODS: usize = 2;

pub struct Audit {
    connection: Connection,
    shared: Arc<Shared>,
    /// Number of drifted pods that the last audit found.
    last_drifted: usize,
}

/// A pod to audit. All pods of the list are in memory at once, so that reading the response does not
/// wait for the inspections.
pub struct AuditedPod {
    pub pod: StrandedPod,
    pub facts: Decision<ObjectFacts>,
}

impl FromPod for AuditedPod {
    fn from_pod(object: Pod) -> Option<Self> {
        let pod = StrandedPod::from_object(&object, FoundBy::Audit)?;
        Some(AuditedPod { pod, facts: object_facts(object).ok()? })
    }
}

#[derive(Debug, Default)]
struct Findings {
    /// Why pods cannot be audited.
    errors: Vec<String>,
    unreadable: usize,
    /// Namespace of each pod with all rules.
    complete: Vec<String>,
    /// Number of those whose rules are not today's.
    drifted: usize,
    damaged: Vec<StrandedPod>,
}

impl Findings {
    fn add(&mut self, pod: StrandedPod, inspected: Result<Option<Inspected>, Box<dyn Error>>) {
        let FoundPod { namespace, name, .. } = &pod.found;
        match inspected {
            Err(error) => self.errors.push(format!("{namespace}/{name}: {error}")),
            Ok(None) => {}
            Ok(Some(Inspected { rules: RulesState::Unreadable, .. })) => self.unreadable += 1,
            Ok(Some(Inspected { rules: RulesState::Missing(_, missing), netns })) => {
                let (netns, missing) = (netns.display(), describe_missing(&missing));
                tracing::info!(namespace, name, %netns, "Pod lacks redirect rules: {missing}");
                self.damaged.push(pod);
            }
            Ok(Some(Inspected { rules, .. })) => {
                self.complete.push(pod.found.namespace);
                self.drifted += usize::from(rules != RulesState::Complete);
            }
        }
    }

    /// Returns the numbers of damaged and of compared pods if most are damaged. Then the audit may be
    /// wrong, and evicting most pods of a node would be an outage. Damage in only one of several
    /// namespaces is no reason: its tenant must not suspend the repairs of the others.
    fn mostly_damaged(&self) -> Option<(usize, usize)> {
        let (damaged, compared) = (self.damaged.len(), self.damaged.len() + self.complete.len());
        let mut namespaces = self.damaged.iter().map(|pod| &pod.found.namespace);
        let first = namespaces.next()?;
        let is_of_one_of_several = namespaces.all(|namespace| namespace == first)
            && self.complete.iter().any(|namespace| namespace != first);
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
        Audit { connection, shared, last_drifted: 0 }
    }

    /// Audits after `wait`, and then in each period of the settings, which varies by a tenth. Without a
    /// period, audits until one audit finds no damaged pod, as nothing else would find a pod again whose
    /// repair failed.
    pub fn run(mut self, mut wait: Duration) {
        let period = self.shared.settings.audit_period();
        let mut backoff = Backoff::spread(UNTIL_COMPLETE);
        loop {
            thread::sleep(wait);
            // A node that is not ready may have no plugin entry yet.
            if period.is_none()
                && let Some(address) = &self.shared.settings.agent_addr
            {
                agent_ready::wait_until_ready(address);
            }
            let result = self.audit();
            if let Err(error) = &result {
                self.shared.metrics.audit_errors.inc();
                tracing::warn!(err = %error, "Cannot audit the pods of this node");
            }
            wait = match (period, result) {
                (Some(period), _) => between(period * 9 / 10, period * 11 / 10),
                (None, Ok(0)) => return,
                (None, _) => backoff.next_delay(),
            };
        }
    }

    /// Returns the number of damaged pods.
    fn audit(&mut self) -> Result<usize, Box<dyn Error>> {
        let settings = &self.shared.settings;
        let config = plugin_config::read(&settings.net_dir())?;
        let pods = Selection::Node(settings.node.clone());
        let list = pod_watch::list::<AuditedPod>(&mut self.connection, &pods)?;
        let client = self.connection.client()?;
        let mut inspector = Inspector::new(client, config, settings, ReadFrom::Cache);
        let errors = vec![format!("the list has more than {MAX_PODS} pods"); list.dropped];
        let mut findings = Findings { errors, ..Findings::default() };
        for AuditedPod { pod, facts } in list.pods {
            let inspected = inspector.inspect(&pod, facts);
            findings.add(pod, inspected);
        }
        let damaged = findings.damaged.len();
        self.conclude(findings);
        Ok(damaged)
    }

    /// Counts and reports the findings, and queues the damaged pods unless they are too many. Logs errors
    /// once for each audit, not for each pod: an invalid setting affects every pod.
    fn conclude(&mut self, findings: Findings) {
        if let [err, ..] = &*findings.errors {
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
        let metrics = &self.shared.metrics;
        metrics.audit_errors.inc_by(findings.errors.len() as u64);
        metrics.audit_pods_complete.inc_by(findings.complete.len() as u64);
        metrics.audit_pods_incomplete.inc_by(findings.damaged.len() as u64);
        metrics.audit_pods_unreadable.inc_by(findings.unreadable as u64);
        metrics.audit_pods_drifted.set(findings.drifted as i64);
        let suspended = findings.mostly_damaged();
        metrics.audit_repairs_suspended.set(suspended.is_some().into());
        let was_suspended = self.shared.queue.suspend_audit_repairs(suspended.is_some());
        let had_drifted = self.last_drifted > 0;
        self.last_drifted = findings.drifted;
        if findings.drifted > 0 && !had_drifted {
            let note = format!(
                "{} running pods have redirect rules of other chart values or annotations than \
                 today's, and keep them; to apply today's, restart the pods",
                findings.drifted
            );
            tracing::info!("{note}");
            self.publish(EventType::Normal, "LinkerdCNIRulesDrifted", note);
        }
        match suspended {
            None => findings.damaged.into_iter().for_each(|pod| self.shared.enqueue(pod)),
            Some((damaged, compared)) => {
                let note = format!(
                    "{damaged} of {compared} audited pods have missing or changed redirect rules; \
                     the audit repairs none while these are more than half; check that the CNI \
                     plugin works on this node, then restart the pods that the log names"
                );
                tracing::warn!("{note}");
                if !was_suspended {
                    self.publish(EventType::Warning, "LinkerdCNIRepairsSuspended", note);
                }
            }
        }
        self.shared.metrics.audits.inc();
    }

    fn publish(&mut self, kind: EventType, reason: &'static str, note: String) {
        let content = EventContent { kind, reason, action: "Reporting", note };
        let node = Regarding::node(&self.shared.settings.node);
        self.shared.publish(&mut self.connection, node, &content);
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

    fn pod_in(namespace: char) -> StrandedPod {
        let mut pod = StrandedPod::default();
        pod.found.namespace = namespace.into();
        pod
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
            let findings = Findings {
                damaged: damaged.chars().map(pod_in).collect(),
                complete: complete.chars().map(String::from).collect(),
                ..Findings::default()
            };
            assert_eq!(findings.mostly_damaged().is_some(), is_suspended, "{findings:?}");
        }
    }
}
