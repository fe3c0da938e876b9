//! Publishes the pods of the node in its copy, as the watch shows them, and reports the copy in
//! `/status`, metrics and log.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::facts_reader::FactsReader;
use super::node_pod::{NodePod, PodContent, runtime_pod};
use super::request_limit::RequestLimit;
use crate::agent::readiness::Status;
use crate::agent::settings::Settings;
use crate::agent::status_body::PodCopyStatus;
use crate::backoff::between;
use crate::cni::args::PodRef;
use crate::cni::object::Object;
use crate::config::Config;
use crate::kube::connection::AccessSource;
use crate::kube::pod_watch::{self, Update};
use crate::kube::types::Metadata;
use crate::pod::Decision;
use crate::pod::facts::{ObjectFacts, PodFacts};
use crate::pod_copy::{self, FACTS_LIMIT, Lock};
use crate::verdict::bypass_paths::{Reason, bypass_paths};
use crate::verdict::{PodView, verdict};

/// Shortest wait after [`DENIALS`], as only an administrator can grant the permission. Also the
/// shortest wait until unpublished pods are listed again. The longest wait is twice as long.
const LONG_WAIT: Duration = Duration::from_secs(300);
/// Failures in a row after which the agent releases the lock of the copy. One is normal: a restart
/// of the API server ends each watch, and a starting API server may respond with 403.
const FAILURES: u32 = 2;
/// Failures in a row after which a 403 means a missing permission, not a starting API server. Of
/// 100 nodes, 23 had a 403 as their second failure.
const DENIALS: u32 = 5;

/// What a missing permission costs, and what to do.
const DENIED: &str = "the agent may not list and watch pods, so the plugin sends API requests for \
    each meshed pod that starts; grant both in the agent's ClusterRole, or set the value \
    `watchPods` to `false`";

/// What is known of a pod that was published, or could not be published.
#[derive(Default)]
struct KnownPod {
    /// The published facts. While they are equal, an update of the pod needs no request.
    facts: Box<[u8]>,
    /// Why the pod is not published.
    problem: Option<PodProblem>,
    /// Why traffic of the pod bypasses the proxy. `Ipv6` applies only with `has_ipv6`.
    bypass_reasons: Vec<Reason>,
    has_ipv6: bool,
}

/// Why a pod is not published.
struct PodProblem {
    /// The problem, as the log shows it.
    text: String,
    /// Publishing the pod again, after a new list, may succeed.
    may_pass: bool,
}

impl KnownPod {
    fn bypasses(&self, reason: Reason) -> bool {
        (self.has_ipv6 || reason != Reason::Ipv6) && self.bypass_reasons.contains(&reason)
    }
}

pub struct Publisher {
    run_dir: PathBuf,
    /// The plugin entry, for the reasons why traffic bypasses the proxy.
    config: Config,
    facts_reader: FactsReader,
    stop_publishing: Arc<AtomicBool>,
    status: Arc<Status>,
    /// The known pods by their UID.
    published: BTreeMap<String, KnownPod>,
    /// Limits the requests for each pod.
    requests: RequestLimit,
    /// The newest state of pods that wait for the limit, by UID.
    postponed: BTreeMap<String, NodePod>,
    /// A problem since the last list that concerns no single pod.
    copy_problem: Option<String>,
    /// Held from the first list until [`FAILURES`].
    lock: Option<Lock>,
    /// Number of failures of the watch in a row.
    failures: u32,
    watch_problem: Option<String>,
    /// The problems that were logged last.
    logged: BTreeSet<String>,
    /// When the pods are listed again if there are problems.
    relist_at: Instant,
}

impl Publisher {
    /// Returns a publisher that publishes nothing while `stop_publishing` is true.
    pub fn new(
        settings: &Settings,
        source: AccessSource,
        run_dir: PathBuf,
        status: &Arc<Status>,
        stop_publishing: &Arc<AtomicBool>,
    ) -> Publisher {
        Publisher {
            run_dir,
            config: plugin_config(settings),
            facts_reader: FactsReader::new(source),
            stop_publishing: Arc::clone(stop_publishing),
            status: Arc::clone(status),
            published: BTreeMap::new(),
            requests: RequestLimit::default(),
            postponed: BTreeMap::new(),
            copy_problem: None,
            lock: None,
            failures: 0,
            watch_problem: None,
            logged: BTreeSet::new(),
            relist_at: Instant::now(),
        }
    }

