//! Fetches the facts about a pod from the API server. One time budget covers all retries.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::backoff::{Backoff, Limits};
use crate::cni::Error;
use crate::cni::args::PodRef;
use crate::deadline::{self, Deadline, NoResult};
use crate::failure::Failure;
use crate::kube::claims::Claims;
use crate::kube::kubeconfig;
use crate::kube::kubeconfig::ApiAccess;
use crate::kube::object_reader::{API_SERVICE, namespace_path};
use crate::kube::retry::Retry;
use crate::kube::types::{Namespace, Pod, Service};
use crate::kube::{self, Client, Deadlines, LiteralAddress};
use crate::pod::Decision;
use crate::pod::annotation::Annotations;
use crate::pod::facts::{AnotherPod, ClusterLookup, PodFacts, check_identity, facts};
use crate::pod::skip::{PodFilter, SkipReason};
use crate::quote::quote;

/// Pause after the first failed request, and longest pause between two requests.
const PAUSES: Limits = [Duration::from_millis(100), Duration::from_secs(2)];

/// State of the requests for one pod, readable also if their thread does not end in time.
#[derive(Default)]
pub struct Progress {
    pub requests: AtomicU32,
    /// How many of them repeated a failed request.
    pub retries: AtomicU32,
    /// Error of the last request if it is retried.
    retried: Mutex<Option<Error>>,
}

impl Progress {
    fn set_retried(&self, error: Option<Error>) {
        if let Ok(mut retried) = self.retried.lock() {
            *retried = error;
        }
    }

    fn take_retried(&self) -> Option<Error> {
        self.retried.lock().ok()?.take()
    }
}

/// Runs `work` on its own thread and waits at most `budget` for the result.
///
/// The client's deadlines bound single phases of a request, so a response that arrives
/// in small pieces could take longer than the budget. After a timeout the thread runs on
/// until the process exits.
/// Fails with the error of `work`, and on a timeout with the error of the last request, or with
/// [`Failure::ApiUnreachable`] if no request has failed.
pub fn run_within<T: Send + 'static>(
    budget: Duration,
    pod: &PodRef,
    progress: &Progress,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match deadline::run_within("api", budget, work) {
        Ok(result) => result,
        Err(NoResult::TimedOut(_)) => Err(progress.take_retried().unwrap_or_else(|| {
            Error::new(
                Failure::ApiUnreachable,
                format!(
                    "cannot read pod {pod} or its namespace: the API server did not respond within {budget:?}"
                ),
            )
        })),
        Err(why) => Err(Error::new(
            Failure::Internal,
            format!("the thread that sends API requests {why}"),
        )),
    }
}

/// Fetches the facts about `pod` within `budget`, with the API server and the credential in
/// `kubeconfig`.
///
/// Sends one request for the pod, one for its namespace if the namespace's annotations may apply,
/// and one for the API server's Service if the pod belongs to the control plane. `progress` counts
/// them. Fails with [`Failure::PodReplaced`] if another pod has taken the pod's name.
///
/// Sends none for a pod of the agent, whose namespace the token names: upstream's manifests do not set
/// `agent-namespace` in the plugin entry, and the token may be rejected until that pod has started.
pub fn fetch_facts(
    pod: &PodRef,
    filter: &PodFilter,
    kubeconfig: &Path,
    budget: Duration,
    progress: Arc<Progress>,
) -> Result<Decision<PodFacts>, Error> {
    let mut api = Api::open(kubeconfig, budget, pod, progress)?;
    let claims = api.access.token.as_deref().and_then(Claims::read).unwrap_or_default();
    if claims.account().is_some_and(|(namespace, _)| filter.is_agent_pod(pod, namespace)) {
        return Ok(Decision::Skip(SkipReason::AgentPod));
    }
    let PodRef { namespace, name, .. } = pod;
    let found: Pod =
        api.get(&format!("pod {pod}"), &format!("/api/v1/namespaces/{namespace}/pods/{name}"))?;
    check_identity(&found, pod).map_err(|problem| another_pod(pod, &problem))?;
    facts(found, pod, &mut api)
}

/// Requests for one pod to the API server that the kubeconfig names, until `deadline`.
struct Api<'a> {
    kubeconfig: &'a Path,
    budget: Duration,
    pod: &'a PodRef,
    deadline: Deadline,
    access: ApiAccess,
    client: Client,
    progress: Arc<Progress>,
}

impl<'a> Api<'a> {
    /// Reads the kubeconfig and prepares a client; sends nothing.
    fn open(
        kubeconfig: &'a Path,
        budget: Duration,
        pod: &'a PodRef,
        progress: Arc<Progress>,
    ) -> Result<Self, Error> {
        let access = read_access(kubeconfig)?;
        Ok(Api {
            kubeconfig,
            budget,
            pod,
            deadline: Deadline::after(budget),
            client: new_client(&access, budget)?,
            access,
            progress,
        })
    }

