//! Finds the redirect of a request's pod. The first source that knows the pod decides:
//!
//! 1. the node's copy of its pods, for which ADD waits while a live agent keeps it;
//! 2. the API server. A pod without an annotation of a proxy is asked for only by ADD, and only while a
//!    live agent keeps the copy: such a pod may start before the agent has seen it, and must not depend
//!    on the API server otherwise;
//! 3. the annotations that the runtime passes, and the plugin entry.
//!
//! The proxy injector sets `linkerd.io/created-by` on each pod to which it adds a proxy, and copies
//! the namespace's annotations to the pod. A pod with this mark starts redirected if the API server or
//! the credential fails, with upstream's rules: upstream does not read the container `linkerd-proxy`
//! either. A pod without an annotation of a proxy is skipped then. Any other pod may be meshed, so its
//! start fails.
//!
//! Annotations do not tell: UID, ports and address families in the container `linkerd-proxy`, a
//! container `linkerd-init`, the users of the other containers, and the namespace's value of an
//! annotation that is empty on the pod. The rules' marker says so, for the audit. An author can copy
//! the mark to a pod without proxy.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::api;
use crate::cni::args::{self, PodRef};
use crate::cni::{Command, Error, Request};
use crate::config::{Config, ResolvedRedirect};
use crate::pod::Decision;
use crate::pod::annotation::{Annotations, is_injected};
use crate::pod::facts::PodFacts;
use crate::pod::skip::{self, SkipReason, skipped_by_annotations};
use crate::pod_copy;
use crate::record::{Record, Source};

/// Longest wait for the agent to publish the pod. It usually has, before the runtime calls the plugin.
const COPY_WAIT: Duration = Duration::from_millis(100);
/// Longest time for API requests if the annotations can decide, and for CHECK, which then proves
/// nothing: enough for one retry, and short enough that all pods of a node start, or are checked, soon
/// while the API server is down.
const SHORT_BUDGET: Duration = Duration::from_secs(2);

/// A pod's redirect, and the API error if it was computed without the pod object.
pub struct PodRedirect {
    pub resolved: ResolvedRedirect,
    /// Why the pod object was not read.
    pub api_error: Option<Error>,
}

/// What the plugin knows about a pod without the API server.
pub struct KnownPod {
    pod: PodRef,
    /// The annotations, if the runtime passes them.
    annotations: Option<Annotations>,
    copy: NodeCopy,
}

/// What the node's copy of its pods says about a pod.
pub enum NodeCopy {
    Decides(Decision<PodFacts>),
    /// A live agent keeps the copy, and has not published the pod.
    Lacks,
    /// No live agent keeps the copy, and the pod is not in it.
    Unkept,
}

/// Reads the pod from the node's copy. An unusable file counts as missing.
pub fn node_copy(pod: &PodRef, command: Command) -> NodeCopy {
    let run_dir = pod_copy::run_dir();
    let mut found = pod_copy::read(&run_dir, pod);
    let is_kept = !matches!(found, Ok(Some(_))) && pod_copy::is_kept(&run_dir);
    // The agent has long seen a pod that runs.
    if is_kept && command == Command::Add && matches!(found, Ok(None)) {
        found = pod_copy::wait(&run_dir, pod, COPY_WAIT);
    }
    match found {
        Ok(Some(decision)) => return NodeCopy::Decides(decision),
        Ok(None) => {}
        Err(error) => {
            tracing::debug!("linkerd-cni: pod {pod}: the node's copy is unusable: {error}")
        }
    }
    if is_kept { NodeCopy::Lacks } else { NodeCopy::Unkept }
}

/// Reads the request's pod, unless its name skips it. `copy` reads it from the node's copy.
pub fn known(
    request: &Request,
    config: &Config,
    record: &mut Record,
    copy: impl FnOnce(&PodRef, Command) -> NodeCopy,
) -> Result<Decision<KnownPod>, Error> {
    let Some(pod) = args::pod(&request.args)? else {
        return Ok(Decision::Skip(SkipReason::NoPod));
    };
    record.namespace.clone_from(&pod.namespace);
    record.pod.clone_from(&pod.name);
    record.pod_uid.clone_from(&pod.uid);
    Ok(match config.filter.skip_reason(&pod) {
        Some(reason) => Decision::Skip(reason),
        None => {
            let annotations = skip::runtime_annotations(&request.config);
            let copy = copy(&pod, record.command);
            Decision::Redirect(KnownPod { pod, annotations, copy })
        }
    })
}

