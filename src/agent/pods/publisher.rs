//! Writes and removes the files of the node's copy of its pods, as the watch reports the pods.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher as _};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tracing::{info, warn};

use super::Pods;
use crate::agent::readiness::{PodCopyStatus, Status};
use crate::backoff::between;
use crate::cni::args::PodRef;
use crate::kube::connection::Connection;
use crate::kube::object_reader::{ObjectReader, ReadFrom};
use crate::kube::pod_stream::FromPod;
use crate::kube::pod_watch::{self, Update};
use crate::kube::types::{Metadata, Pod, STATIC_POD_UID};
use crate::pod::Decision;
use crate::pod::facts::{ClusterLookup as _, OwnFacts, PodFacts, own_facts};
use crate::pod_copy::{self, Lock};

/// Shortest wait after a response of 403, half of the longest: only an administrator changes that.
const DENIED_WAIT: Duration = Duration::from_secs(300);
/// Longest annotations with which a pod is published, in bytes, to bound the memory of a list. No real
/// pod's ports and subnets come near.
const ANNOTATIONS_LIMIT: usize = 4 << 10;

/// What a missing permission costs, and what to do.
const DENIED: &str = "the agent may not list and watch pods, so the plugin sends API requests for \
    each meshed pod that starts; grant both in the agent's ClusterRole, or set the value `watchPods` \
    to `false`";

/// A pod with a netns of its own, reduced to what its copy needs.
pub(super) struct NodePod {
    /// The pod as the runtime names it.
    pod: PodRef,
    /// A `Decision<OwnFacts>` as JSON, a third of its size: all pods of a list are in memory at once.
    facts: Box<[u8]>,
}

impl FromPod for NodePod {
    fn from_pod(object: Pod) -> Option<Self> {
        if object.spec.host_network {
            return None;
        }
        let pod = pod_ref(&object.metadata);
        let facts = own_facts(object).ok()?;
        let length = match &facts {
            Decision::Redirect(own) => own.facts.annotations.values().map(String::len).sum(),
            Decision::Skip(_) => 0,
        };
        let facts = serde_json::to_vec(&facts).ok().filter(|_| length <= ANNOTATIONS_LIMIT)?;
        Some(NodePod { pod, facts: facts.into_boxed_slice() })
    }
}

/// Returns the pod as the runtime names it. For a static pod that is not the UID of its mirror pod.
fn pod_ref(metadata: &Metadata) -> PodRef {
    let Metadata { namespace, name, uid, annotations, .. } = metadata;
    let uid = annotations.get(STATIC_POD_UID).unwrap_or(uid);
    PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
}

/// Writes and removes the files of the copy.
pub(super) struct Publisher {
    run_dir: PathBuf,
    connection: Connection,
    pods: Arc<Pods>,
    status: Arc<Status>,
    /// UID of each published pod, and a hash of what its object states.
    published: BTreeMap<String, u64>,
    /// By UID, or by the text of a problem without pod.
    problems: BTreeMap<String, String>,
    /// Held while the watch is open.
    lock: Option<Lock>,
}

impl Publisher {
    /// `connection` is for requests for the objects besides the pods.
    pub(super) fn new(
        run_dir: PathBuf,
        connection: Connection,
        pods: Arc<Pods>,
        status: Arc<Status>,
    ) -> Publisher {
        let (published, problems) = (BTreeMap::new(), BTreeMap::new());
        Publisher { run_dir, connection, pods, status, published, problems, lock: None }
    }

    /// Applies an update to the copy. `Break` asks for a new list, as the copy was removed.
    pub(super) fn update(&mut self, update: Update<'_, NodePod>) -> ControlFlow<()> {
        if self.pods.is_stopped() {
            return ControlFlow::Continue(());
        }
        match update {
            Update::Listed { pods, .. } => self.replace(pods),
            Update::Changed(pod) => {
                if let Some(mut reader) = self.reader() {
                    self.publish(pod, &mut reader);
                }
            }
            Update::Deleted(metadata) => self.remove(&pod_ref(&metadata)),
            Update::Alive => {}
            Update::Failed { error, wait } => {
                self.fail(error, wait);
                return ControlFlow::Continue(());
            }
        }
        let flow = self.keep();
        self.show(None);
        flow
    }

    /// Makes the copy that of these pods.
    fn replace(&mut self, pods: Vec<NodePod>) {
        self.problems.clear();
        if let Err(error) = pod_copy::create(&self.run_dir) {
            self.report("", error.to_string());
        }
        let Some(mut reader) = self.reader() else { return };
        let listed: BTreeSet<String> = pods.iter().map(|pod| pod.pod.uid.clone()).collect();
        self.published.retain(|uid, _| listed.contains(uid));
        for pod in pods {
            self.publish(pod, &mut reader);
        }
        let keep = self.published.keys().cloned().collect();
        for error in pod_copy::retain(&self.run_dir, &keep) {
            self.report("", error.to_string());
        }
    }

