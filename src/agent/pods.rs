//! Watches the pods of this node and publishes them for the plugin, see [`crate::pod_copy`]. The
//! same watch shows the agent its own pod ([`own_pod`](super::own_pod)). If the pods are not to be
//! watched, the agent watches only its own pod.
//!
//! A pod is published with the decision that the plugin would make after its API requests, so that
//! the plugin sends no request. If a request of the agent fails, the pod has no file, and the
//! plugin sends the requests. The agent holds the lock of the copy from the first list until the
//! watch fails twice in a row. If a pod has no file while the lock is held, the agent has received
//! no event of the pod yet, or could not publish it.

mod facts_reader;
mod node_pod;
mod own_pod_watch;
mod publisher;
mod request_limit;

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;

use super::api_thread::ApiHandle;
use super::file_watch::Waker;
use super::identity::{self, USER_AGENT};
use super::readiness::Status;
use super::settings::Settings;
use crate::files;
use crate::kube::connection::Connection;
use crate::kube::pod_watch::{self, Selection};
use crate::pod_copy;
use node_pod::NodePod;
use own_pod_watch::OwnPodWatch;
use publisher::Publisher;

/// Longest wait before the first list, on a node that has a kubeconfig. Short, because the agent is
/// not ready before that list, and a rolling update waits for each node.
const START_SPREAD: Duration = Duration::from_secs(1);
/// Longest time for which readiness waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(20);

/// Starts the thread that watches all pods of the node, or else the agent's own pod. Removes the
/// copy of an earlier agent if the pods are not to be watched. Calls `waker` when it is known
/// whether they can be listed.
///
/// Returns a flag. Set it to stop publishing, before the copy is removed.
pub fn start(
    settings: &Settings,
    status: &Arc<Status>,
    api: &Arc<ApiHandle>,
    waker: Waker,
) -> io::Result<Arc<AtomicBool>> {
    let stop_publishing = Arc::<AtomicBool>::default();
    if !settings.watch_pods {
        clear_copy(settings);
    }
    let Some(source) = identity::access_source(settings) else { return Ok(stop_publishing) };
    let connection = Connection::new(source.clone(), USER_AGENT, pod_watch::DEADLINES);
    let own_pod = identity::pod_name(settings).map(|name| OwnPodWatch::new(api, name));
    let thread = thread::Builder::new().name("pods".into()).stack_size(512 << 10);
    if let Some(run_dir) = settings.node.run_dir.clone()
        && let Some(node) = settings.node_name.clone()
        && settings.watch_pods
    {
        let publisher = Publisher::new(settings, source, run_dir, status, &stop_publishing);
        status.await_pod_copy(Instant::now() + FIRST_LIST, waker);
        let (pods, spread) = (Selection::Node(node), start_spread(settings));
        thread.spawn(move || watch_node(connection, &pods, spread, own_pod.as_ref(), publisher))?;
    } else if let Some(own_pod) = own_pod {
        thread.spawn(move || watch_own_pod(connection, &own_pod))?;
    }
    Ok(stop_publishing)
}

/// Removes the copy of the node's pods.
pub fn clear_copy(settings: &Settings) {
    let Some(run_dir) = &settings.node.run_dir else { return };
    for error in pod_copy::clear(run_dir) {
        warn!("cannot remove the node's copy of its pods: {error}");
    }
}

/// Returns the longest wait before the first list. The first install of a node waits for the watch.
fn start_spread(settings: &Settings) -> Duration {
    match files::metadata(&settings.node.kubeconfig()) {
        Ok(Some(_)) => START_SPREAD,
        _ => Duration::ZERO,
    }
}

fn watch_node(
    connection: Connection,
    pods: &Selection,
    spread: Duration,
    own_pod: Option<&OwnPodWatch>,
    mut publisher: Publisher,
) {
    pod_watch::run(connection, pods, spread, |update| {
        if let Some(own_pod) = own_pod {
            own_pod.record(&update, |pod: &NodePod| &pod.seen);
        }
        publisher.apply(update)
    });
}

fn watch_own_pod(connection: Connection, own_pod: &OwnPodWatch) {
    // A single object from the cache costs the API server no more than a token check.
    pod_watch::run(connection, &own_pod.selection(), Duration::ZERO, |update| {
        own_pod.record(&update, |seen| seen);
        ControlFlow::Continue(())
    });
}