impl KnownPod {
    /// Decides on the pod. `fetch` gets the facts about the pod from the API server: pod, plugin entry,
    /// time budget and record to the facts. CHECK gets no redirect from the annotations: they do not
    /// prove which rules a running pod needs.
    pub fn find(
        self,
        config: &Config,
        record: &mut Record,
        fetch: impl FnOnce(&PodRef, &Config, Duration, &mut Record) -> Result<Decision<PodFacts>, Error>,
    ) -> Result<Decision<PodRedirect>, Error> {
        let KnownPod { pod, annotations, copy } = self;
        let is_add = record.command == Command::Add;
        let is_awaited = match copy {
            NodeCopy::Decides(decision) => {
                record.source = Some(Source::Copy);
                return resolve(decision, config, record);
            }
            NodeCopy::Lacks => is_add,
            NodeCopy::Unkept => false,
        };
        let skipped = annotations.as_ref().and_then(skipped_by_annotations);
        if let (Some(reason), false) = (skipped, is_awaited) {
            record.source = Some(Source::Annotations);
            return Ok(Decision::Skip(reason));
        }
        let marked = annotations.filter(|annotations| is_add && is_injected(annotations));
        let is_short = skipped.is_some() || marked.is_some() || !is_add;
        let budget = if is_short { config.api_budget.min(SHORT_BUDGET) } else { config.api_budget };
        let error = match fetch(&pod, config, budget, record) {
            Ok(decision) => {
                record.source = Some(Source::Request);
                return resolve(decision, config, record);
            }
            Err(error) => error,
        };
        match (skipped, marked) {
            (Some(reason), _) => {
                tracing::debug!("linkerd-cni: the annotations decide: {error}");
                record.source = Some(Source::Annotations);
                Ok(Decision::Skip(reason))
            }
            (None, Some(annotations)) if error.failure.is_outage() => {
                let mut resolved = by_annotations(&pod, config, annotations)?;
                resolved.redirect.is_guessed = true;
                record.source = Some(Source::Annotations);
                Ok(Decision::Redirect(PodRedirect { resolved, api_error: Some(error) }))
            }
            _ => Err(error),
        }
    }

    /// Returns the redirect according to annotations and plugin entry. `None` if the node's copy decides,
    /// or if the runtime passes no annotations, none of a proxy, or an invalid one.
    pub fn by_annotations(&self, config: &Config) -> Option<ResolvedRedirect> {
        let is_decided = matches!(self.copy, NodeCopy::Decides(_));
        let annotations = self
            .annotations
            .as_ref()
            .filter(|annotations| !is_decided && skipped_by_annotations(annotations).is_none());
        by_annotations(&self.pod, config, annotations?.clone()).ok()
    }
}

/// Returns the redirect for facts about the pod, and records the UID of the pod object.
fn resolve(
    decision: Decision<PodFacts>,
    config: &Config,
    record: &mut Record,
) -> Result<Decision<PodRedirect>, Error> {
    Ok(match decision {
        Decision::Redirect(facts) => {
            record.pod_uid.clone_from(&facts.uid);
            let resolved = config.resolve(&facts)?;
            Decision::Redirect(PodRedirect { resolved, api_error: None })
        }
        Decision::Skip(reason) => Decision::Skip(reason),
    })
}

/// Fetches the facts about the pod on a thread of its own, and counts the requests.
pub fn fetch(
    pod: &PodRef,
    config: &Config,
    budget: Duration,
    record: &mut Record,
) -> Result<Decision<PodFacts>, Error> {
    let progress = Arc::new(api::Progress::default());
    let shared = Arc::clone(&progress);
    let (target, kubeconfig) = (pod.clone(), config.kubeconfig.clone());
    let facts = api::run_within(budget, pod, &progress, move || {
        api::fetch_facts(&target, &kubeconfig, budget, shared)
    });
    record.requests = progress.requests.load(Ordering::Relaxed);
    record.retries = progress.retries.load(Ordering::Relaxed);
    facts
}

fn by_annotations(
    pod: &PodRef,
    config: &Config,
    annotations: Annotations,
) -> Result<ResolvedRedirect, Error> {
    config.resolve(&PodFacts::from_annotations(&pod.uid, annotations))
}
