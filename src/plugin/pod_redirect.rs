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
use crate::pod::skip::{self, SkipReason};
use crate::record::Record;

/// Longest time for API requests if the annotations can decide, and for CHECK, which then proves
/// nothing: enough for one retry, and short enough that all pods of a node start, or are checked, soon
/// while the API server is down.
const SHORT_BUDGET: Duration = Duration::from_secs(2);

/// A pod's redirect, and the API error if it was computed without the pod object.
pub struct PodRedirect {
    pub resolved: ResolvedRedirect,
    /// Why the pod object was not read. `None` if it was read, or if it was not needed.
    pub api_error: Option<Error>,
}

/// Decides on the request's pod. CHECK gets the redirect only from the pod object: the annotations
/// alone do not prove which rules a running pod needs.
pub fn find(
    request: &Request,
    config: &Config,
    record: &mut Record,
) -> Result<Decision<PodRedirect>, Error> {
    find_with(request, config, record, facts)
}

/// [`find`], with `fetch` in place of the API requests: pod, plugin entry, time budget and record to
/// the facts about the pod.
pub fn find_with(
    request: &Request,
    config: &Config,
    record: &mut Record,
    fetch: impl FnOnce(&PodRef, &Config, Duration, &mut Record) -> Result<Decision<PodFacts>, Error>,
) -> Result<Decision<PodRedirect>, Error> {
    let (pod, annotations) = match not_skipped(request, config, record)? {
        Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
        Decision::Redirect(found) => found,
    };
    let is_add = record.command == Command::Add;
    let can_decide = is_add && annotations.as_ref().is_some_and(is_injected);
    if can_decide && config.trusts_injector() {
        return without_api(&pod, config, annotations, None).map(Decision::Redirect);
    }
    let is_short = can_decide || !is_add;
    let budget = if is_short { config.api_budget.min(SHORT_BUDGET) } else { config.api_budget };
    match fetch(&pod, config, budget, record) {
        Ok(Decision::Redirect(facts)) => {
            record.pod_uid.clone_from(&facts.uid);
            Ok(Decision::Redirect(PodRedirect {
                resolved: config.resolve(&facts)?,
                api_error: None,
            }))
        }
        Ok(Decision::Skip(reason)) => Ok(Decision::Skip(reason)),
        Err(error) if can_decide && error.failure.is_outage() => {
            without_api(&pod, config, annotations, Some(error)).map(Decision::Redirect)
        }
        Err(error) => Err(error),
    }
}

/// Returns the redirect according to the annotations that the runtime passes and the plugin entry,
/// without the API server. `None` if the runtime passes no annotations, if one is invalid, or if the
/// pod is skipped.
pub fn from_annotations(
    request: &Request,
    config: &Config,
    record: &mut Record,
) -> Result<Option<ResolvedRedirect>, Error> {
    let Decision::Redirect((pod, Some(annotations))) = not_skipped(request, config, record)? else {
        return Ok(None);
    };
    let found = without_api(&pod, config, Some(annotations), None);
    Ok(found.ok().map(|found| found.resolved))
}

/// Returns the request's pod, unless it is skipped, and the annotations that the runtime passes, if any.
fn not_skipped(
    request: &Request,
    config: &Config,
    record: &mut Record,
) -> Result<Decision<(PodRef, Option<Annotations>)>, Error> {
    let Some(pod) = args::pod(&request.args)? else {
        return Ok(Decision::Skip(SkipReason::NoPod));
    };
    record.namespace.clone_from(&pod.namespace);
    record.pod.clone_from(&pod.name);
    record.pod_uid.clone_from(&pod.uid);
    let annotations = skip::runtime_annotations(&request.config);
    Ok(match config.filter.skip_reason(&pod, annotations.as_ref()) {
        Some(reason) => Decision::Skip(reason),
        None => Decision::Redirect((pod, annotations)),
    })
}

/// Fetches the facts about the pod on a thread of its own, and counts the requests.
fn facts(
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

/// Returns the redirect according to annotations and plugin entry alone.
fn without_api(
    pod: &PodRef,
    config: &Config,
    annotations: Option<Annotations>,
    api_error: Option<Error>,
) -> Result<PodRedirect, Error> {
    let facts = PodFacts::from_annotations(&pod.uid, annotations.unwrap_or_default());
    let mut resolved = config.resolve(&facts)?;
    resolved.redirect.is_guessed = api_error.is_some();
    Ok(PodRedirect { resolved, api_error })
}
