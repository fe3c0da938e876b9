//! Writes and removes the files of the node's copy of its pods, as the watch reports the pods.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::agent::readiness::Status;
use crate::agent::status_body::PodCopyStatus;
use crate::backoff::between;
use crate::cni::args::PodRef;
use crate::config::Config;
use crate::config::bypass::Reason;
use crate::kube::connection::Connection;
use crate::kube::object_reader::{ObjectReader, ReadFrom};
use crate::kube::pod_stream::FromPod;
use crate::kube::pod_watch::{self, Update};
use crate::kube::types::{Metadata, Pod, STATIC_POD_UID};
use crate::pod::Decision;
use crate::pod::containers::has_ipv6_address;
use crate::pod::facts::{OwnFacts, PodFacts, own_facts};
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
/// Longest facts of a pod that is published, in bytes, to bound memory. No real pod comes near.
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
    /// Not one of the facts, as it changes after the pod is published.
    has_ipv6: bool,
}

impl FromPod for NodePod {
    fn from_pod(object: Pod) -> Option<Self> {
        let has_ended = matches!(&*object.status.phase, "Succeeded" | "Failed");
        if object.spec.host_network || has_ended {
            return None;
        }
        let pod = pod_ref(&object.metadata);
        let has_ipv6 = has_ipv6_address(&object);
        let facts = serde_json::to_vec(&own_facts(object).ok()?).ok()?;
        let facts = if facts.len() <= FACTS_LIMIT { facts } else { Vec::new() };
        Some(NodePod { pod, facts: facts.into_boxed_slice(), has_ipv6 })
    }
}

/// Returns the pod as the runtime names it. For a static pod that is not the UID of its mirror pod but
/// a hash, which has no dash. Anybody who may create pods can claim the UID of another pod there.
fn pod_ref(metadata: &Metadata) -> PodRef {
    let Metadata { namespace, name, uid, annotations, .. } = metadata;
    let uid = annotations.get(STATIC_POD_UID).filter(|uid| !uid.contains('-')).unwrap_or(uid);
    PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
}

struct Known {
    /// The facts that were published, so that an update of the pod's status needs no requests.
    facts: Box<[u8]>,
    problem: Option<String>,
    /// Why traffic of the pod bypasses the proxy, if the pod has an IPv6 address.
    reasons: Vec<Reason>,
    has_ipv6: bool,
}

pub(super) struct Publisher {
    run_dir: PathBuf,
    /// The plugin entry, for the reasons why traffic bypasses the proxy.
    config: Config,
    /// For objects besides the pods. Opened only if a pod needs one: a connection costs memory.
    connection: Connection,
    /// Reads each of these objects once for an update of the watch.
    reader: Option<ObjectReader>,
    stopped: Arc<AtomicBool>,
    status: Arc<Status>,
    /// By UID.
    known: BTreeMap<String, Known>,
    /// A problem since the last list that is not that of a pod.
    problem: Option<String>,
    /// Held while the watch is open, or open again soon.
    lock: Option<Lock>,
    /// Failed requests of the watch in a row.
    failures: u32,
    watch_problem: Option<String>,
    logged: BTreeSet<String>,
    /// When the pods are listed again if there are problems.
    relist: Instant,
}

impl Publisher {
    pub(super) fn new(
        run_dir: PathBuf,
        config: Config,
        connection: Connection,
        stopped: Arc<AtomicBool>,
        status: Arc<Status>,
    ) -> Publisher {
        Publisher {
            run_dir,
            config,
            connection,
            reader: None,
            stopped,
            status,
            known: BTreeMap::new(),
            problem: None,
            lock: None,
            failures: 0,
            watch_problem: None,
            logged: BTreeSet::new(),
            relist: Instant::now(),
        }
    }

