//! Writes and removes the files of the node's copy of its pods, as the watch reports the pods.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::Pods;
use crate::agent::readiness::{PodCopyStatus, Status};
use crate::backoff::between;
use crate::cni;
use crate::cni::args::PodRef;
use crate::kube::connection::Connection;
use crate::kube::object_reader::{ObjectReader, ReadFrom};
use crate::kube::pod_stream::FromPod;
use crate::kube::pod_watch::{self, Update};
use crate::kube::types::{Metadata, Pod, STATIC_POD_UID, Service};
use crate::pod::Decision;
use crate::pod::annotation::Annotations;
use crate::pod::facts::{ClusterLookup, OwnFacts, PodFacts, own_facts, unread};
use crate::pod_copy::{self, Lock};

/// Shortest wait after [`DENIALS`], half of the longest: only an administrator changes that. Also until
/// the pods are listed again for those that could not be published.
const LONG_WAIT: Duration = Duration::from_secs(300);
/// Failures in a row from which on the copy counts as lost. A restart of the API server ends each watch,
/// and a server that starts may respond with 403.
const FAILURES: u32 = 2;
/// Failures in a row from which on a response of 403 is not that of an API server that starts. Of 100
/// nodes 23 had one as their second failure.
const DENIALS: u32 = 5;
/// Longest facts of a pod that is published, in bytes, to bound the memory of a list. No real pod comes
/// near.
const FACTS_LIMIT: usize = 4 << 10;

/// What a missing permission costs, and what to do.
const DENIED: &str = "the agent may not list and watch pods, so the plugin sends API requests for \
    each meshed pod that starts; grant both in the agent's ClusterRole, or set the value `watchPods` \
    to `false`";

/// A pod with a netns of its own, reduced to what its copy needs.
pub(super) struct NodePod {
    /// The pod as the runtime names it.
    pod: PodRef,
    /// A `Decision<OwnFacts>` as JSON, a third of its size: all pods of a list are in memory at once.
    /// Empty if it is longer than [`FACTS_LIMIT`].
    facts: Box<[u8]>,
}

impl FromPod for NodePod {
    fn from_pod(object: Pod) -> Option<Self> {
        let has_ended = matches!(&*object.status.phase, "Succeeded" | "Failed");
        if object.spec.host_network || has_ended {
            return None;
        }
        let pod = pod_ref(&object.metadata);
        let facts = serde_json::to_vec(&own_facts(object).ok()?).ok()?;
        let facts = if facts.len() <= FACTS_LIMIT { facts } else { Vec::new() };
        Some(NodePod { pod, facts: facts.into_boxed_slice() })
    }
}

/// Returns the pod as the runtime names it. For a static pod that is not the UID of its mirror pod but
/// a hash, which has no dash. Anybody who may create pods can claim the UID of another pod there.
fn pod_ref(metadata: &Metadata) -> PodRef {
    let Metadata { namespace, name, uid, annotations, .. } = metadata;
    let uid = annotations.get(STATIC_POD_UID).filter(|uid| !uid.contains('-')).unwrap_or(uid);
    PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
}

/// Writes and removes the files of the copy.
pub(super) struct Publisher {
    run_dir: PathBuf,
    lookups: Lookups,
    pods: Arc<Pods>,
    status: Arc<Status>,
    /// UID of each pod, and a hash of what its object states. Those with a problem are not published.
    known: BTreeMap<String, u64>,
    /// By UID, or by the text of a problem without pod.
    problems: BTreeMap<String, String>,
    /// Held while the watch is open, or open again soon.
    lock: Option<Lock>,
    /// Failed requests of the watch in a row.
    failures: u32,
    /// When the pods are listed again if there are problems.
    relist: Instant,
}

impl Publisher {
    /// `connection` is for requests for the objects besides the pods.
    pub(super) fn new(
        run_dir: PathBuf,
        connection: Connection,
        pods: Arc<Pods>,
        status: Arc<Status>,
    ) -> Publisher {
        Publisher {
            run_dir,
            lookups: Lookups { connection, reader: None },
            pods,
            status,
            known: BTreeMap::new(),
            problems: BTreeMap::new(),
            lock: None,
            failures: 0,
            relist: Instant::now(),
        }
    }

    /// Applies an update to the copy. `Break` asks for a new list, as the copy was removed, or is not
    /// complete.
    pub(super) fn update(&mut self, update: Update<'_, NodePod>) -> ControlFlow<()> {
        if self.pods.is_stopped() {
            return ControlFlow::Continue(());
        }
        match update {
            Update::Listed { pods, dropped } => {
                self.replace(pods);
                if dropped > 0 {
                    self.report("", format!("{dropped} more pods of this node are not published"));
                }
            }
            Update::Changed(pod) => self.publish(pod),
            Update::Deleted(metadata) => self.remove(&pod_ref(&metadata)),
            Update::Alive => {}
            Update::Failed { error, wait } => {
                self.fail(error, wait);
                return ControlFlow::Continue(());
            }
        }
        self.lookups.close();
        self.failures = 0;
        let flow = self.keep();
        self.show(None);
        match !self.problems.is_empty() && Instant::now() >= self.relist {
            true => ControlFlow::Break(()),
            false => flow,
        }
    }

    /// Makes the copy that of these pods.
    fn replace(&mut self, pods: Vec<NodePod>) {
        self.problems.clear();
        self.relist = Instant::now() + between(LONG_WAIT, 2 * LONG_WAIT);
        // Namespaces may have changed since, which no watch tells.
        self.known.clear();
        if let Err(error) = pod_copy::create(&self.run_dir) {
            self.report("", error.to_string());
        }
        for pod in pods {
            self.publish(pod);
        }
        let keep = self.known.keys().cloned().collect();
        for error in pod_copy::retain(&self.run_dir, &keep) {
            self.report("", error.to_string());
        }
    }