    /// Returns a reader that knows no object yet.
    fn reader(&mut self) -> Option<ObjectReader> {
        match self.connection.client() {
            Ok(client) => Some(ObjectReader::new(client, ReadFrom::Etcd)),
            Err(error) => {
                self.report("", error.to_string());
                None
            }
        }
    }

    /// Publishes the pod, unless its file is right. Removes the file if that fails.
    fn publish(&mut self, NodePod { pod, facts }: NodePod, reader: &mut ObjectReader) {
        let hash = hash(&facts);
        let is_whole = || matches!(pod_copy::read(&self.run_dir, &pod), Ok(Some(_)));
        if self.published.get(&pod.uid) == Some(&hash) && is_whole() {
            return;
        }
        let uid = pod.uid.clone();
        let written = complete(&facts, &pod.namespace, reader).and_then(|decision| {
            match self.pods.is_stopped() {
                true => Ok(()),
                false => pod_copy::publish(&self.run_dir, pod.clone(), decision)
                    .map_err(|error| error.to_string()),
            }
        });
        match written {
            Ok(()) => {
                self.published.insert(uid.clone(), hash);
                self.problems.remove(&uid);
            }
            Err(problem) => {
                self.remove(&pod);
                self.report(&uid, format!("pod {pod} is not published: {problem}"));
            }
        }
    }

    fn remove(&mut self, pod: &PodRef) {
        self.published.remove(&pod.uid);
        self.problems.remove(&pod.uid);
        if let Err(error) = pod_copy::remove(&self.run_dir, pod) {
            self.report(&pod.uid, error.to_string());
        }
    }

    /// Holds the lock from now on. `Break`: it is not where the plugin looks for it, so the directory
    /// was removed.
    fn keep(&mut self) -> ControlFlow<()> {
        match &self.lock {
            Some(lock) if lock.is_in_place(&self.run_dir) => return ControlFlow::Continue(()),
            Some(_) => {
                self.lock = None;
                self.published.clear();
                return ControlFlow::Break(());
            }
            None => {}
        }
        match Lock::take(&self.run_dir) {
            Ok(lock) => {
                info!("the node's copy of its pods is complete: {} pods", self.published.len());
                self.lock = Some(lock);
            }
            Err(error) => self.report("", error.to_string()),
        }
        ControlFlow::Continue(())
    }

    /// Releases the lock, and waits longer if only an administrator can correct the failure.
    fn fail(&mut self, error: &pod_watch::Error, wait: Duration) {
        self.lock = None;
        if !error.is_denied() {
            warn!("cannot watch the pods of this node; retrying in {wait:.1?}: {error}");
            return self.show(Some(error.to_string()));
        }
        let problem = format!("{DENIED}: {error}");
        if self.status.pod_copy().and_then(|shown| shown.problem).as_ref() != Some(&problem) {
            warn!("{problem}");
        }
        self.show(Some(problem));
        thread::sleep(between(DENIED_WAIT, 2 * DENIED_WAIT));
    }

    /// Logs a problem once, and keeps it for `/status`. `uid` is empty if it is not that of a pod.
    fn report(&mut self, uid: &str, problem: String) {
        let key = if uid.is_empty() { problem.as_str() } else { uid };
        if self.problems.get(key) != Some(&problem) {
            warn!("{problem}");
            self.problems.insert(key.to_owned(), problem);
        }
    }

    /// Sets what `/status` and the metrics say.
    fn show(&self, problem: Option<String>) {
        self.status.set_pod_copy(PodCopyStatus {
            published: self.published.len(),
            kept: self.lock.is_some(),
            problem: problem.or_else(|| self.problems.values().next().cloned()),
        });
    }
}

/// Returns the plugin's decision on a pod, from its own facts and other objects.
fn complete(
    facts: &[u8],
    namespace: &str,
    reader: &mut ObjectReader,
) -> Result<Decision<PodFacts>, String> {
    let own: OwnFacts = match serde_json::from_slice(facts).map_err(|error| error.to_string())? {
        Decision::Redirect(own) => own,
        Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
    };
    if own.is_control_plane {
        // Without it, the default ports apply. The plugin may have more luck.
        reader.api_service().map_err(|error| error.to_string())?;
    }
    let facts = own.complete(namespace, reader).map_err(|error| error.to_string())?;
    Ok(Decision::Redirect(facts))
}

/// Hashes what the pod's object states, so that an update of its status needs no requests.
fn hash(facts: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(facts);
    hasher.finish()
}
