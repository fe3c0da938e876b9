//! Finds the redirect of a request's pod. The first source that knows the pod decides:
//!
//! 1. the node's copy of its pods, for which ADD waits while a live agent keeps it;
//! 2. the API server. For a pod without an annotation of a proxy, only ADD sends a request, while
//!    a live agent keeps the copy: the pod may have started before the agent saw it. In all other
//!    cases such a pod must not depend on the API server;
//! 3. the annotations that the runtime passes, and the plugin entry.
//!
//! The proxy injector sets `linkerd.io/created-by` on each pod to which it adds a proxy, and
//! copies the namespace's annotations to the pod. A pod with this mark starts redirected if the
//! API server or the credential fails, with upstream's rules: upstream does not read the container
//! `linkerd-proxy` either. A pod without an annotation of a proxy is skipped then. Any other pod
//! may be meshed, so its start fails.
//!
//! Annotations do not tell: UID, ports and address families in the container `linkerd-proxy`, a
//! container `linkerd-init`, the users of the other containers, and the namespace's value of an
//! annotation that is empty on the pod. The rules' marker says so, for the audit. An author can
//! copy the mark to a pod without proxy.

use std::time::Duration;

use super::fetch_pod::{self, Fetched};
use crate::cni::args::PodRef;
use crate::cni::{Command, Error, Request};
use crate::config::{Config, api_budget};
use crate::failure::Failure;
use crate::pod::Decision;
use crate::pod::annotation::{Annotations, is_injected};
use crate::pod::facts::PodFacts;
use crate::pod::skip::{self, SkipReason, skipped_by_annotations};
use crate::pod_copy::{self, NodeCopy};
use crate::record::{Record, Source};

/// The request's pod, as the node knows it without an API request.
pub struct RequestedPod<'a> {
    pub pod: &'a PodRef,
    /// The annotations from the runtime. `None`: the runtime passes no annotations.
    pub annotations: Option<Annotations>,
    pub copy: NodeCopy,
}

/// What the sources say of a pod.
pub struct PodSearch {
    pub facts: Result<Decision<PodFacts>, Error>,
    /// The source that decided. `None`: no source did.
    pub source: Option<Source>,
    /// Why the pod is redirected by its annotations: the API server could not be asked.
    pub api_error: Option<Error>,
    /// Number of API requests, and how many of them repeated a failed one.
    pub requests: u32,
    pub retries: u32,
}

impl<'a> RequestedPod<'a> {
    pub fn read(pod: &'a PodRef, request: &Request) -> Self {
        // CHECK does not wait: the agent published the running pod long ago.
        let is_add = request.command == Command::Add;
        let longest = if is_add { pod_copy::PUBLISH_WAIT } else { Duration::ZERO };
        let copy = pod_copy::wait(&pod_copy::run_dir(), pod, longest);
        RequestedPod { pod, annotations: skip::runtime_annotations(&request.config), copy }
    }

    /// Asks the API server if it is needed, and decides.
    pub fn search(self, config: &Config, command: Command) -> PodSearch {
        let fetched = match self.api_budget(config, command) {
            Some(budget) => Some(fetch_pod::fetch_facts(self.pod, config, budget)),
            None => None,
        };
        self.decide(command, fetched)
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
        if is_short {
            Some(config.api_budget.min(api_budget::SHORT))
        } else {
            Some(config.api_budget)
        }
    }

    /// Decides by the first source that knows the pod: the agent's copy, the API server, or the
    /// annotations from the runtime. `fetched` is the API server's response; `None` if the plugin
    /// sent no request.
    pub fn decide(self, command: Command, fetched: Option<Fetched>) -> PodSearch {
        if let NodeCopy::Decides(decision) = self.copy {
            return PodSearch::decided(Source::Copy, *decision, None);
        }
        let Some(Fetched { facts, requests, retries }) = fetched else {
            return self.decide_by_annotations(command, None);
        };
        let mut search = match facts {
            Ok(decision) => PodSearch::decided(Source::Request, decision, None),
            Err(error) => self.decide_by_annotations(command, Some(error)),
        };
        search.requests = requests;
        search.retries = retries;
        search
    }

    /// Decides by the annotations from the runtime. `api_error`: why the API server did not decide.
    /// CHECK gets no redirect from the annotations: they do not prove which rules a running pod
    /// needs.
    fn decide_by_annotations(self, command: Command, api_error: Option<Error>) -> PodSearch {
        if let Some(reason) = self.skip_reason() {
            if let Some(error) = api_error {
                tracing::debug!("linkerd-cni: the annotations decide: {error}");
            }
            return PodSearch::decided(Source::Annotations, Decision::Skip(reason), None);
        }
        let Some(error) = api_error else {
            return PodSearch::failed(Error::new(Failure::Internal, "no source was asked"));
        };
        if command == Command::Add
            && error.failure.is_outage()
            && let Some(annotations) = self.annotations
            && is_injected(&annotations)
        {
            let facts = PodFacts::from_annotations(&self.pod.uid, annotations);
            return PodSearch::decided(Source::Annotations, Decision::Redirect(facts), Some(error));
        }
        PodSearch::failed(error)
    }

    /// Returns why the annotations say that the pod needs no redirect. They say nothing of a pod
    /// that the copy shows to be meshed.
    fn skip_reason(&self) -> Option<SkipReason> {
        if matches!(self.copy, NodeCopy::TooLarge) {
            return None;
        }
        self.annotations.as_ref().and_then(skipped_by_annotations)
    }
}

impl PodSearch {
    /// Returns the record with the source of the facts, the UID in them, and the requests.
    pub fn recorded(&self, record: Record) -> Record {
        let pod_uid = match &self.facts {
            Ok(Decision::Redirect(facts)) => facts.uid.clone(),
            _ => record.pod_uid,
        };
        let PodSearch { source, requests, retries, .. } = *self;
        Record { pod_uid, source, requests, retries, ..record }
    }

    fn decided(source: Source, facts: Decision<PodFacts>, api_error: Option<Error>) -> PodSearch {
        PodSearch { facts: Ok(facts), source: Some(source), api_error, requests: 0, retries: 0 }
    }

    fn failed(error: Error) -> PodSearch {
        PodSearch { facts: Err(error), source: None, api_error: None, requests: 0, retries: 0 }
    }
}