    /// Publishes the pod, unless its file is right. Removes the file if that fails. Until the next list,
    /// only a change of the pod repeats requests that failed.
    fn publish(&mut self, NodePod { pod, facts }: NodePod) {
        let hash = hash(&facts);
        let is_whole = || matches!(pod_copy::read(&self.run_dir, &pod), Ok(Some(_)));
        let is_known = self.known.insert(pod.uid.clone(), hash) == Some(hash);
        if is_known && (self.problems.contains_key(&pod.uid) || is_whole()) {
            return;
        }
        let decision = match complete(&facts, &pod.namespace, &mut self.lookups) {
            _ if self.pods.is_stopped() => return,
            Ok(decision) => decision,
            Err(problem) => return self.withhold(&pod, &problem),
        };
        match pod_copy::publish(&self.run_dir, pod.clone(), decision) {
            Ok(()) => drop(self.problems.remove(&pod.uid)),
            Err(error) => {
                // Each update tries again, which costs no request.
                self.known.remove(&pod.uid);
                self.withhold(&pod, &error.to_string());
            }
        }
    }

    /// Removes the pod's file, for this reason.
    fn withhold(&mut self, pod: &PodRef, problem: &str) {
        self.remove_file(pod);
        self.report(&pod.uid, format!("pod {pod} is not published: {problem}"));
    }

    fn remove(&mut self, pod: &PodRef) {
        self.known.remove(&pod.uid);
        self.problems.remove(&pod.uid);
        self.remove_file(pod);
    }

    fn remove_file(&mut self, pod: &PodRef) {
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
                return ControlFlow::Break(());
            }
            None => {}
        }
        match Lock::take(&self.run_dir) {
            Ok(lock) => {
                info!("{} pods of this node are published for the plugin", self.published());
                self.lock = Some(lock);
            }
            Err(error) => self.report("", error.to_string()),
        }
        ControlFlow::Continue(())
    }

    /// Releases the lock from the second failure in a row on, and waits longer in the end if only an
    /// administrator can correct the failure.
    fn fail(&mut self, error: &pod_watch::Error, wait: Duration) {
        self.failures += 1;
        let is_lost = self.failures >= FAILURES;
        if is_lost {
            self.lock = None;
        }
        if !error.is_denied() || !is_lost {
            warn!("cannot watch the pods of this node; retrying in {wait:.1?}: {error}");
            return self.show(Some(error.to_string()));
        }
        let problem = format!("{DENIED}: {error}");
        if self.status.pod_copy().and_then(|shown| shown.problem).as_ref() != Some(&problem) {
            warn!("{problem}");
        }
        self.show(Some(problem));
        if self.failures >= DENIALS {
            thread::sleep(between(LONG_WAIT, 2 * LONG_WAIT));
        }
    }

    /// Logs a problem once, and keeps it for `/status`. `uid` is empty if it is not that of a pod.
    fn report(&mut self, uid: &str, problem: String) {
        let key = if uid.is_empty() { problem.as_str() } else { uid };
        if self.problems.get(key) != Some(&problem) {
            warn!("{problem}");
            self.problems.insert(key.to_owned(), problem);
        }
    }

    /// Returns the number of pods with a file.
    fn published(&self) -> usize {
        self.known.keys().filter(|uid| !self.problems.contains_key(*uid)).count()
    }

    /// Sets what `/status` and the metrics say.
    fn show(&self, problem: Option<String>) {
        self.status.set_pod_copy(PodCopyStatus {
            published: self.published(),
            kept: self.lock.is_some(),
            problem: problem.or_else(|| self.problems.values().next().cloned()),
        });
    }
}

/// Reads the objects besides the pods, each once for an update of the watch. Connects only if a pod needs
/// one: an idle connection costs memory.
struct Lookups {
    connection: Connection,
    reader: Option<ObjectReader>,
}

impl Lookups {
    fn reader(&mut self) -> Result<&mut ObjectReader, cni::Error> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => ObjectReader::new(self.connection.client().map_err(unread)?, ReadFrom::Etcd),
        };
        Ok(self.reader.insert(reader))
    }

    fn close(&mut self) {
        self.reader = None;
        self.connection.close();
    }
}

impl ClusterLookup for Lookups {
    fn namespace(&mut self, name: &str) -> Result<Annotations, cni::Error> {
        self.reader()?.namespace(name)
    }

    fn api_service(&mut self) -> Result<Service, cni::Error> {
        self.reader()?.api_service()
    }
}

/// Returns the plugin's decision on a pod, from its own facts and other objects.
fn complete(
    facts: &[u8],
    namespace: &str,
    lookups: &mut Lookups,
) -> Result<Decision<PodFacts>, String> {
    if facts.is_empty() {
        return Err(format!("its annotations and containers need more than {FACTS_LIMIT} bytes"));
    }
    let own: OwnFacts = match serde_json::from_slice(facts).map_err(|error| error.to_string())? {
        Decision::Redirect(own) => own,
        Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
    };
    if own.is_control_plane {
        // Without it, the default ports apply. The plugin may have more luck.
        lookups.api_service().map_err(|error| error.to_string())?;
    }
    let facts = own.complete(namespace, lookups).map_err(|error| error.to_string())?;
    Ok(Decision::Redirect(facts))
}

/// Hashes what the pod's object states, so that an update of its status needs no requests.
fn hash(facts: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(facts);
    hasher.finish()
}
