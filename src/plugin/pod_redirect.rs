//! Finds the redirect of a request's pod: from the pod object, or, if the API server or the
//! credential fails, from the annotations that the runtime passes and the plugin entry.
//!
//! The proxy injector sets `linkerd.io/created-by` on each pod to which it adds a proxy, and copies
//! the namespace's annotations to the pod. A pod with this mark starts redirected without the API
//! server, with upstream's rules: upstream does not read the container `linkerd-proxy` either. Any
//! other pod may be unmeshed, so its start fails.
//!
//! Without the API server these facts stay unknown: UID, ports and address families in the container
//! `linkerd-proxy`, a container `linkerd-init`, the users of the other containers, and the namespace's
//! value of an annotation that is empty on the pod. The rules' marker says so, for the audit. An author
//! can copy the mark to a pod without proxy.

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
use crate::record::Record;

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
}

/// Reads the request's pod, unless its name skips it.
pub fn known(
    request: &Request,
    config: &Config,
    record: &mut Record,
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
            Decision::Redirect(KnownPod { pod, annotations })
        }
    })
}

impl KnownPod {
    /// Decides on the pod. `fetch` gets the facts about the pod from the API server: pod, plugin entry,
    /// time budget and record to the facts. CHECK gets the redirect only from the pod object: the
    /// annotations alone do not prove which rules a running pod needs.
    pub fn find(
        self,
        config: &Config,
        record: &mut Record,
        fetch: impl FnOnce(&PodRef, &Config, Duration, &mut Record) -> Result<Decision<PodFacts>, Error>,
    ) -> Result<Decision<PodRedirect>, Error> {
        let KnownPod { pod, annotations } = self;
        if let Some(reason) = annotations.as_ref().and_then(skipped_by_annotations) {
            return Ok(Decision::Skip(reason));
        }
        let is_add = record.command == Command::Add;
        let marked = annotations.filter(|annotations| is_add && is_injected(annotations));
        let is_short = marked.is_some() || !is_add;
        let budget = if is_short { config.api_budget.min(SHORT_BUDGET) } else { config.api_budget };
        match (fetch(&pod, config, budget, record), marked) {
            (Ok(Decision::Redirect(facts)), _) => {
                record.pod_uid.clone_from(&facts.uid);
                let resolved = config.resolve(&facts)?;
                Ok(Decision::Redirect(PodRedirect { resolved, api_error: None }))
            }
            (Ok(Decision::Skip(reason)), _) => Ok(Decision::Skip(reason)),
            (Err(error), Some(annotations)) if error.failure.is_outage() => {
                let mut resolved = by_annotations(&pod, config, annotations)?;
                resolved.redirect.is_guessed = true;
                Ok(Decision::Redirect(PodRedirect { resolved, api_error: Some(error) }))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Returns the redirect according to annotations and plugin entry. `None` if the runtime passes no
    /// annotations, or if one is invalid.
    pub fn by_annotations(&self, config: &Config) -> Option<ResolvedRedirect> {
        by_annotations(&self.pod, config, self.annotations.clone()?).ok()
    }
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
