//! Finds the facts about a request's pod. The first source that knows the pod decides:
//!
//! 1. The node's copy of its pods. While a live agent maintains the copy, ADD waits for the agent
//!    to publish the pod. The copy may say only that the pod is meshed; then the API server is
//!    asked.
//! 2. The API server. No request is sent for a pod without an annotation of a proxy, because such a
//!    pod must not depend on the API server. There is one exception: during an ADD, a live agent
//!    maintains a copy, but the copy lacks the pod. The pod may have started before the agent saw
//!    it.
//! 3. The annotations that the runtime passes, and the plugin entry.
//!
//! If the API server or the credential fails, the annotations decide what happens to the pod:
//!
//! - A pod is redirected with upstream's rules if `linkerd.io/created-by` names the proxy injector.
//!   The injector sets this annotation on each pod to which it adds a proxy, and copies the
//!   namespace's annotations to the pod. Upstream's plugin does not read the container
//!   `linkerd-proxy` either.
//!   With `strict-proxy-user`, such a pod fails to start instead: annotations do not prove that no
//!   container runs as the proxy's user.
//! - A pod without an annotation of a proxy is skipped.
//! - Any other pod fails to start, because it may be meshed.
//!
//! Rules from the annotations alone are a guess, which their marker records for the audit. The
//! annotations do not tell:
//!
//! - the UID, ports and address families of the container `linkerd-proxy`;
//! - whether the pod has a container `linkerd-init`;
//! - the users of the other containers;
//! - the namespace's value of an annotation that is empty on the pod;
//! - whether the pod has a proxy at all: an author can copy the annotations from an injected pod.

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

/// What is known about the request's pod without an API request.
pub struct RequestedPod<'a> {
    pub pod: &'a PodRef,
    /// The annotations from the runtime. `None`: the runtime passes no annotations.
    pub annotations: Option<Annotations>,
    pub copy: NodeCopy,
}

/// The facts about a pod, and how they were found.
pub struct PodSearch {
    pub facts: Result<Decision<PodFacts>, Error>,
    /// The source that decided. `None`: no source decided.
    pub source: Option<Source>,
    /// The API server's error, if the pod is redirected by its annotations instead.
    pub api_error: Option<Error>,
    /// Number of API requests.
    pub requests: u32,
    /// How many of `requests` repeated a failed request.
    pub retries: u32,
}

impl<'a> RequestedPod<'a> {
    pub fn read(pod: &'a PodRef, request: &Request) -> Self {
        // CHECK does not wait, because the agent published the running pod long ago.
        let is_add = request.command == Command::Add;
        let longest_wait = if is_add { pod_copy::PUBLISH_WAIT } else { Duration::ZERO };
        let copy = pod_copy::read_or_wait(&pod_copy::run_dir(), pod, longest_wait);
        RequestedPod { pod, annotations: skip::runtime_annotations(&request.config), copy }
    }

    /// Returns the facts about the pod. Sends API requests only if they are needed.
    pub fn search(self, config: &Config, command: Command) -> PodSearch {
        let fetched = match self.api_budget(config, command) {
            Some(budget) => Some(fetch_pod::fetch_facts(self.pod, config, budget)),
            None => None,
        };
        self.decide(config, command, fetched)
    }

    /// Returns the time limit for API requests. `None`: the pod is decided without them.
    pub fn api_budget(&self, config: &Config, command: Command) -> Option<Duration> {
        if matches!(self.copy, NodeCopy::Decides(_)) {
            return None;
        }
        let is_add = command == Command::Add;
        let is_skipped = self.skip_reason().is_some();
        // The pod may have started before the agent saw it, so the annotations alone do not decide.
        let may_be_unpublished = is_add && matches!(self.copy, NodeCopy::Lacks);
        if is_skipped && !may_be_unpublished {
            return None;
        }
        let can_end_without_api = is_skipped || !is_add || self.can_start_by_annotations(config);
        if can_end_without_api {
            Some(config.api_budget.min(api_budget::SHORT))
        } else {
            Some(config.api_budget)
        }
    }

    /// Decides by the first source that knows the pod: the agent's copy, the API server, or the
    /// annotations from the runtime. `fetched` is the API server's response, or `None` if the
    /// plugin sent no request.
    pub fn decide(self, config: &Config, command: Command, fetched: Option<Fetched>) -> PodSearch {
        if let NodeCopy::Decides(decision) = self.copy {
            return PodSearch::decided(Source::Copy, *decision, None);
        }
        let Some(Fetched { facts, requests, retries }) = fetched else {
            return self.decide_by_annotations(config, command, None);
        };
        let mut search = match facts {
            Ok(decision) => PodSearch::decided(Source::Request, decision, None),
            Err(error) => self.decide_by_annotations(config, command, Some(error)),
        };
        search.requests = requests;
        search.retries = retries;
        search
    }

    /// Decides by the annotations from the runtime. `api_error` is the API server's error, or
    /// `None` if the plugin sent no request. For CHECK, the annotations can only skip the pod,
    /// because they do not prove which rules a running pod needs.
    fn decide_by_annotations(
        self,
        config: &Config,
        command: Command,
        api_error: Option<Error>,
    ) -> PodSearch {
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
            && self.can_start_by_annotations(config)
            && let Some(annotations) = self.annotations
        {
            let facts = PodFacts::from_annotations(&self.pod.uid, annotations);
            return PodSearch::decided(Source::Annotations, Decision::Redirect(facts), Some(error));
        }
        PodSearch::failed(error)
    }

    /// Returns true if ADD can redirect the pod by its annotations while the API server is down.
    fn can_start_by_annotations(&self, config: &Config) -> bool {
        !config.strict_proxy_user && self.annotations.as_ref().is_some_and(is_injected)
    }

    /// Returns why the pod needs no redirect according to its annotations. Always `None` if the
    /// node's copy shows that the pod is meshed, because the copy takes precedence.
    fn skip_reason(&self) -> Option<SkipReason> {
        if matches!(self.copy, NodeCopy::Meshed) {
            return None;
        }
        self.annotations.as_ref().and_then(skipped_by_annotations)
    }
}

impl PodSearch {
    /// Adds the source of the facts, the pod's UID and the number of requests to the record.
    pub fn add_to(&self, record: Record) -> Record {
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
