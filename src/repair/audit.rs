//! The audit: periodically compares the rules of all running meshed pods with those that they started
//! with, and queues pods with missing rules. The worker repairs them. Pods whose rules are not those of
//! today's values are only counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;
use super::api_path::list_path;
use super::host_dirs::HostDirs;
use super::inspect_rules::{self, Inspection, Inspector, ReadFrom};
use super::node_events::NodeEvents;
use super::pace::{retries, vary};
use super::pod_stream::{self, FromPod, MAX_PODS};
use super::stranded_pod::{FoundBy, INJECTED_LABEL, LABEL, StrandedPod, is_auditable};
use crate::backoff::jitter;
use crate::firewall;
use crate::kube;
use crate::kube::connection::{self, Connection};
use crate::kube::types::Pod;
use crate::pod::facts::{CONTROL_PLANE_LABEL, STATIC_POD_UID};
use crate::pod::mesh::PROXY;
use crate::pod::skip::is_linkerd_key;

/// Audits the rules of the node's pods.
pub struct Audit {
    pub connection: Connection,
    pub host: HostDirs,
    pub period: Duration,
    pub events: NodeEvents,
    pub shared: Arc<Shared>,
}

/// Number of pods up to which an audit repairs all pods of a node.
const FEW_PODS: usize = 2;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error("incomplete or unexpected response of the API server: {}", kube::redact::problem(.0))]
    InvalidResponse(#[from] serde_json::Error),
    #[error(transparent)]
    Inspect(#[from] inspect_rules::Error),
}

/// A pod to audit, reduced to the fields that an audit needs. All pods of the list are in
/// memory at once, so that reading the response does not wait for the inspections.
struct AuditedPod(Pod);

impl FromPod for AuditedPod {
    fn from_pod(mut pod: Pod) -> Option<Self> {
        if !is_auditable(&pod) {
            return None;
        }
        let spec = &mut pod.spec;
        let init_containers = Some(&mut spec.init_containers);
        for containers in init_containers.into_iter().chain(&mut spec.containers) {
            containers.retain(|container| container.name == PROXY);
            containers.shrink_to_fit();
        }
        pod.status.init_container_statuses = Vec::new();
        pod.status.container_statuses = Vec::new();
        let metadata = &mut pod.metadata;
        retain_keys(&mut metadata.annotations, |key| is_linkerd_key(key) || key == STATIC_POD_UID);
        let labels = [LABEL, INJECTED_LABEL, CONTROL_PLANE_LABEL];
        retain_keys(&mut metadata.labels, |key| labels.contains(&key));
        Some(AuditedPod(pod))
    }
}

/// Removes all other keys. Builds a new map, because `retain` does not free memory.
fn retain_keys(map: &mut BTreeMap<String, String>, retain: impl Fn(&str) -> bool) {
    let all = std::mem::take(map).into_iter();
    *map = all.filter(|(key, _)| retain(key)).collect();
}

/// What one audit found.
#[derive(Debug, Default)]
struct Findings {
    /// Number of pods with an error.
    errors: usize,
    first_error: String,
    /// Number of pods whose rules cannot be read.
    unreadable: usize,
    /// Number of pods with all rules.
    complete: usize,
    /// Number of those whose rules are not today's.
    drifted: usize,
    /// Namespaces of pods with all rules.
    complete_namespaces: BTreeSet<String>,
    /// Pods with missing rules.
    damaged: Vec<StrandedPod>,
}

impl Findings {
    /// Counts `pods` more pods with an error.
    fn add(&mut self, pods: usize, error: impl FnOnce() -> String) {
        if self.errors == 0 {
            self.first_error = error();
        }
        self.errors += pods;
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

impl Audit {
    /// Audits until the queue is closed. The first audit is at a random time within the
    /// first period, so that the nodes of a cluster do not audit at the same time.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut backoff = retries();
        let mut wait = jitter(self.period);
        while !shared.queue.is_closed_within(wait) {
            wait = vary(self.period);
            // Log once for each audit, not for each pod: an invalid setting affects every pod.
            match self.audit() {
                Ok(findings) => {
                    backoff.reset();
                    if findings.errors > 0 {
                        tracing::warn!(
                            err = findings.first_error,
                            "Cannot audit {} pods; err is the first error",
                            findings.errors
                        );
                    }
                }
                Err(error) => {
                    wait = wait.max(backoff.next_delay());
                    shared.metrics.audit_errors.inc();
                    tracing::warn!(err = %error, "Cannot audit the pods of this node");
                }
            }
        }
    }

    /// Audits all pods of the node once.
    fn audit(&mut self) -> Result<Findings, Error> {
        let config = self.host.config().map_err(inspect_rules::Error::from)?;
        let values = config.rules_digest();
        let mut inspector = Inspector::new(config, &self.host, ReadFrom::Cache);
        let mut findings = Findings::default();
        let client = self.connection.client()?;
        let list = pod_stream::list(client.read_list(&list_path(&self.events.node))?)?;
        if list.dropped > 0 {
            self.shared.metrics.audit_errors.inc_by(list.dropped as u64);
            findings.add(list.dropped, || format!("the list has more than {MAX_PODS} pods"));
        }
        for AuditedPod(pod) in list.pods {
            let stranded = StrandedPod::new(&pod, FoundBy::Audit);
            if stranded.is_on_other_node(&self.events.node) {
                continue;
            }
            let inspection = inspector.inspect(&client, pod);
            self.record(stranded, inspection, &mut findings);
        }
        if findings.unreadable > 0 {
            tracing::warn!(
                "Skipped {} pods in the audit: the repair controller cannot read iptables-legacy rules, nor too many rules",
                findings.unreadable
            );
        }
        self.conclude(&mut findings, values);
        self.shared.metrics.audits.inc();
        Ok(findings)
    }

    /// Reports drift, and queues the damaged pods unless they are too many. `values` is the digest of the
    /// values from which rules are made.
    fn conclude(&mut self, findings: &mut Findings, values: u64) {
        let suspended = findings.mostly_damaged();
        let metrics = &self.shared.metrics;
        metrics.audit_pods_drifted.set(findings.drifted as i64);
        metrics.audit_repairs_suspended.set(suspended.is_some().into());
        self.shared.audit_repairs_suspended.store(suspended.is_some(), Ordering::Relaxed);
        let connection = &mut self.connection;
        for reported in [
            self.events.report_drift(connection, findings.drifted, values),
            self.events.report_suspension(connection, suspended),
        ] {
            if let Err(error) = reported {
                error.count_unpublished(metrics);
                tracing::warn!(err = %error, "Error publishing event");
            }
        }
        for pod in findings.damaged.drain(..) {
            if suspended.is_none() {
                self.shared.enqueue(pod);
            }
        }
    }

    /// Counts the result of one pod.
    fn record(
        &self,
        pod: StrandedPod,
        inspection: Result<Inspection, inspect_rules::Error>,
        findings: &mut Findings,
    ) {
        let metrics = &self.shared.metrics;
        match inspection {
            Ok(Inspection::NotApplicable) => {}
            Ok(inspection @ (Inspection::Complete | Inspection::Drifted(_))) => {
                metrics.audit_pods_complete.inc();
                findings.complete += 1;
                findings.complete_namespaces.insert(pod.namespace);
                findings.drifted += usize::from(matches!(inspection, Inspection::Drifted(_)));
            }
            Ok(Inspection::Unreadable) => {
                metrics.audit_pods_unreadable.inc();
                findings.unreadable += 1;
            }
            Ok(Inspection::Missing(rules, missing)) => {
                metrics.audit_pods_incomplete.inc();
                tracing::info!(
                    namespace = pod.namespace,
                    name = pod.name,
                    netns = %rules.netns.display(),
                    "Pod lacks redirect rules: {}",
                    firewall::describe_missing(&missing)
                );
                findings.damaged.push(pod);
            }
            Err(error) => {
                metrics.audit_errors.inc();
                findings.add(1, || format!("{}/{}: {error}", pod.namespace, pod.name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_in_one_of_several_namespaces_suspends_no_repairs() {
        let pod =
            |namespace: &str| StrandedPod { namespace: namespace.into(), ..StrandedPod::default() };
        for (damaged, complete, is_suspended) in [
            (["a", "a", "a"], vec![], true),
            (["a", "a", "a"], vec!["a"], true),
            (["a", "a", "a"], vec!["a", "b"], false),
            (["a", "a", "b"], vec!["a", "b"], true),
            (["a", "b", "a"], vec!["c"], true),
        ] {
            let findings = Findings {
                damaged: damaged.map(pod).into(),
                complete: complete.len(),
                complete_namespaces: complete.iter().map(|&name| name.to_owned()).collect(),
                ..Findings::default()
            };
            assert_eq!(findings.mostly_damaged().is_some(), is_suspended, "{findings:?}");
        }
    }

    #[test]
    fn damage_of_more_than_two_pods_and_more_than_half_suspends_repairs() {
        for (damaged, complete, is_suspended) in
            [(0, 0, false), (2, 0, false), (3, 0, true), (3, 3, false), (4, 3, true), (1, 9, false)]
        {
            let damaged = vec![StrandedPod::default(); damaged];
            let findings = Findings { damaged, complete, ..Findings::default() };
            assert_eq!(findings.mostly_damaged().is_some(), is_suspended, "{findings:?}");
        }
    }
}
