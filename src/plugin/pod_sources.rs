//! Finds the redirect of a request's pod. The first source that knows the pod decides:
//!
//! 1. the node's copy of its pods, for which ADD waits while a live agent keeps it;
//! 2. the API server. For a pod without an annotation of a proxy, only ADD sends a request, while a
//!    live agent keeps the copy: the pod may have started before the agent saw it. In all other cases
//!    such a pod must not depend on the API server;
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

use std::time::Duration;

use super::api;
use crate::cni::args::{self, PodRef};
use crate::cni::{Command, Error, Request};
use crate::config::{Config, ResolvedRedirect};
use crate::failure::Failure;
use crate::pod::Decision;
use crate::pod::annotation::{Annotations, is_injected};
use crate::pod::facts::PodFacts;
use crate::pod::skip::{self, SkipReason, skipped_by_annotations};
use crate::pod_copy::{self, NodeCopy};
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
    pub api_error: Option<Error>,
}

pub struct KnownPod {
    pub pod: PodRef,
    pub annotations: Option<Annotations>,
    pub copy: NodeCopy,
}

/// Returns the request's pod, unless its name skips it.
pub fn named(
    request: &Request,
    config: &Config,
    record: &mut Record,
) -> Result<Decision<PodRef>, Error> {
    let Some(pod) = args::parse_pod(&request.args)? else {
        return Ok(Decision::Skip(SkipReason::NoPod));
    };
    record.namespace.clone_from(&pod.namespace);
    record.pod.clone_from(&pod.name);
    record.pod_uid.clone_from(&pod.uid);
    Ok(config.filter.skip_reason(&pod).map_or(Decision::Redirect(pod), Decision::Skip))
}

impl KnownPod {
    pub fn read(pod: PodRef, request: &Request) -> KnownPod {
        // The agent has long seen a pod that runs.
        let longest = if request.command == Command::Add { COPY_WAIT } else { Duration::ZERO };
        let copy = pod_copy::wait(&pod_copy::run_dir(), &pod, longest);
        KnownPod { pod, annotations: skip::runtime_annotations(&request.config), copy }
    }

    pub fn find(
        self,
        config: &Config,
        record: &mut Record,
    ) -> Result<Decision<PodRedirect>, Error> {
        let budget = self.api_budget(config, record.command);
        let answer = budget.map(|budget| api::fetch_facts(&self.pod, config, budget, record));
        self.decide(config, record, answer)
    }

    /// Returns the longest time for API requests. `None` if the pod is decided without them.
    pub fn api_budget(&self, config: &Config, command: Command) -> Option<Duration> {
        let is_add = command == Command::Add;
        let is_skipped = self.skip_reason().is_some();
        let may_be_late = is_add && matches!(self.copy, NodeCopy::Lacks);
        if matches!(self.copy, NodeCopy::Decides(_)) || is_skipped && !may_be_late {
            return None;
        }
        let is_short = is_skipped || !is_add || self.annotations.as_ref().is_some_and(is_injected);
        Some(if is_short { config.api_budget.min(SHORT_BUDGET) } else { config.api_budget })
    }

    /// Decides on the pod. `answer` are the facts from the API server, if it was asked. CHECK gets no
    /// redirect from the annotations: they do not prove which rules a running pod needs.
    pub fn decide(
        self,
        config: &Config,
        record: &mut Record,
        answer: Option<Result<Decision<PodFacts>, Error>>,
    ) -> Result<Decision<PodRedirect>, Error> {
        let skip_reason = self.skip_reason();
        let mut api_error = None;
        let (source, decision) = match (self.copy, answer, skip_reason) {
            (NodeCopy::Decides(decision), ..) => (Source::Copy, *decision),
            (_, Some(Ok(decision)), _) => (Source::Request, decision),
            (_, answer, Some(reason)) => {
                if let Some(Err(error)) = answer {
                    tracing::debug!("linkerd-cni: the annotations decide: {error}");
                }
                (Source::Annotations, Decision::Skip(reason))
            }
            (_, Some(Err(error)), None) => {
                let can_decide = record.command == Command::Add && error.failure.is_outage();
                let Some(marked) = self.annotations.filter(|it| can_decide && is_injected(it))
                else {
                    return Err(error);
                };
                api_error = Some(error);
                let facts = PodFacts::from_annotations(&self.pod.uid, marked);
                (Source::Annotations, Decision::Redirect(facts))
            }
            (_, None, None) => return Err(Error::new(Failure::Internal, "no source was asked")),
        };
        record.source = Some(source);
        let facts = match decision {
            Decision::Redirect(facts) => facts,
            Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
        };
        record.pod_uid.clone_from(&facts.uid);
        let mut resolved = config.resolve(&facts)?;
        resolved.redirect.is_guessed = api_error.is_some();
        Ok(Decision::Redirect(PodRedirect { resolved, api_error }))
    }

    fn skip_reason(&self) -> Option<SkipReason> {
        self.annotations.as_ref().and_then(skipped_by_annotations)
    }
}