    /// GETs `path`. Retries after a temporary error while the budget lasts. An error names the
    /// `object` and its pod.
    fn get<T: DeserializeOwned>(&mut self, object: &str, path: &str) -> Result<T, Error> {
        let [_, longest_pause] = PAUSES;
        let mut backoff = Backoff::new(PAUSES);
        loop {
            self.progress.requests.fetch_add(1, Ordering::Relaxed);
            let error = match self.client.get(path) {
                Ok(object) => {
                    self.progress.set_retried(None);
                    return Ok(object);
                }
                Err(error) => error,
            };
            let pause = backoff.next_delay();
            let wait = match error.retry() {
                Retry::NewCredential if self.reload_kubeconfig()? => Duration::ZERO,
                Retry::Never | Retry::NewCredential => return Err(self.final_error(object, &error)),
                Retry::Soon => pause,
                Retry::After(wait) if wait < self.deadline.remaining() => wait.max(pause),
                // The server asks for more time than is remaining, so try earlier.
                Retry::After(_) => longest_pause,
            };
            if wait >= self.deadline.remaining() {
                return Err(self.final_error(object, &error));
            }
            self.progress.set_retried(Some(self.final_error(object, &error)));
            tracing::info!("linkerd-cni: retrying in {wait:?}: {error}");
            thread::sleep(wait);
            self.progress.retries.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads the kubeconfig again, as the agent may have renewed the token. Returns whether the
    /// kubeconfig has changed.
    fn reload_kubeconfig(&mut self) -> Result<bool, Error> {
        let access = read_access(self.kubeconfig)?;
        if access == self.access {
            return Ok(false);
        }
        self.client = new_client(&access, self.budget)?;
        self.access = access;
        Ok(true)
    }

    fn final_error(&self, object: &str, error: &kube::Error) -> Error {
        let failure = match error.code() {
            Some(401) => Failure::TokenRejected,
            Some(403) => Failure::RequestDenied,
            Some(404) => Failure::PodNotFound,
            Some(_) => Failure::ApiError,
            None if error.is_unreadable() => Failure::UnexpectedResponse,
            None if error.is_unsendable() => Failure::Kubeconfig,
            None if error.is_certificate_error() => Failure::CertificateRejected,
            None => Failure::ApiUnreachable,
        };
        let requests = self.progress.requests.load(Ordering::Relaxed);
        let problem = format!("cannot read {object}: {error} (API requests sent: {requests})");
        Error::new(failure, problem)
    }
}

impl ClusterLookup for Api<'_> {
    fn namespace(&mut self, name: &str) -> Result<Annotations, Error> {
        let object = format!("the namespace of pod {}", self.pod);
        let found: Namespace = self.get(&object, &namespace_path(name))?;
        if !found.metadata.name.is_empty() && found.metadata.name != name {
            let other = quote(&found.metadata.name);
            return Err(unexpected(&object, &format!("the object is namespace {other}")));
        }
        Ok(found.metadata.annotations)
    }

    fn api_service(&mut self) -> Result<Service, Error> {
        self.get(&format!("Service default/kubernetes for pod {}", self.pod), API_SERVICE)
    }
}

fn another_pod(pod: &PodRef, problem: &AnotherPod) -> Error {
    match problem {
        AnotherPod::Name { .. } => unexpected(&format!("pod {pod}"), &problem.to_string()),
        AnotherPod::Uid { .. } => {
            Error::new(Failure::PodReplaced, format!("cannot read pod {pod}: {problem}"))
        }
    }
}

/// Error for a response that is not the requested `object`.
fn unexpected(object: &str, problem: &str) -> Error {
    Error::new(Failure::UnexpectedResponse, format!("cannot read {object}: {problem}"))
}

fn read_access(path: &Path) -> Result<ApiAccess, Error> {
    if path.as_os_str().is_empty() {
        return Err(kubeconfig_error(
            "plugin entry of linkerd-cni: \"kubernetes\": \"kubeconfig\" is not set",
        ));
    }
    kubeconfig::read(path).map_err(|error| kubeconfig_error(&error.to_string()))
}

/// Prepares a client. Its deadlines leave time for a second request if the server does not
/// respond to the first.
fn new_client(access: &ApiAccess, budget: Duration) -> Result<Client, Error> {
    let deadlines = Deadlines { connect: budget / 3, response: budget / 2, body: budget / 2 };
    Client::new::<LiteralAddress>(access, "linkerd-cni", deadlines)
        .map_err(|error| kubeconfig_error(&error.to_string()))
}

fn kubeconfig_error(problem: &str) -> Error {
    Error::new(Failure::Kubeconfig, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a busy node the last retry of a failed request outlasts the budget.
    #[test]
    fn a_timeout_during_a_retry_reports_the_failure_that_is_retried() {
        let run = |failure: Option<Error>| {
            let progress = Arc::new(Progress::default());
            let own = Arc::clone(&progress);
            let hang = move || {
                own.set_retried(failure);
                loop {
                    thread::park();
                }
            };
            let text = || "x".to_owned();
            let pod = PodRef { namespace: text(), name: text(), uid: text() };
            run_within::<()>(Duration::from_millis(200), &pod, &progress, hang).unwrap_err()
        };
        let failure = Error::new(Failure::ApiError, "HTTP 500");
        assert_eq!(run(Some(failure.clone())), failure);
        assert_eq!(run(None).failure, Failure::ApiUnreachable);
    }
}
