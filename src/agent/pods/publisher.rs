//! Keeps the node's copy of its pods equal to what the watch shows: writes and removes the file of
//! each pod. Reports the state of the copy in `/status`, metrics and log.

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
use crate::conflist::chain_mode::ChainMode;
use crate::kube::connection::AccessSource;
use crate::kube::pod_watch::{self, Update};
use crate::kube::types::Metadata;
use crate::pod::Decision;
use crate::pod::facts::{ObjectFacts, PodFacts};
use crate::pod::observed::Observed;
use crate::pod_copy::{self, FACTS_LIMIT, Lock, PublishedPod};
use crate::verdict::bypass_paths::bypass_paths;
use crate::verdict::reason::Reason;
use crate::verdict::{NotCalled, PodView, verdict};

/// Shortest wait until pods are listed again that could not be published, and shortest wait if the
/// permission to watch pods is missing, which only an administrator can grant. The longest wait is
/// twice as long.
const LONG_WAIT: Duration = Duration::from_secs(300);
/// Number of failures in a row after which the agent releases the lock of the copy. A single
/// failure is normal: when the API server restarts, each watch ends, and at first it may respond
/// with a 403.
const FAILURES_TO_RELEASE: u32 = 2;
/// Number of failures in a row after which a 403 counts as a missing permission. Before that, the
/// API server may be starting: of 100 nodes, 23 had a 403 as their second failure.
const FAILURES_TO_WAIT_LONG: u32 = 5;

/// Effect of the missing permission, and what to do.
const DENIED: &str = "the agent may not list and watch pods, so the plugin sends API requests for \
    each meshed pod that starts; grant both in the agent's ClusterRole, or set the value \
    `watchPods` to `false`";

/// A pod that was published, or that could not be published.
#[derive(Default)]
struct KnownPod {
    /// The facts with which the pod was published. An update with equal facts needs no request.
    facts: Box<[u8]>,
    /// Why the pod is not published. `None` if it is.
    problem: Option<PodProblem>,
    /// Why traffic of the pod bypasses the proxy, or may bypass it.
    bypass_reasons: Vec<Reason>,
    /// What the pod's status said when these reasons were found.
    observed: Observed,
}

/// Why a pod is not published.
struct PodProblem {
    /// The problem, as the log shows it.
    text: String,
    /// Whether publishing the pod may succeed after a new list.
    is_temporary: bool,
}

pub struct Publisher {
    run_dir: PathBuf,
    /// The plugin entry, for the reasons why traffic bypasses the proxy.
    config: Config,
    /// Whether the plugin is called only by Multus, for pods that name it in an annotation.
    is_called_by_multus: bool,
    facts_reader: FactsReader,
    stop_publishing: Arc<AtomicBool>,
    /// Returns whether a newer agent runs on the node. If it is of another version, its files stay,
    /// because the plugin is of that version, too.
    newer_agent_runs: Box<dyn Fn() -> bool + Send>,
    status: Arc<Status>,
    /// The published pods and those that could not be published, by UID.
    known_pods: BTreeMap<String, KnownPod>,
    /// Limits the requests for each pod.
    request_limit: RequestLimit,
    /// The newest state of the pods for which the limit allows no request yet, by UID.
    postponed: BTreeMap<String, NodePod>,
    /// Problem with the whole copy since the last list.
    copy_problem: Option<String>,
    /// Lock of the copy, held from the first list until [`FAILURES_TO_RELEASE`].
    lock: Option<Lock>,
    /// Number of failures of the watch in a row.
    failures: u32,
    watch_problem: Option<String>,
    /// The problems of the last report, which are logged.
    logged: BTreeSet<String>,
    /// When the pods are listed again if there are problems.
    relist_at: Instant,
}

