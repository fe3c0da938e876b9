//! Queues the stranded pods that the watch of the node's pods finds. The worker repairs them.

use std::ops::ControlFlow;
use std::time::Duration;

use super::stranded::{FoundPod, StrandedPod};
use crate::kube::connection::Connection;
use crate::kube::pod_watch::{self, Selection, Update};
use crate::repair::Shared;

/// Longest wait before the first list. The wait is random, so that the nodes do not list together.
const START_SPREAD: Duration = Duration::from_secs(5);

/// Watches the pods of the node until the process exits.
///
/// A list may be older than the last event of the watch, so no repair relies on the list alone: a
/// deletion has UID and resourceVersion as preconditions, and in the other modes the worker reads
/// the pod again.
pub fn run(connection: Connection, shared: &Shared) {
    let pods = Selection::Node(shared.settings.node.clone());
    pod_watch::run(connection, &pods, START_SPREAD, |update| {
        process(shared, update);
        ControlFlow::Continue(())
    });
}

/// Applies an update of the watch to the queue.
fn process(shared: &Shared, update: Update<'_, StrandedPod>) {
    match update {
        Update::Listed { pods, dropped } => {
            shared.queue.retain_listed(&pods);
            for pod in pods {
                enqueue(shared, pod);
            }
            shared.metrics.queue_overflow.inc_by(dropped as u64);
            shared.record_list();
        }
        Update::Changed(pod) => enqueue(shared, pod),
        Update::Opened | Update::Alive => {}
        Update::Ended(metadata) | Update::Deleted(metadata) => shared.queue.remove(&metadata.uid),
        Update::Failed { error, wait } => {
            tracing::warn!(
                err = %error,
                "Cannot watch the pods of this node; retrying in {wait:.1?}"
            );
            shared.record_watch_failure(error);
        }
    }
}

fn enqueue(shared: &Shared, pod: StrandedPod) {
    let FoundPod { namespace, name, .. } = &pod.found;
    tracing::debug!(namespace, name, "Pod is stranded");
    shared.enqueue(pod);
}
