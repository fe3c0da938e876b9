//! Watches the pods of this node and publishes them for the plugin, see [`crate::pod_copy`]. The
//! same watch shows the agent its own pod ([`own_pod`](super::own_pod)). Without the copy, a watch
//! of that pod alone does.
//!
//! A pod is published with the decision that the plugin would make after its API requests, so that
//! the plugin sends no request. If a request of the agent fails, the pod has no file, and the
//! plugin sends the requests. The agent holds the lock of the copy from the first list until the
//! watch fails twice in a row. If a pod has no file while the lock is held, the agent has received
//! no event of the pod yet, or could not publish it.

mod own_pod_watch;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::api_thread::ApiHandle;
use super::file_watch::Waker;
use super::identity::{self, USER_AGENT};
use super::own_pod::SeenPod;
use super::readiness::Status;
use super::settings::Settings;
use super::status_body::PodCopyStatus;
use crate::backoff::between;
use crate::cni::args::PodRef;
use crate::cni::object::Object;
use crate::config::Config;
use crate::files;
use crate::kube::Deadlines;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::object_reader::{ObjectReader, ReadFrom};
use crate::kube::pod_stream::FromPod;
use crate::kube::pod_watch::{self, Selection, Update};
use crate::kube::types::{Metadata, Pod, STATIC_POD_UID};
use crate::pod::Decision;
use crate::pod::containers::has_ipv6_address;
use crate::pod::facts::{OwnFacts, PodFacts, own_facts};
use crate::pod_copy::{self, Lock};
use crate::verdict::bypass_paths::{Reason, bypass_paths};
use crate::verdict::{PodView, verdict};
use own_pod_watch::OwnPodWatch;

/// Time-out of each phase of a request for another object. The next pods wait behind it.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait before the first list, on a node that has a kubeconfig. Short, because the agent is
/// not ready before that list, and a rolling update waits for each node.
const START_SPREAD: Duration = Duration::from_secs(1);
/// Longest time for which readiness waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(20);

/// Shortest wait after [`DENIALS`], as only an administrator can grant the permission. Also the
/// shortest wait until unpublished pods are listed again. The longest wait is twice as long.
const LONG_WAIT: Duration = Duration::from_secs(300);
/// Failures in a row after which the agent releases the lock of the copy. One is normal: a restart
/// of the API server ends each watch, and a starting API server may respond with 403.
const FAILURES: u32 = 2;
/// Failures in a row after which a 403 means a missing permission, not a starting API server. Of
/// 100 nodes, 23 had a 403 as their second failure.
const DENIALS: u32 = 5;
/// Longest facts of a published pod, in bytes, to bound memory. Real pods have far shorter facts.
const FACTS_LIMIT: usize = 4 << 10;

/// What a missing permission costs, and what to do.
const DENIED: &str = "the agent may not list and watch pods, so the plugin sends API requests for \
    each meshed pod that starts; grant both in the agent's ClusterRole, or set the value \
    `watchPods` to `false`";

