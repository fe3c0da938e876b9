//! Watches the pods of this node and publishes them for the plugin, see [`crate::pod_copy`].
//!
//! A pod is published with the decision that the plugin would make after its requests, so that the
//! plugin sends none. If a request for it fails, the pod has no file, and the plugin asks itself. The
//! lock of the copy is held from the first list until the second failed request for pods in a row: then
//! a missing file is that of a pod about which the API server has told nothing yet, or of one that could
//! not be published.

mod publisher;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;

use super::api::{USER_AGENT, source};
use super::readiness::Status;
use super::settings::Settings;
use super::watch::Waker;
use crate::cni::object::Object;
use crate::config::Config;
use crate::kube::Deadlines;
use crate::kube::connection::Connection;
use crate::kube::pod_watch;
use crate::pod_copy;
use publisher::Publisher;

/// Time-out of each phase of a request for another object. The next pods wait behind it.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait before the first list. Short, as the agent is not ready before that list, and a rolling
/// update waits for each node.
const START_SPREAD: Duration = Duration::from_secs(1);
/// Longest time for which readiness waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(20);

/// Starts the thread, if the settings have all that it needs. Removes the copy of an earlier agent
/// if the pods are not to be watched. Calls `waker` when it is known whether they can be listed.
///
/// Publishes nothing while the returned flag is true, as the copy will be removed.
pub fn start(
    settings: &Settings,
    status: &Arc<Status>,
    waker: Waker,
) -> io::Result<Arc<AtomicBool>> {
    let stopped = Arc::<AtomicBool>::default();
    let Some(run_dir) = &settings.node.run_dir else { return Ok(stopped) };
    if !settings.watch_pods {
        for error in pod_copy::clear(run_dir) {
            warn!("cannot remove the node's copy of its pods: {error}");
        }
        return Ok(stopped);
    }
    let (Some(node), Some(source)) = (settings.node_name.clone(), source(settings)) else {
        return Ok(stopped);
    };
    let watching = Connection::new(source.clone(), USER_AGENT, pod_watch::DEADLINES);
    let connection = Connection::new(source, USER_AGENT, Deadlines::each(LOOKUP_TIMEOUT));
    let (own, shared) = (Arc::clone(&stopped), Arc::clone(status));
    let config = settings.plugin_entry().ok();
    let config = config.and_then(|entry| serde_json::from_str::<Object>(entry.text()).ok());
    let config = config.map(|entry| Config::read_leniently(&entry)).unwrap_or_default();
    let mut publisher = Publisher::new(run_dir.clone(), config, connection, own, shared);
    status.await_pod_copy(Instant::now() + FIRST_LIST, waker);
    let run = move || {
        pod_watch::run(watching, &node, START_SPREAD, |update| publisher.update(update));
    };
    thread::Builder::new().name("pods".into()).stack_size(512 << 10).spawn(run)?;
    Ok(stopped)
}
