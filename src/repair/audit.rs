//! Compares the rules of all running meshed pods with what they should have, from time
//! to time. Finds; what to do is the worker's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::answer::{self, Kept, Page};
use super::connection::{self, Connection};
use super::host::Host;
use super::inspect::{self, Finding, Inspector};
use super::verdict::{Cause, LABEL, Stranded, auditable};
use super::watch::list_path;
use crate::config::annotation;
use crate::kube;
use crate::kube::types::Pod;
use crate::plugin::pod::CONTROL_PLANE_LABEL;

/// Pods of one page; so many are held in memory.
const PAGE: u16 = 10;

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
    #[error("the API server's answer broke off or is not what the API promises: {}", kube::answer::problem(.0))]
    Answer(#[from] serde_json::Error),
    #[error(transparent)]
    Inspect(#[from] inspect::Error),
}

/// A pod to look into, without what does not matter here.
struct Audited(Pod);

impl Kept for Audited {
    fn of(mut pod: Pod) -> Option<Self> {
        let metadata = &mut pod.metadata;
        let known = |key: &str| {
            annotation::UPSTREAMS
                .iter()
                .chain(&annotation::PROXY_PORTS)
                .any(|ours| *ours == key)
        };
        metadata.annotations.retain(|key, _| known(key));
        let labels = [LABEL, CONTROL_PLANE_LABEL];
        metadata
            .labels
            .retain(|key, _| labels.contains(&key.as_str()));
        auditable(&pod).then_some(Audited(pod))
    }
}

/// What one round could not do.
#[derive(Default)]
struct Tally {
    errors: usize,
    /// The first of them.
    error: String,
    unreadable: usize,
}

impl Audit {
    /// Audits until the queue is closed.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while !shared.queue.closed_within(self.period) {
            // One line a round, so that a faulty setting does not bring one for each pod.
            match self.round() {
                Ok(tally) if tally.errors > 0 => tracing::warn!(
                    err = tally.error,
                    "Cannot audit {} pods; the first error is given",
                    tally.errors
                ),
                Ok(_) => {}
                Err(error) => {
                    shared.metrics.audit_errors.increment();
                    tracing::warn!(err = %error, "Cannot audit the pods of this node");
                }
            }
        }
    }

    fn round(&mut self) -> Result<Tally, Error> {
        let mut inspector = Inspector::new(&self.host)?;
        let mut tally = Tally::default();
        let mut token = String::new();
        loop {
            let client = self.connection.client()?;
            let answer = client.read(&list_path(&self.node, PAGE, &token))?;
            let page: Page<Audited> = answer::page(answer)?;
            for Audited(pod) in page.items {
                let stranded = Stranded::new(&pod, Cause::Audit);
                if stranded.is_elsewhere(&self.node) {
                    continue;
                }
                let finding = inspector.look(&client, pod);
                self.take(stranded, finding, &mut tally);
            }
            token = page.metadata.continue_token;
            if token.is_empty() {
                break;
            }
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
                if self.shared.queue.give(pod, Instant::now()).is_err() {
                    metrics.queue_overflow.increment();
                }
            }
            Err(error) => {
                metrics.audit_errors.increment();
                tally.errors += 1;
                if tally.errors == 1 {
                    tally.error = format!("{}/{}: {error}", pod.namespace, pod.name);
                }
            }
        }
    }
}
