//! Publishes the controller's Events, and counts and logs failed publications.

use std::time::Instant;

use super::find::stranded::FoundPod;
use super::pod_events::skip_event;
use super::{CONTROLLER, Shared};
use crate::kube;
use crate::kube::connection::{self, Connection};
use crate::kube::event::{self, EventContent, Regarding, Reporter};

#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
}

impl Shared {
    /// Counts and logs why a pod is left unchanged for now, and publishes an Event with the same
    /// text.
    pub fn publish_skip(&self, connection: &mut Connection, pod: &FoundPod, why: &str) {
        self.metrics.pods_skipped.inc();
        let FoundPod { namespace, name, found_by, .. } = pod;
        let event = skip_event(*found_by, why);
        tracing::warn!(namespace, name, "{}", event.note);
        self.publish_event(connection, Regarding::from(pod), &event);
    }

    /// Publishes an Event. A failure is only counted and logged.
    pub fn publish_event(
        &self,
        connection: &mut Connection,
        regarding: Regarding<'_>,
        content: &EventContent,
    ) {
        let began = Instant::now();
        let error = match self.try_to_publish(connection, regarding, content) {
            Ok(()) => {
                let took = began.elapsed().as_secs_f64();
                self.metrics.events_publish_latency_seconds.observe(took);
                return;
            }
            Err(error) => error,
        };
        if matches!(&error, PublishError::Request(error) if error.is_timeout()) {
            self.metrics.events_publish_timeouts.inc();
        } else {
            self.metrics.events_publish_errors.inc();
        }
        let Regarding { namespace, name, .. } = regarding;
        tracing::warn!(err = %error, namespace, name, "Error publishing event");
    }

    fn try_to_publish(
        &self,
        connection: &mut Connection,
        regarding: Regarding<'_>,
        content: &EventContent,
    ) -> Result<(), PublishError> {
        let reporter = Reporter { controller: CONTROLLER, instance: &self.settings.pod_name };
        event::publish(&connection.client()?, reporter, regarding, content)?;
        Ok(())
    }
}