impl Publisher {
    /// Returns a publisher that publishes nothing any more once `stop_publishing` is true.
    pub fn new(
        settings: &Settings,
        source: AccessSource,
        run_dir: PathBuf,
        status: &Arc<Status>,
        stop_publishing: &Arc<AtomicBool>,
        newer_agent_runs: impl Fn() -> bool + Send + 'static,
    ) -> Publisher {
        Publisher {
            run_dir,
            config: plugin_config(settings),
            is_called_by_multus: matches!(settings.node.mode, ChainMode::Standalone(_)),
            facts_reader: FactsReader::new(source),
            stop_publishing: Arc::clone(stop_publishing),
            newer_agent_runs: Box::new(newer_agent_runs),
            status: Arc::clone(status),
            known_pods: BTreeMap::new(),
            request_limit: RequestLimit::default(),
            postponed: BTreeMap::new(),
            copy_problem: None,
            lock: None,
            failures: 0,
            watch_problem: None,
            logged: BTreeSet::new(),
            relist_at: Instant::now(),
        }
    }

    /// Applies an update of the watch to the copy. Returns `Break` to request a new list, because
    /// the copy was removed or is incomplete.
    pub fn apply(&mut self, update: Update<'_, NodePod>) -> ControlFlow<()> {
        if self.stop_publishing.load(Ordering::Relaxed) {
            return ControlFlow::Continue(());
        }
        match update {
            Update::Failed { error, .. } => {
                self.record_failed_watch(error);
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
        self.report();
        let is_relist_due = self.list_may_help() && Instant::now() >= self.relist_at;
        if was_removed || is_relist_due {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Replaces the copy with these pods. `dropped` is the number of pods that are not in `pods`,
    /// because the watch limits the number of pods in a list.
    fn replace_all(&mut self, pods: Vec<NodePod>, dropped: usize) {
        self.copy_problem = None;
        self.relist_at = Instant::now() + between(LONG_WAIT, 2 * LONG_WAIT);
        // Every pod is published again, even with equal facts: the annotations of its namespace may
        // have changed, and the agent does not watch namespaces.
        self.known_pods.clear();
        self.postponed.clear();
        // Requests for the pods of a list need no limit: however many pods there are, they cost
        // only one connection, and one request for each namespace.
        self.request_limit = RequestLimit::default();
        if let Err(error) = pod_copy::create(&self.run_dir) {
            self.copy_problem = Some(error.to_string());
        }
        for pod in pods {
            self.publish(pod);
        }
        let uids = self.known_pods.keys().cloned().collect();
        if let Some(error) = pod_copy::retain(&self.run_dir, &uids).last() {
            self.copy_problem = Some(error.to_string());
        }
        if dropped > 0 {
            self.copy_problem = Some(format!("{dropped} more pods of this node are not published"));
        }
    }

    /// Publishes the pod, unless the file of the pod is current. Removes the file if publishing
    /// fails. A failed request is repeated only when the pod changes, or at the next list.
    fn publish(&mut self, NodePod { pod, seen, sandbox, content }: NodePod) {
        let Some(content) = content else { return };
        if self.has_equal_facts(&pod, &content) {
            if let Some(copy) = self.usable_copy(&pod) {
                self.observe(&pod, content, copy);
                return;
            }
            if self.has_failed_temporarily(&pod) {
                return;
            }
        }
        self.postponed.remove(&pod.uid);
        if self.stop_publishing.load(Ordering::Relaxed) {
            return;
        }
        let Some(own) = content.own_facts() else {
            let known = self.write_too_large(&pod, content);
            self.known_pods.insert(pod.uid, known);
            return;
        };
        if needs_request(&own) && !self.request_limit.allows(&pod.uid, Instant::now()) {
            self.postpone(NodePod { pod, seen, sandbox, content: Some(content) });
            return;
        }
        let decision = self.complete(own, &pod.namespace);
        if self.stop_publishing.load(Ordering::Relaxed) {
            return;
        }
        let known = match decision {
            Ok(decision) => self.write(&pod, content, decision),
            Err(why) => self.withdraw_incomplete(&pod, content, &why),
        };
        self.known_pods.insert(pod.uid, known);
    }

    /// Returns whether the pod was published, or could not be published, with the same facts.
    fn has_equal_facts(&self, pod: &PodRef, content: &PodContent) -> bool {
        match self.known_pods.get(&pod.uid) {
            Some(known) => known.facts == content.facts,
            None => false,
        }
    }

    /// Returns whether the pod could not be published, but may be after a new list.
    fn has_failed_temporarily(&self, pod: &PodRef) -> bool {
        let Some(known) = self.known_pods.get(&pod.uid) else { return false };
        match &known.problem {
            Some(problem) => problem.is_temporary,
            None => false,
        }
    }

    /// Reads the file of the pod. Returns `None` if there is no file that the plugin can use. It
    /// cannot use the file of an agent of another version, unless that agent is newer and still
    /// runs: then the plugin is of that version, too.
    fn usable_copy(&self, pod: &PodRef) -> Option<PublishedPod> {
        let Ok(Some(copy)) = pod_copy::read(&self.run_dir, pod) else { return None };
        let is_of_other_version = matches!(copy, PublishedPod::OtherFormat { .. });
        if is_of_other_version && !(self.newer_agent_runs)() {
            return None;
        }
        Some(copy)
    }

    /// Completes the facts in the pod's object with those in other objects.
    fn complete(
        &mut self,
        own: Decision<ObjectFacts>,
        namespace: &str,
    ) -> Result<Decision<(ObjectFacts, PodFacts)>, String> {
        match own {
            Decision::Skip(reason) => Ok(Decision::Skip(reason)),
            Decision::Redirect(own) => {
                let facts = self.facts_reader.complete(&own, namespace)?;
                Ok(Decision::Redirect((own, facts)))
            }
        }
    }

    /// Removes the file of a pod whose facts are incomplete, because a request failed.
    fn withdraw_incomplete(&self, pod: &PodRef, content: PodContent, why: &str) -> KnownPod {
        let is_temporary = true;
        KnownPod {
            facts: content.facts,
            problem: Some(self.withdraw(pod, why, is_temporary)),
            bypass_reasons: vec![Reason::Unknown],
            observed: content.observed,
        }
    }

    /// Returns whether the pod's file is that of a newer agent of another version, which writes the
    /// file while it runs.
    fn is_newer_agents(&self, pod: &PodRef) -> bool {
        let copy = pod_copy::read(&self.run_dir, pod);
        matches!(copy, Ok(Some(PublishedPod::OtherFormat { .. }))) && (self.newer_agent_runs)()
    }

    /// Finds the reasons again if the status of a published pod has changed.
    fn observe(&mut self, pod: &PodRef, content: PodContent, copy: PublishedPod) {
        let Some(known) = self.known_pods.get(&pod.uid) else { return };
        if known.observed == content.observed {
            return;
        }
        let PublishedPod::Decision(decision) = copy else { return };
        let Decision::Redirect(facts) = *decision else { return };
        let Some(Decision::Redirect(own)) = content.own_facts() else { return };
        let bypass_reasons = self.bypass_reasons(pod, &content, &own, &facts);
        if let Some(known) = self.known_pods.get_mut(&pod.uid) {
            known.bypass_reasons = bypass_reasons;
            known.observed = content.observed;
        }
    }

    /// Removes the file of a pod whose facts change too often, until the limit allows a request.
    /// Meanwhile the plugin asks the API server for the pod.
    fn postpone(&mut self, pod: NodePod) {
        let why = "its annotations or containers change too often";
        // A new list would not help: the pod is published as soon as the limit allows a request.
        let is_temporary = false;
        let problem = self.withdraw(&pod.pod, why, is_temporary);
        let known = self.known_pods.entry(pod.pod.uid.clone()).or_default();
        known.facts = Box::default();
        known.problem = Some(problem);
        if !known.bypass_reasons.contains(&Reason::Unknown) {
            known.bypass_reasons.push(Reason::Unknown);
        }
        self.postponed.insert(pod.pod.uid.clone(), pod);
    }

    /// Publishes the postponed pods for which the limit now allows a request.
    fn publish_postponed(&mut self) {
        let now = Instant::now();
        let uids: Vec<String> = self.postponed.keys().cloned().collect();
        for uid in uids {
            if self.request_limit.is_due(&uid, now)
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
        content: PodContent,
        decision: Decision<(ObjectFacts, PodFacts)>,
    ) -> KnownPod {
        let (bypass_reasons, decision) = match decision {
            Decision::Skip(reason) => (Vec::new(), Decision::Skip(reason)),
            Decision::Redirect((own, facts)) => {
                let reasons = self.bypass_reasons(pod, &content, &own, &facts);
                (reasons, Decision::Redirect(facts))
            }
        };
        let PodContent { facts, observed, .. } = content;
        let written = if self.is_newer_agents(pod) {
            Ok(())
        } else {
            pod_copy::publish(&self.run_dir, pod.clone(), decision)
        };
        match written {
            Ok(()) => KnownPod { facts, problem: None, bypass_reasons, observed },
            Err(error) => KnownPod {
                // The facts are not remembered, so that the next update of the pod publishes it
                // again even if its facts are the same.
                facts: Box::default(),
                problem: Some(self.withdraw(pod, &error.to_string(), is_temporary(&error))),
                bypass_reasons,
                observed,
            },
        }
    }

    /// Writes the file of a pod whose facts are too large. The file says only that the pod is
    /// meshed, and that its facts are too large.
    fn write_too_large(&self, pod: &PodRef, content: PodContent) -> KnownPod {
        let written = if self.is_newer_agents(pod) {
            Ok(())
        } else {
            pod_copy::publish_too_large(&self.run_dir, pod.clone())
        };
        let problem = match written {
            Ok(()) => PodProblem {
                text: format!(
                    "pod {pod} is not published: its annotations and containers need more than \
                     {FACTS_LIMIT} bytes, so the plugin asks the API server when the pod starts"
                ),
                // A new list would not help, because the facts are as large there.
                is_temporary: false,
            },
            Err(error) => self.withdraw(pod, &error.to_string(), is_temporary(&error)),
        };
        let bypass_reasons = vec![Reason::Unknown];
        let PodContent { facts, observed, .. } = content;
        KnownPod { facts, problem: Some(problem), bypass_reasons, observed }
    }

    /// Returns why traffic of a meshed pod bypasses the proxy, or may bypass it, each reason once.
    fn bypass_reasons(
        &self,
        pod: &PodRef,
        content: &PodContent,
        own: &ObjectFacts,
        facts: &PodFacts,
    ) -> Vec<Reason> {
        let view = if self.is_called_by_multus && !content.is_attached {
            PodView::NotCalled(NotCalled::NotAttached)
        } else {
            PodView::Complete(facts)
        };
        let pod_verdict = verdict(&self.config, pod, view);
        let paths = bypass_paths(&self.config, &pod_verdict, own, facts, &content.observed);
        let mut reasons: Vec<Reason> = paths.iter().map(|path| path.reason).collect();
        reasons.dedup();
        reasons
    }

    /// Removes the file of a pod that cannot be published, for the reason `why`.
    fn withdraw(&self, pod: &PodRef, why: &str, is_temporary: bool) -> PodProblem {
        let mut text = format!("pod {pod} is not published: {why}");
        if !self.is_newer_agents(pod)
            && let Err(error) = pod_copy::remove(&self.run_dir, pod)
        {
            text = format!("{text}; {error}");
        }
        PodProblem { text, is_temporary }
    }

    /// Removes a pod that was deleted or has ended.
    fn remove(&mut self, metadata: &Metadata) {
        let pod = runtime_pod(metadata);
        self.known_pods.remove(&pod.uid);
        self.postponed.remove(&pod.uid);
        self.request_limit.forget(&pod.uid);
        if let Err(error) = pod_copy::remove(&self.run_dir, &pod) {
            self.copy_problem = Some(error.to_string());
        }
    }

    /// Takes the lock, unless this agent holds it. Returns whether the copy was removed: whether
    /// the lock was held and the file of the lock is missing.
    fn hold_lock(&mut self) -> bool {
        let Some(lock) = &self.lock else {
            self.take_lock();
            return false;
        };
        if lock.is_in_place(&self.run_dir) {
            return false;
        }
        self.lock = None;
        true
    }

    fn take_lock(&mut self) {
        match Lock::take(&self.run_dir) {
            Ok(lock) => {
                let count = self.count_published_pods();
                info!("{count} pods of this node are published for the plugin");
                self.lock = Some(lock);
            }
            Err(error) => self.copy_problem = Some(error.to_string()),
        }
    }

    /// Counts a failure of the watch. Releases the lock after [`FAILURES_TO_RELEASE`]. Waits for
    /// long after [`FAILURES_TO_WAIT_LONG`] if the permission is missing.
    fn record_failed_watch(&mut self, error: &pod_watch::Error) {
        self.failures += 1;
        let is_lost = self.failures >= FAILURES_TO_RELEASE;
        if is_lost {
            self.lock = None;
        }
        let is_denied = error.is_denied() && is_lost;
        let problem = if is_denied { DENIED } else { "cannot watch the pods of this node" };
        self.watch_problem = Some(format!("{problem}: {error}"));
        self.report();
        if is_denied && self.failures >= FAILURES_TO_WAIT_LONG {
            thread::sleep(between(LONG_WAIT, 2 * LONG_WAIT));
        }
    }

    /// Updates `/status` and metrics, and logs new problems.
    fn report(&mut self) {
        let problems = self.problems();
        for problem in &problems {
            if !self.logged.contains(problem) {
                warn!("{problem}");
            }
        }
        self.status.set_pod_copy(PodCopyStatus {
            published: self.count_published_pods(),
            current: self.lock.is_some(),
            problem: problems.first().cloned(),
            bypasses: Some(self.count_bypassing_pods()),
        });
        self.logged = problems.into_iter().collect();
    }

    /// Returns whether there are problems that a new list may solve.
    fn list_may_help(&self) -> bool {
        self.watch_problem.is_some()
            || self.copy_problem.is_some()
            || self.pod_problems().any(|problem| problem.is_temporary)
    }

    /// Returns all problems: that of the watch, that of the copy, then those of single pods.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        problems.extend(self.watch_problem.clone());
        problems.extend(self.copy_problem.clone());
        problems.extend(self.pod_problems().map(|problem| problem.text.clone()));
        problems
    }

    fn pod_problems(&self) -> impl Iterator<Item = &PodProblem> {
        self.known_pods.values().filter_map(|pod| pod.problem.as_ref())
    }

    fn count_published_pods(&self) -> usize {
        self.known_pods.values().filter(|pod| pod.problem.is_none()).count()
    }

    /// Counts the pods with a path around the proxy, by the label of the reason.
    fn count_bypassing_pods(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for reason in Reason::ALL {
            let count =
                self.known_pods.values().filter(|pod| pod.bypass_reasons.contains(reason)).count();
            if count > 0 {
                counts.insert(reason.label().to_owned(), count);
            }
        }
        counts
    }
}

/// Returns whether a later attempt to write the pod's file may succeed. It cannot succeed if the
/// UID of the pod is not a valid file name.
fn is_temporary(error: &pod_copy::Error) -> bool {
    !matches!(error, pod_copy::Error::Uid(_))
}

fn needs_request(own: &Decision<ObjectFacts>) -> bool {
    match own {
        Decision::Redirect(own) => own.needs_objects(),
        Decision::Skip(_) => false,
    }
}

/// Reads the plugin entry that the agent installs. Returns the default if the entry is invalid.
fn plugin_config(settings: &Settings) -> Config {
    let Ok(entry) = settings.plugin_entry() else { return Config::default() };
    match serde_json::from_str::<Object>(entry.text()) {
        Ok(entry) => Config::read_leniently(&entry),
        Err(_) => Config::default(),
    }
}

#[cfg(test)]
mod tests;