/// Starts the thread, if the settings have all that it needs. Removes the copy of an earlier agent
/// if the pods are not to be watched. Calls `waker` when it is known whether they can be listed.
///
/// Publishes nothing while the returned flag is true, as the copy will be removed.
pub fn start(
    settings: &Settings,
    status: &Arc<Status>,
    api: &Arc<ApiHandle>,
    waker: Waker,
) -> io::Result<Arc<AtomicBool>> {
    let stopped = Arc::<AtomicBool>::default();
    if !settings.watch_pods {
        clear_copy(settings);
    }
    let Some(source) = identity::access_source(settings) else { return Ok(stopped) };
    let connection = Connection::new(source.clone(), USER_AGENT, pod_watch::DEADLINES);
    let own_pod = identity::pod_name(settings).map(|name| OwnPodWatch::new(api, name));
    let thread = thread::Builder::new().name("pods".into()).stack_size(512 << 10);
    if let Some(run_dir) = settings.node.run_dir.clone()
        && let Some(node) = settings.node_name.clone()
        && settings.watch_pods
    {
        let mut publisher = Publisher::new(settings, source, run_dir, status, &stopped);
        status.await_pod_copy(Instant::now() + FIRST_LIST, waker);
        // The first install of a node waits for the watch.
        let has_kubeconfig =
            files::metadata(&settings.node.kubeconfig()).is_ok_and(|it| it.is_some());
        let spread = if has_kubeconfig { START_SPREAD } else { Duration::ZERO };
        thread.spawn(move || {
            let pods = Selection::Node(node);
            pod_watch::run(connection, &pods, spread, |update| {
                if let Some(own_pod) = &own_pod {
                    own_pod.record(&update, |pod: &NodePod| &pod.seen);
                }
                publisher.update(update)
            });
        })?;
    } else if let Some(own_pod) = own_pod {
        thread.spawn(move || {
            let pod = own_pod.selection();
            // A single object from the cache costs the API server no more than a token check.
            pod_watch::run(connection, &pod, Duration::ZERO, |update| {
                own_pod.record(&update, |seen| seen);
                ControlFlow::Continue(())
            });
        })?;
    }
    Ok(stopped)
}

/// Removes the copy of the node's pods.
pub fn clear_copy(settings: &Settings) {
    let run_dir = settings.node.run_dir.as_deref();
    for error in run_dir.map(pod_copy::clear).unwrap_or_default() {
        warn!("cannot remove the node's copy of its pods: {error}");
    }
}

/// A pod of the node, reduced to what its copy and the agent need.
struct NodePod {
    /// The pod as the runtime names it.
    pod: PodRef,
    seen: SeenPod,
    /// `None` for a pod in the host's network, which is not published.
    content: Option<PodContent>,
}

/// What is published of a pod.
struct PodContent {
    /// A `Decision<OwnFacts>` as JSON, which needs a third of the memory: all pods of a list are in
    /// memory at once. Empty if longer than [`FACTS_LIMIT`].
    facts: Box<[u8]>,
    /// Not in `facts`, because the addresses change after the pod is published.
    has_ipv6: bool,
}

impl FromPod for NodePod {
    fn from_pod(object: Pod) -> Option<Self> {
        if object.status.has_ended() {
            return None;
        }
        let (pod, seen) = (pod_ref(&object.metadata), SeenPod::read(&object.metadata));
        let content = if object.spec.host_network { None } else { Some(PodContent::of(object)?) };
        Some(NodePod { pod, seen, content })
    }
}

impl PodContent {
    fn of(object: Pod) -> Option<PodContent> {
        let has_ipv6 = has_ipv6_address(&object);
        let facts = serde_json::to_vec(&own_facts(object).ok()?).ok()?;
        let facts = if facts.len() <= FACTS_LIMIT { facts } else { Vec::new() };
        Some(PodContent { facts: facts.into_boxed_slice(), has_ipv6 })
    }
}

/// Returns the pod as the runtime names it: a static pod by its hash, from an annotation. Ignores a
/// UID with dashes there: the author of a pod could claim the UID of another pod.
fn pod_ref(metadata: &Metadata) -> PodRef {
    let Metadata { namespace, name, uid, annotations, .. } = metadata;
    let uid = annotations.get(STATIC_POD_UID).filter(|uid| !uid.contains('-')).unwrap_or(uid);
    PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
}

struct PublishedPod {
    /// The published facts. While they are equal, an update of the pod needs no request.
    facts: Box<[u8]>,
    problem: Option<String>,
    /// Why traffic of the pod bypasses the proxy. `Ipv6` applies only with `has_ipv6`.
    reasons: Vec<Reason>,
    has_ipv6: bool,
}

