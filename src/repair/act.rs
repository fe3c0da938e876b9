//! Deletes stranded pods, one at a time, and tells why in an Event.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use super::Shared;
use super::connection::{self, Connection};
use super::event;
use super::limit::Limit;
use super::verdict::Stranded;
use crate::kube;
use crate::kube::types::{DeleteOptions, Preconditions};

/// As upstream's; for connecting and for the answer.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// The one that deletes.
pub struct Worker {
    pub connection: Connection,
    /// This controller's pod.
    pub controller: String,
    pub limit: Limit,
    pub shared: Arc<Shared>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
}

impl Worker {
    /// Works until the queue is closed.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(pod) = shared.queue.take() {
            if self.limit.allows(&pod, Instant::now()) {
                self.repair(&pod);
                continue;
            }
            tracing::warn!(
                namespace = pod.namespace,
                name = pod.name,
                "Pod is stranded again after its owner's last one was deleted; leaving it for now: \
                 is the CNI plugin of this node working?"
            );
            shared.metrics.pods_held.increment();
            shared.missed.store(true, Relaxed);
        }
    }

    fn repair(&mut self, pod: &Stranded) {
        let metrics = &Arc::clone(&self.shared).metrics;
        let began = Instant::now();
        match self.delete(pod) {
            Ok(()) => {
                metrics.pods_delete_latency.observe(began.elapsed());
                metrics.pods_deleted.increment();
                self.limit.deleted(pod, Instant::now(), SystemTime::now());
                tracing::info!(namespace = pod.namespace, name = pod.name, "Deleted pod");
                self.report(pod);
            }
            // Somebody else deleted it, or another pod has its name by now.
            Err(Error::Request(error)) if matches!(error.code(), Some(404 | 409)) => {
                tracing::debug!(namespace = pod.namespace, name = pod.name, "Pod is gone");
            }
            Err(error) => {
                let timeout = matches!(&error, Error::Request(error) if error.is_timeout());
                match timeout {
                    true => metrics.pods_delete_timeout.increment(),
                    false => metrics.pods_delete_errors.increment(),
                }
                self.shared.missed.store(true, Relaxed);
                tracing::warn!(
                    err = %error,
                    namespace = pod.namespace,
                    name = pod.name,
                    "Error deleting pod"
                );
            }
        }
    }

    /// With its UID as a precondition: a StatefulSet's next pod has the same name (D-47).
    fn delete(&mut self, pod: &Stranded) -> Result<(), Error> {
        let options = DeleteOptions {
            grace_period_seconds: 0,
            preconditions: Preconditions {
                uid: pod.uid.clone(),
                resource_version: None,
            },
        };
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        Ok(self.connection.client()?.delete(&path, &options)?)
    }

    fn report(&mut self, pod: &Stranded) {
        let metrics = &Arc::clone(&self.shared).metrics;
        let began = Instant::now();
        match self.publish(pod) {
            Ok(()) => metrics.events_publish_latency.observe(began.elapsed()),
            Err(error) => {
                let timeout = matches!(&error, Error::Request(error) if error.is_timeout());
                match timeout {
                    true => metrics.events_publish_timeouts.increment(),
                    false => metrics.events_publish_errors.increment(),
                }
                tracing::warn!(
                    err = %error,
                    namespace = pod.namespace,
                    name = pod.name,
                    "Error publishing event"
                );
            }
        }
    }

    fn publish(&mut self, pod: &Stranded) -> Result<(), Error> {
        let event = event::deleted(pod, &self.controller, SystemTime::now());
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", pod.namespace);
        Ok(self.connection.client()?.post(&path, &event)?)
    }
}