    /// Applies an update. `Break` asks for a new list, as the copy was removed or is incomplete.
    pub(super) fn update(&mut self, update: Update<'_, NodePod>) -> ControlFlow<()> {
        if self.is_stopped() {
            return ControlFlow::Continue(());
        }
        match update {
            Update::Listed { pods, dropped } => {
                self.replace(pods);
                if dropped > 0 {
                    let problem = format!("{dropped} more pods of this node are not published");
                    self.problem = Some(problem);
                }
            }
            Update::Changed(pod) => self.publish(pod),
            Update::Deleted(metadata) => self.remove(&pod_ref(&metadata)),
            Update::Alive => {}
            Update::Failed { error, .. } => {
                self.fail(error);
                return ControlFlow::Continue(());
            }
        }
        self.reader = None;
        self.connection.close();
        self.failures = 0;
        self.watch_problem = None;
        let flow = self.keep();
        let has_problem = self.show();
        if has_problem && Instant::now() >= self.relist { ControlFlow::Break(()) } else { flow }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Makes the copy that of these pods.
    fn replace(&mut self, pods: Vec<NodePod>) {
        self.problem = None;
        self.relist = Instant::now() + between(LONG_WAIT, 2 * LONG_WAIT);
        // Namespaces may have changed since, which no watch tells.
        self.known.clear();
        if let Err(error) = pod_copy::create(&self.run_dir) {
            self.problem = Some(error.to_string());
        }
        for pod in pods {
            self.publish(pod);
        }
        let keep = self.known.keys().cloned().collect();
        for error in pod_copy::retain(&self.run_dir, &keep) {
            self.problem = Some(error.to_string());
        }
    }

    /// Publishes the pod, unless its file is right. Removes the file if that fails. Until the next list,
    /// only a change of the pod repeats requests that failed.
    fn publish(&mut self, NodePod { pod, facts, has_ipv6 }: NodePod) {
        if let Some(known) = self.known.get_mut(&pod.uid) {
            known.has_ipv6 = has_ipv6;
        }
        let is_whole = || matches!(pod_copy::read(&self.run_dir, &pod), Ok(Some(_)));
        let known = self.known.get(&pod.uid).filter(|known| known.facts == facts);
        if known.is_some_and(|known| known.problem.is_some() || is_whole()) {
            return;
        }
        // Costs no request, if only the file could not be written.
        let mut tries_again = false;
        let mut reasons = Vec::new();
        let result = match self.complete(&facts, &pod.namespace) {
            _ if self.is_stopped() => return,
            Ok(decision) => {
                if let Decision::Redirect(facts) = &decision {
                    let found = self.config.bypasses(&pod, facts, true).unwrap_or_default();
                    reasons.extend(found.iter().map(|bypass| bypass.reason));
                    reasons.dedup();
                }
                let published = pod_copy::publish(&self.run_dir, pod.clone(), decision);
                tries_again = published.is_err();
                published.map_err(|error| error.to_string())
            }
            Err(problem) => Err(problem),
        };
        let problem = result.err().map(|problem| {
            let removed = pod_copy::remove(&self.run_dir, &pod);
            let stays = removed.err().map(|error| format!("; {error}")).unwrap_or_default();
            format!("pod {pod} is not published: {problem}{stays}")
        });
        let facts = if tries_again { Box::default() } else { facts };
        self.known.insert(pod.uid, Known { facts, problem, reasons, has_ipv6 });
    }

    fn remove(&mut self, pod: &PodRef) {
        self.known.remove(&pod.uid);
        if let Err(error) = pod_copy::remove(&self.run_dir, pod) {
            self.problem = Some(error.to_string());
        }
    }

    /// Holds the lock from now on. `Break`: its file is missing, so the directory was removed.
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
            Err(error) => self.problem = Some(error.to_string()),
        }
        ControlFlow::Continue(())
    }

    /// Releases the lock from the second failure in a row on, and waits longer in the end if only an
    /// administrator can correct the failure.
    fn fail(&mut self, error: &pod_watch::Error) {
        self.failures += 1;
        let is_lost = self.failures >= FAILURES;
        if is_lost {
            self.lock = None;
        }
        let is_denied = error.is_denied() && is_lost;
        let what = if is_denied { DENIED } else { "cannot watch the pods of this node" };
        self.watch_problem = Some(format!("{what}: {error}"));
        self.show();
        if is_denied && self.failures >= DENIALS {
            thread::sleep(between(LONG_WAIT, 2 * LONG_WAIT));
        }
    }

    fn published(&self) -> usize {
        self.known.values().filter(|known| known.problem.is_none()).count()
    }

    /// Sets what `/status` and the metrics say, and logs new problems. Returns whether there is one.
    fn show(&mut self) -> bool {
        let of_pods = self.known.values().filter_map(|known| known.problem.as_ref());
        let problems = self.watch_problem.iter().chain(&self.problem).chain(of_pods).cloned();
        let problems: Vec<String> = problems.collect();
        let is_new = |problem: &&String| !self.logged.contains(*problem);
        problems.iter().filter(is_new).for_each(|problem| warn!("{problem}"));
        self.logged = problems.iter().cloned().collect();
        let problem = problems.into_iter().next();
        let has_problem = problem.is_some();
        let (published, kept) = (self.published(), self.lock.is_some());
        let mut bypasses = BTreeMap::new();
        for known in self.known.values() {
            let has = |reason: &Reason| known.has_ipv6 || *reason != Reason::Ipv6;
            for reason in known.reasons.iter().copied().filter(has) {
                *bypasses.entry(reason.label().to_owned()).or_default() += 1;
            }
        }
        self.status.set_pod_copy(PodCopyStatus { published, kept, problem, bypasses });
        has_problem
    }

    /// Returns the plugin's decision on a pod, from its own facts and other objects.
    fn complete(&mut self, facts: &[u8], namespace: &str) -> Result<Decision<PodFacts>, String> {
        if facts.is_empty() {
            return Err(format!(
                "its annotations and containers need more than {FACTS_LIMIT} bytes"
            ));
        }
        let own: OwnFacts =
            match serde_json::from_slice(facts).map_err(|error| error.to_string())? {
                Decision::Redirect(own) => own,
                Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
            };
        if !own.needs_objects() {
            return Ok(Decision::Redirect(own.facts));
        }
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let client = self.connection.client().map_err(|error| error.to_string())?;
                ObjectReader::new(client, ReadFrom::Etcd)
            }
        };
        let reader = self.reader.insert(reader);
        if own.is_control_plane {
            // Without it, the default ports apply. The plugin may have more luck.
            reader.api_server_service()?;
        }
        let facts = own.complete(namespace, reader).map_err(|error| error.to_string())?;
        Ok(Decision::Redirect(facts))
    }
}