struct Publisher {
    run_dir: PathBuf,
    /// The plugin entry, for the reasons why traffic bypasses the proxy.
    config: Config,
    /// For requests for other objects. Opened only when a pod needs one: a connection costs memory.
    connection: Connection,
    /// Reads each of these objects at most once in an update of the watch.
    reader: Option<ObjectReader>,
    stopped: Arc<AtomicBool>,
    status: Arc<Status>,
    /// By UID.
    known: BTreeMap<String, PublishedPod>,
    /// A problem since the last list that concerns no single pod.
    problem: Option<String>,
    /// Held from the first list until [`FAILURES`].
    lock: Option<Lock>,
    /// Number of failures of the watch in a row.
    failures: u32,
    watch_problem: Option<String>,
    logged: BTreeSet<String>,
    /// When the pods are listed again if there are problems.
    relist: Instant,
}

impl Publisher {
    fn new(
        settings: &Settings,
        source: AccessSource,
        run_dir: PathBuf,
        status: &Arc<Status>,
        stopped: &Arc<AtomicBool>,
    ) -> Publisher {
        let config = settings.plugin_entry().ok();
        let config = config.and_then(|entry| serde_json::from_str::<Object>(entry.text()).ok());
        Publisher {
            run_dir,
            config: config.map(|entry| Config::read_leniently(&entry)).unwrap_or_default(),
            connection: Connection::new(source, USER_AGENT, Deadlines::each(LOOKUP_TIMEOUT)),
            reader: None,
            stopped: Arc::clone(stopped),
            status: Arc::clone(status),
            known: BTreeMap::new(),
            problem: None,
            lock: None,
            failures: 0,
            watch_problem: None,
            logged: BTreeSet::new(),
            relist: Instant::now(),
        }
    }

