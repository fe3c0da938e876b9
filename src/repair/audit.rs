//! Compares the rules of all running meshed pods with what they should have, from time
//! to time. Finds; what to do is the worker's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::connection::{self, Connection};
use super::host::Host;
use super::inspect::{self, Finding, Inspector, Reads};
use super::pace::{Pace, vary};
use super::pod_stream;
use super::pod_stream::Kept;
use super::verdict::{Cause, LABEL, Stranded, auditable};
use super::watch::list_path;
use crate::config::annotation;
use crate::config::pod::{CONTROL_PLANE_LABEL, PROXY};
use crate::kube;
use crate::kube::backoff::jitter;
use crate::kube::types::Pod;

/// The one that audits.
pub struct Audit {
    pub connection: Connection,
    pub node: String,
    pub host: Host,
    pub period: Duration,
    pub shared: Arc<Shared>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error("the API server's answer broke off or is not what the API promises: {}", kube::redact::problem(.0))]
    Answer(#[from] serde_json::Error),
    #[error(transparent)]
    Inspect(#[from] inspect::Error),
}

/// A pod to look into, reduced to what an audit needs: all pods of the list are in memory
/// at once, so that reading the list does not wait for looking into namespaces.
struct Audited(Pod);

impl Kept for Audited {
    fn of(mut pod: Pod) -> Option<Self> {
        if !auditable(&pod) {
            return None;
        }
        let spec = &mut pod.spec;
        let init = Some(&mut spec.init_containers);
        for containers in init.into_iter().chain(&mut spec.containers) {
            containers.retain(|container| container.name == PROXY);
            containers.shrink_to_fit();
        }
        pod.status.init_container_statuses = Vec::new();
        let metadata = &mut pod.metadata;
        let annotations = [&annotation::UPSTREAM_KEYS[..], &annotation::PROXY_PORTS].concat();
        keep(&mut metadata.annotations, &annotations);
        keep(&mut metadata.labels, &[LABEL, CONTROL_PLANE_LABEL]);
        Some(Audited(pod))
    }
}

/// Drops all other keys. Builds a new map, because `retain` keeps the old one's memory.
fn keep(map: &mut BTreeMap<String, String>, keys: &[&str]) {
    let all = std::mem::take(map).into_iter();
    *map = all.filter(|(key, _)| keys.contains(&&**key)).collect();
}

/// What one round could not do.
#[derive(Default)]
struct Tally {
    errors: usize,
    /// The first of them.
    error: String,
    unreadable: usize,
}

impl Tally {
    fn fail(&mut self, pods: usize, error: impl FnOnce() -> String) {
        if self.errors == 0 {
            self.error = error();
        }
        self.errors += pods;
    }
}

impl Audit {
    /// Audits until the queue is closed. The first audit is at a random time of the first
    /// period, so that the nodes do not audit together.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut pace = Pace::retries();
        let mut wait = jitter(self.period);
        while !shared.queue.closed_within(wait) {
            wait = vary(self.period);
            // One line a round, so that a faulty setting does not bring one for each pod.
            match self.round() {
                Ok(tally) => {
                    pace.reset();
                    if tally.errors > 0 {
                        tracing::warn!(
                            err = tally.error,
                            "Cannot audit {} pods; the first error is given",
                            tally.errors
                        );
                    }
                }
                Err(error) => {
                    wait = wait.max(pace.lengthen());
                    shared.metrics.audit_errors.increment();
                    tracing::warn!(err = %error, "Cannot audit the pods of this node");
                }
            }
        }
    }

    fn round(&mut self) -> Result<Tally, Error> {
        let mut inspector = Inspector::new(&self.host, Reads::Cached)?;
        let mut tally = Tally::default();
        let client = self.connection.client()?;
        let list = pod_stream::list(client.read_list(&list_path(&self.node))?)?;
        if list.dropped > 0 {
            tally.fail(list.dropped, || "too many pods".to_owned());
        }
        for Audited(pod) in list.kept {
            let stranded = Stranded::new(&pod, Cause::Audit);
            if stranded.is_elsewhere(&self.node) {
                continue;
            }
            let finding = inspector.look(&client, pod);
            self.take(stranded, finding, &mut tally);
        }
        if tally.unreadable > 0 {
            tracing::warn!(
                "{} pods have rules of iptables-legacy, which cannot be read from here: not audited",
                tally.unreadable
            );
        }
        self.shared.metrics.audits.increment();
        Ok(tally)
    }

    fn take(&self, pod: Stranded, finding: Result<Finding, inspect::Error>, tally: &mut Tally) {
        let metrics = &self.shared.metrics;
        match finding {
            Ok(Finding::NotOurs) => {}
            Ok(Finding::Right) => metrics.audit_right.increment(),
            Ok(Finding::Unreadable) => {
                metrics.audit_unreadable.increment();
                tally.unreadable += 1;
            }
            Ok(Finding::Wrong(target, missing)) => {
                metrics.audit_wrong.increment();
                tracing::info!(
                    namespace = pod.namespace,
                    name = pod.name,
                    netns = %target.namespace().display(),
                    "Pod has not its rules: {}",
                    missing.join("; ")
                );
                // Another round comes anyway, so there is nothing to wait for.
                if self.shared.queue.give(pod).is_err() {
                    metrics.queue_overflow.increment();
                }
            }
            Err(error) => {
                metrics.audit_errors.increment();
                tally.fail(1, || format!("{}/{}: {error}", pod.namespace, pod.name));
            }
        }
    }
}
