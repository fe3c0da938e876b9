//! Watches the pods of this node and publishes them for the plugin, see [`crate::pod_copy`]. The
//! same watch shows the agent its own pod ([`own_pod`](super::own_pod)). If the settings turn this
//! off, the agent watches only its own pod.
//!
//! To publish a pod means to write a file with the decision that the plugin would make about the
//! pod after its API requests. So the plugin does not have to send these requests. If the agent
//! cannot make the decision, because a request fails, it writes no file, and the plugin sends the
//! requests itself.
//!
//! The agent holds the lock of the copy from the first list until the watch has failed twice in a
//! row. While the lock is held, the plugin knows that the agent publishes new pods. If a pod then
//! has no file, the agent has not received an event of the pod yet, or could not publish the pod.

mod facts_reader;
mod node_pod;
mod own_pod_watch;
mod publisher;
mod request_limit;
mod sandbox_watch;

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
use super::record_socket::RecordSocket;
use super::settings::Settings;
use crate::files;
use crate::kube::connection::Connection;
use crate::kube::pod_watch::{self, Selection};
use crate::pod_copy;
use node_pod::NodePod;
use own_pod_watch::OwnPodWatch;
use publisher::Publisher;
use sandbox_watch::SandboxWatch;

/// Longest random wait before the first list, on a node that has a kubeconfig. The wait is short,
/// because the agent is not ready before that list, and a rolling update waits for each node.
const START_SPREAD: Duration = Duration::from_secs(1);
/// Longest time for which readiness waits for the first list.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(20);

/// Starts the thread that watches all pods of the node. If the settings do not allow that, the
/// thread watches only the agent's own pod, and the copy that an earlier agent has published is
/// removed. Calls `waker` when the pods were listed, or could not be listed. `record_socket` shows
/// whether a newer agent runs.
///
/// Returns a flag. Set the flag before the copy is removed, to stop publishing.
pub fn start(
    settings: &Settings,
    status: &Arc<Status>,
    api: &Arc<ApiHandle>,
    record_socket: &Arc<RecordSocket>,
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
        let record_socket = Arc::clone(record_socket);
        let newer_agent_runs = move || record_socket.newer_agent_runs();
        let publisher =
            Publisher::new(settings, source, run_dir, status, &stop_publishing, newer_agent_runs);
        status.await_pod_copy(Instant::now() + FIRST_LIST_TIMEOUT, waker);
        let pods = Selection::Node(node);
        let spread = start_spread(settings);
        let watch = NodeWatch { own_pod, sandboxes: SandboxWatch::new(api), publisher };
        thread.spawn(move || watch_node(connection, &pods, spread, watch))?;
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

/// Returns the longest wait before the first list. There is no wait on a node without a kubeconfig,
/// because the first install there does not begin before the watch is open.
fn start_spread(settings: &Settings) -> Duration {
    match files::metadata(&settings.node.kubeconfig()) {
        Ok(Some(_)) => START_SPREAD,
        _ => Duration::ZERO,
    }
}

/// The users of the watch of the node's pods.
struct NodeWatch {
    /// `None` if the agent does not know the name of its pod.
    own_pod: Option<OwnPodWatch>,
    sandboxes: SandboxWatch,
    publisher: Publisher,
}

fn watch_node(connection: Connection, pods: &Selection, spread: Duration, mut watch: NodeWatch) {
    pod_watch::run(connection, pods, spread, |update| {
        if let Some(own_pod) = &watch.own_pod {
            own_pod.record(&update, |pod: &NodePod| &pod.seen);
        }
        watch.sandboxes.record(&update);
        watch.publisher.apply(update)
    });
}

fn watch_own_pod(connection: Connection, own_pod: &OwnPodWatch) {
    // The first list is not delayed, because it costs the API server little: it is a single object
    // from the cache.
    let spread = Duration::ZERO;
    pod_watch::run(connection, &own_pod.selection(), spread, |update| {
        own_pod.record(&update, |seen| seen);
        ControlFlow::Continue(())
    });
}