    /// Applies an update. `Break` requests a new list: the copy was removed, or is incomplete.
    fn update(&mut self, update: Update<'_, NodePod>) -> ControlFlow<()> {
        if self.stopped.load(Ordering::Relaxed) {
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
            Update::Deleted(metadata) => {
                let pod = pod_ref(&metadata);
                self.known.remove(&pod.uid);
                self.note(pod_copy::remove(&self.run_dir, &pod).err());
            }
            Update::Opened | Update::Alive => {}
            Update::Failed { error, .. } => {
                self.fail(error);
                return ControlFlow::Continue(());
            }
        }
        self.reader = None;
        self.connection.close();
        self.failures = 0;
        self.watch_problem = None;
        let was_removed = self.was_removed();
        let has_problem = self.show();
        match was_removed || has_problem && Instant::now() >= self.relist {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn note(&mut self, errors: impl IntoIterator<Item = files::Error>) {
        if let Some(error) = errors.into_iter().last() {
            self.problem = Some(error.to_string());
        }
    }

    /// Replaces the copy with these pods.
    fn replace(&mut self, pods: Vec<NodePod>) {
        self.problem = None;
        self.relist = Instant::now() + between(LONG_WAIT, 2 * LONG_WAIT);
        // Namespaces may have changed, and the agent does not watch them.
        self.known.clear();
        self.note(pod_copy::create(&self.run_dir).err());
        pods.into_iter().for_each(|pod| self.publish(pod));
        let keep = self.known.keys().cloned().collect();
        self.note(pod_copy::retain(&self.run_dir, &keep));
    }

    /// Publishes the pod, unless its file is current. Removes the file if publishing fails. Failed
    /// requests are repeated when the pod changes, or at the next list.
    fn publish(&mut self, NodePod { pod, content, .. }: NodePod) {
        let Some(PodContent { facts, has_ipv6 }) = content else { return };
        if let Some(known) = self.known.get_mut(&pod.uid) {
            known.has_ipv6 = has_ipv6;
            let is_whole = || matches!(pod_copy::read(&self.run_dir, &pod), Ok(Some(_)));
            if known.facts == facts && (known.problem.is_some() || is_whole()) {
                return;
            }
        }
        let decision = self.complete(&facts, &pod.namespace);
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        let mut known = PublishedPod { facts, problem: None, reasons: Vec::new(), has_ipv6 };
        let published = decision.and_then(|decision| {
            let decision = match decision {
                Decision::Skip(reason) => Decision::Skip(reason),
                Decision::Redirect((own, facts)) => {
                    let verdict = verdict(&self.config, &pod, PodView::Complete(&facts));
                    let found = bypass_paths(&self.config, &verdict, &own, &facts, true);
                    let found = found.unwrap_or_default();
                    known.reasons = found.iter().map(|path| path.reason).collect();
                    known.reasons.dedup();
                    Decision::Redirect(facts)
                }
            };
            pod_copy::publish(&self.run_dir, pod.clone(), decision).map_err(|error| {
                // Without facts, the next update of the pod retries.
                known.facts = Box::default();
                error.to_string()
            })
        });
        known.problem = published.err().map(|problem| {
            let removed = pod_copy::remove(&self.run_dir, &pod);
            let stays = removed.err().map(|error| format!("; {error}")).unwrap_or_default();
            format!("pod {pod} is not published: {problem}{stays}")
        });
        self.known.insert(pod.uid, known);
    }

    /// Takes or keeps the lock. Returns whether the lock's file, and so the directory, was removed.
    fn was_removed(&mut self) -> bool {
        if let Some(lock) = self.lock.take() {
            self.lock = Some(lock).filter(|lock| lock.is_in_place(&self.run_dir));
            return self.lock.is_none();
        }
        match Lock::take(&self.run_dir) {
            Ok(lock) => {
                info!("{} pods of this node are published for the plugin", self.published());
                self.lock = Some(lock);
            }
            Err(error) => self.note([error]),
        }
        false
    }

    /// Releases the lock after [`FAILURES`]. Waits longer after [`DENIALS`].
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

    /// Updates `/status` and metrics, and logs new problems. Returns whether there are problems.
    fn show(&mut self) -> bool {
        let of_pods = self.known.values().filter_map(|known| known.problem.as_ref());
        let problems = self.watch_problem.iter().chain(&self.problem).chain(of_pods).cloned();
        let problems: Vec<String> = problems.collect();
        let is_new = |problem: &&String| !self.logged.contains(*problem);
        problems.iter().filter(is_new).for_each(|problem| warn!("{problem}"));
        self.logged = problems.iter().cloned().collect();
        let problem = problems.into_iter().next();
        let has_problem = problem.is_some();
        let (published, current) = (self.published(), self.lock.is_some());
        let mut bypasses = BTreeMap::new();
        for known in self.known.values() {
            let has = |reason: &Reason| known.has_ipv6 || *reason != Reason::Ipv6;
            for reason in known.reasons.iter().copied().filter(has) {
                *bypasses.entry(reason.label().to_owned()).or_default() += 1;
            }
        }
        self.status.set_pod_copy(PodCopyStatus { published, current, problem, bypasses });
        has_problem
    }

    /// Returns the plugin's decision on a pod, from its own facts and other objects. The bypass
    /// metric needs the own facts, too.
    fn complete(
        &mut self,
        facts: &[u8],
        namespace: &str,
    ) -> Result<Decision<(OwnFacts, PodFacts)>, String> {
        if facts.is_empty() {
            let why = "its annotations and containers need more than";
            return Err(format!("{why} {FACTS_LIMIT} bytes"));
        }
        let own = serde_json::from_slice(facts).map_err(|error| error.to_string())?;
        let own: OwnFacts = match own {
            Decision::Redirect(own) => own,
            Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
        };
        if !own.needs_objects() {
            let facts = own.facts.clone();
            return Ok(Decision::Redirect((own, facts)));
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => {
                let client = self.connection.client().map_err(|error| error.to_string())?;
                self.reader.insert(ObjectReader::new(client, ReadFrom::Etcd))
            }
        };
        if own.is_control_plane {
            // Without the Service, default ports would apply. The plugin then asks itself.
            reader.api_server_service()?;
        }
        let facts = own.complete(namespace, reader).map_err(|error| error.to_string())?;
        Ok(Decision::Redirect((own, facts)))
    }
}