    /// Applies an update. `Break` requests a new list: the copy was removed, or is incomplete.
    pub fn apply(&mut self, update: Update<'_, NodePod>) -> ControlFlow<()> {
        if self.stop_publishing.load(Ordering::Relaxed) {
            return ControlFlow::Continue(());
        }
        match update {
            Update::Failed { error, .. } => {
                self.watch_failed(error);
                return ControlFlow::Continue(());
            }
            Update::Listed { pods, dropped } => self.replace_all(pods, dropped),
            Update::Changed(pod) => self.publish(pod),
            Update::Ended(metadata) | Update::Deleted(metadata) => self.remove(&metadata),
            Update::Opened | Update::Alive => {}
        }
        self.publish_postponed();
        self.facts_reader.end_update();
        self.failures = 0;
        self.watch_problem = None;
        let was_removed = self.hold_lock();
        let has_problem = self.report();
        if was_removed || has_problem && Instant::now() >= self.relist_at {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Replaces the copy with these pods. `dropped` is the number of pods that were left out, as a
    /// list has a limit.
    fn replace_all(&mut self, pods: Vec<NodePod>, dropped: usize) {
        self.copy_problem = None;
        self.relist_at = Instant::now() + between(LONG_WAIT, 2 * LONG_WAIT);
        // Publish all pods again: annotations of namespaces may have changed, and the agent does
        // not watch namespaces.
        self.published.clear();
        self.postponed.clear();
        // All pods of a list cost one connection, and one request for each namespace.
        self.requests = RequestLimit::default();
        if let Err(error) = pod_copy::create(&self.run_dir) {
            self.copy_problem = Some(error.to_string());
        }
        for pod in pods {
            self.publish(pod);
        }
        let uids = self.published.keys().cloned().collect();
        if let Some(error) = pod_copy::retain(&self.run_dir, &uids).last() {
            self.copy_problem = Some(error.to_string());
        }
        if dropped > 0 {
            let problem = format!("{dropped} more pods of this node are not published");
            self.copy_problem = Some(problem);
        }
    }

    /// Publishes the pod, unless its file is current. Removes the file if publishing fails. Failed
    /// requests are repeated when the pod changes, or at the next list.
    fn publish(&mut self, NodePod { pod, seen, content }: NodePod) {
        let Some(content) = content else { return };
        if let Some(published) = self.published.get_mut(&pod.uid) {
            published.has_ipv6 = content.has_ipv6;
            if published.facts == content.facts
                && (published.problem.as_ref().is_some_and(|problem| problem.may_pass)
                    || matches!(pod_copy::read(&self.run_dir, &pod), Ok(Some(_))))
            {
                return;
            }
        }
        self.postponed.remove(&pod.uid);
        if self.stop_publishing.load(Ordering::Relaxed) {
            return;
        }
        let Some(own) = content.own_facts() else {
            let known = self.write_too_large(&pod, content);
            self.published.insert(pod.uid, known);
            return;
        };
        if needs_request(&own) && !self.requests.allows(&pod.uid, Instant::now()) {
            self.postpone(NodePod { pod, seen, content: Some(content) });
            return;
        }
        let decision = match own {
            Decision::Skip(reason) => Ok(Decision::Skip(reason)),
            Decision::Redirect(own) => match self.facts_reader.complete(&own, &pod.namespace) {
                Ok(facts) => Ok(Decision::Redirect((own, facts))),
                Err(why) => Err(why),
            },
        };
        if self.stop_publishing.load(Ordering::Relaxed) {
            return;
        }
        let known = match decision {
            Ok(decision) => self.write(&pod, content, decision),
            Err(why) => KnownPod {
                facts: content.facts,
                problem: Some(self.withdraw(&pod, &why, true)),
                bypass_reasons: vec![Reason::Unknown],
                has_ipv6: content.has_ipv6,
            },
        };
        self.published.insert(pod.uid, known);
    }

    /// Withdraws the file of a pod whose facts change too often, until the limit allows a request.
    /// The plugin then asks the API server for the pod.
    fn postpone(&mut self, pod: NodePod) {
        let why = "its annotations or containers change too often";
        let problem = self.withdraw(&pod.pod, why, false);
        let known = self.published.entry(pod.pod.uid.clone()).or_default();
        known.facts = Box::default();
        known.problem = Some(problem);
        if !known.bypass_reasons.contains(&Reason::Unknown) {
            known.bypass_reasons.push(Reason::Unknown);
        }
        self.postponed.insert(pod.pod.uid.clone(), pod);
    }

    /// Publishes the pods that the limit allows again.
    fn publish_postponed(&mut self) {
        let now = Instant::now();
        let uids: Vec<String> = self.postponed.keys().cloned().collect();
        for uid in uids {
            if self.requests.is_due(&uid, now)
                && let Some(pod) = self.postponed.remove(&uid)
            {
                self.publish(pod);
            }
        }
    }

    /// Writes the pod's file with the decision.
    fn write(
        &self,
        pod: &PodRef,
        PodContent { facts, has_ipv6 }: PodContent,
        decision: Decision<(ObjectFacts, PodFacts)>,
    ) -> KnownPod {
        let (bypass_reasons, decision) = match decision {
            Decision::Skip(reason) => (Vec::new(), Decision::Skip(reason)),
            Decision::Redirect((own, facts)) => {
                (self.bypass_reasons(pod, &own, &facts), Decision::Redirect(facts))
            }
        };
        match pod_copy::publish(&self.run_dir, pod.clone(), decision) {
            Ok(()) => KnownPod { facts, problem: None, bypass_reasons, has_ipv6 },
            Err(error) => KnownPod {
                // Without facts, the next update of the pod retries.
                facts: Box::default(),
                problem: Some(self.withdraw(pod, &error.to_string(), may_pass(&error))),
                bypass_reasons,
                has_ipv6,
            },
        }
    }

    /// Writes the file of a pod whose facts are too large, which a new list does not change.
    fn write_too_large(
        &self,
        pod: &PodRef,
        PodContent { facts, has_ipv6 }: PodContent,
    ) -> KnownPod {
        let written = pod_copy::publish_too_large(&self.run_dir, pod.clone());
        let problem = match written {
            Ok(()) => PodProblem {
                text: format!(
                    "pod {pod} is not published: its annotations and containers need more than \
                     {FACTS_LIMIT} bytes, so the plugin asks the API server when the pod starts"
                ),
                may_pass: false,
            },
            Err(error) => self.withdraw(pod, &error.to_string(), may_pass(&error)),
        };
        let bypass_reasons = vec![Reason::Unknown];
        KnownPod { facts, problem: Some(problem), bypass_reasons, has_ipv6 }
    }

    /// Returns why traffic of a redirected pod bypasses the proxy, each reason once.
    fn bypass_reasons(&self, pod: &PodRef, own: &ObjectFacts, facts: &PodFacts) -> Vec<Reason> {
        let verdict = verdict(&self.config, pod, PodView::Complete(facts));
        let paths = bypass_paths(&self.config, &verdict, own, facts, true);
        let mut reasons: Vec<Reason> = paths.iter().map(|path| path.reason).collect();
        reasons.dedup();
        reasons
    }

    /// Removes the file of a pod that cannot be published because of `problem`.
    fn withdraw(&self, pod: &PodRef, problem: &str, may_pass: bool) -> PodProblem {
        let mut text = format!("pod {pod} is not published: {problem}");
        if let Err(error) = pod_copy::remove(&self.run_dir, pod) {
            text = format!("{text}; {error}");
        }
        PodProblem { text, may_pass }
    }

    fn remove(&mut self, metadata: &Metadata) {
        let pod = runtime_pod(metadata);
        self.published.remove(&pod.uid);
        self.postponed.remove(&pod.uid);
        self.requests.forget(&pod.uid);
        if let Err(error) = pod_copy::remove(&self.run_dir, &pod) {
            self.copy_problem = Some(error.to_string());
        }
    }

    /// Takes the lock, unless it is held. Returns whether the file of a lock that was held, and so
    /// the directory, was removed.
    fn hold_lock(&mut self) -> bool {
        if let Some(lock) = &self.lock {
            if lock.is_in_place(&self.run_dir) {
                return false;
            }
            self.lock = None;
            return true;
        }
        match Lock::take(&self.run_dir) {
            Ok(lock) => {
                let count = self.published_pods();
                info!("{count} pods of this node are published for the plugin");
                self.lock = Some(lock);
            }
            Err(error) => self.copy_problem = Some(error.to_string()),
        }
        false
    }

    /// Releases the lock after [`FAILURES`]. Waits longer after [`DENIALS`].
    fn watch_failed(&mut self, error: &pod_watch::Error) {
        self.failures += 1;
        let is_lost = self.failures >= FAILURES;
        if is_lost {
            self.lock = None;
        }
        let is_denied = error.is_denied() && is_lost;
        let what = if is_denied { DENIED } else { "cannot watch the pods of this node" };
        self.watch_problem = Some(format!("{what}: {error}"));
        self.report();
        if is_denied && self.failures >= DENIALS {
            thread::sleep(between(LONG_WAIT, 2 * LONG_WAIT));
        }
    }

    /// Updates `/status` and metrics, and logs new problems. Returns whether there are problems
    /// that a new list may solve.
    fn report(&mut self) -> bool {
        let problems = self.problems();
        for problem in &problems {
            if !self.logged.contains(problem) {
                warn!("{problem}");
            }
        }
        self.status.set_pod_copy(PodCopyStatus {
            published: self.published_pods(),
            current: self.lock.is_some(),
            problem: problems.first().cloned(),
            bypasses: self.bypassing_pods(),
        });
        self.logged = problems.into_iter().collect();
        self.watch_problem.is_some()
            || self.copy_problem.is_some()
            || self.pod_problems().any(|problem| problem.may_pass)
    }

    /// Returns all problems: of the watch, of the copy, then of single pods.
    fn problems(&self) -> Vec<String> {
        let of_pods = self.pod_problems().map(|problem| &problem.text);
        self.watch_problem.iter().chain(&self.copy_problem).chain(of_pods).cloned().collect()
    }

    fn pod_problems(&self) -> impl Iterator<Item = &PodProblem> {
        self.published.values().filter_map(|pod| pod.problem.as_ref())
    }

    fn published_pods(&self) -> usize {
        self.published.values().filter(|pod| pod.problem.is_none()).count()
    }

    /// Counts the pods with a path around the proxy, by the label of the reason.
    fn bypassing_pods(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for reason in Reason::ALL {
            let count = self.published.values().filter(|pod| pod.bypasses(*reason)).count();
            if count > 0 {
                counts.insert(reason.label().to_owned(), count);
            }
        }
        counts
    }
}

/// Whether a later attempt to write the pod's file may succeed. A UID that is no file name stays.
fn may_pass(error: &pod_copy::Error) -> bool {
    !matches!(error, pod_copy::Error::Uid(_))
}

fn needs_request(own: &Decision<ObjectFacts>) -> bool {
    match own {
        Decision::Redirect(own) => own.needs_objects(),
        Decision::Skip(_) => false,
    }
}

/// Reads the plugin entry that the agent installs. The default if it is invalid.
fn plugin_config(settings: &Settings) -> Config {
    let Ok(entry) = settings.plugin_entry() else { return Config::default() };
    match serde_json::from_str::<Object>(entry.text()) {
        Ok(entry) => Config::read_leniently(&entry),
        Err(_) => Config::default(),
    }
}

#[cfg(test)]
mod tests;
