//! Fetches the facts about a pod from the API server. One time budget covers all retries.

use std::path::Path;
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::backoff::{Backoff, Limits};
use crate::cluster_lookup::{ClusterLookup, read_facts};
use crate::cni::Error;
use crate::cni::args::PodRef;
use crate::config::Config;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::kube::claims::Claims;
use crate::kube::kubeconfig::{self, ApiAccess};
use crate::kube::object_reader::{API_SERVICE, namespace_path};
use crate::kube::types::{Metadata, Namespace, Pod, STATIC_POD_UID, Service};
use crate::kube::{
    self, Client, Deadlines, FORBIDDEN, LiteralAddress, NOT_FOUND, Retry, UNAUTHORIZED,
};
use crate::pod::Decision;
use crate::pod::annotation::Annotations;
use crate::pod::facts::PodFacts;
use crate::pod::skip::SkipReason;
use crate::quote::quote;

/// Pause after the first failed request, and longest pause between two requests.
const PAUSES: Limits = [Duration::from_millis(100), Duration::from_secs(2)];

/// Facts about a pod from the API server, and the number of requests that were sent.
pub struct Fetched {
    pub facts: Result<Decision<PodFacts>, Error>,
    pub requests: u32,
    /// How many of `requests` repeated a failed request.
    pub retries: u32,
}

/// Sends one request for the pod, one for its namespace if the namespace's annotations may apply,
/// and one for the API server's Service if the pod belongs to the control plane. Fails with
/// [`Failure::PodReplaced`] if another pod has taken the pod's name.
pub fn fetch_facts(pod: &PodRef, config: &Config, budget: Duration) -> Fetched {
    let mut requests = match ApiRequests::open(pod, config, budget) {
        Ok(requests) => requests,
        Err(error) => return Fetched { facts: Err(error), requests: 0, retries: 0 },
    };
    let facts = requests.fetch_facts(config);
    Fetched { facts, requests: requests.sent, retries: requests.retries }
}

/// The requests for one pod.
struct ApiRequests<'a> {
    kubeconfig: &'a Path,
    budget: Duration,
    pod: &'a PodRef,
    deadline: Deadline,
    access: ApiAccess,
    client: Client,
    sent: u32,
    retries: u32,
}

impl<'a> ApiRequests<'a> {
    fn open(pod: &'a PodRef, config: &'a Config, budget: Duration) -> Result<Self, Error> {
        let kubeconfig = &config.kubeconfig;
        if kubeconfig.as_os_str().is_empty() {
            return Err(no_kubeconfig(config));
        }
        let access = read_access(kubeconfig)?;
        let deadline = Deadline::after(budget);
        let client = new_client(&access, budget, deadline)?;
        Ok(ApiRequests { kubeconfig, budget, pod, deadline, access, client, sent: 0, retries: 0 })
    }

    /// Fetches the facts about the pod. Skips the agent's own pod without a request, because the
    /// API server may reject the token until that pod has started. Takes the agent's namespace from
    /// the token, because the plugin entry may lack it: upstream's manifests do not set
    /// `agent-namespace`.
    fn fetch_facts(&mut self, config: &Config) -> Result<Decision<PodFacts>, Error> {
        let pod = self.pod;
        let claims = self.access.token.as_deref().and_then(Claims::read).unwrap_or_default();
        if let Some((namespace, _)) = claims.account()
            && config.filter.is_agent_pod(pod, namespace)
        {
            return Ok(Decision::Skip(SkipReason::AgentPod));
        }
        let PodRef { namespace, name, .. } = pod;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let found: Pod = self.get(&format!("pod {pod}"), &path)?;
        check_identity(&found.metadata, pod)?;
        read_facts(found, pod, self)
    }

    /// Sends a GET request for `path`, and retries it after a temporary error while the budget
    /// lasts. Errors name the object as `object`.
    fn get<T: DeserializeOwned>(&mut self, object: &str, path: &str) -> Result<T, Error> {
        let [_, longest_pause] = PAUSES;
        let mut backoff = Backoff::new(PAUSES);
        let mut previous_error = None;
        loop {
            self.sent += 1;
            let error = match self.client.get(path) {
                Ok(object) => return Ok(object),
                Err(error) => error,
            };
            let final_error = self.final_error(object, &error);
            let pause = backoff.next_delay();
            let wait = match error.retry() {
                Retry::NewCredential if self.reload_kubeconfig()? => Duration::ZERO,
                Retry::Never | Retry::NewCredential => return Err(final_error),
                Retry::Soon => pause,
                Retry::After(wait) if wait < self.deadline.remaining() => wait.max(pause),
                // The server asks for more time than remains, so retry earlier.
                Retry::After(_) => longest_pause,
            };
            if wait >= self.deadline.remaining() {
                // On a busy node, the last retry may time out only because the budget ends. The
                // error of the previous request then tells the cause.
                return match previous_error {
                    Some(previous_error) if error.is_timeout() => Err(previous_error),
                    _ => Err(final_error),
                };
            }
            previous_error = Some(final_error);
            tracing::info!("linkerd-cni: retrying in {wait:?}: {error}");
            thread::sleep(wait);
            self.retries += 1;
        }
    }

    /// Reads the kubeconfig again, because the agent may have renewed the token. Returns true if
    /// the kubeconfig has changed.
    fn reload_kubeconfig(&mut self) -> Result<bool, Error> {
        let access = read_access(self.kubeconfig)?;
        if access == self.access {
            return Ok(false);
        }
        self.client = new_client(&access, self.budget, self.deadline)?;
        self.access = access;
        Ok(true)
    }

    /// Returns the error with which ADD fails if the request is not retried.
    fn final_error(&self, object: &str, error: &kube::Error) -> Error {
        let failure = match error.code() {
            _ if error.is_status(401, UNAUTHORIZED) => Failure::TokenRejected,
            _ if error.is_status(403, FORBIDDEN) => Failure::RequestDenied,
            _ if error.is_status(404, NOT_FOUND) => Failure::PodNotFound,
            // A proxy in front of the API server knows neither the token nor the pod.
            Some(401 | 403 | 404) => Failure::UnexpectedResponse,
            Some(_) => Failure::ApiError,
            None if error.is_unreadable() => Failure::UnexpectedResponse,
            None if error.is_unsendable() => Failure::Kubeconfig,
            None if error.is_certificate_error() => Failure::CertificateRejected,
            None => Failure::ApiUnreachable,
        };
        let requests = self.sent;
        let problem = format!("cannot read {object}: {error} (API requests sent: {requests})");
        Error::new(failure, problem)
    }
}

impl ClusterLookup for ApiRequests<'_> {
    fn namespace(&mut self, name: &str) -> Result<Annotations, Error> {
        let object = format!("the namespace of pod {}", self.pod);
        let found: Namespace = self.get(&object, &namespace_path(name))?;
        if found.metadata.name != name {
            let other = quote(&found.metadata.name);
            return Err(unexpected(&object, &format!("the object is namespace {other}")));
        }
        Ok(found.metadata.annotations)
    }

    fn api_service(&mut self) -> Result<Service, Error> {
        self.get(&format!("Service default/kubernetes for pod {}", self.pod), API_SERVICE)
    }
}

/// Checks that the object `found` is `pod`. Compares the UIDs only if both are known.
fn check_identity(found: &Metadata, pod: &PodRef) -> Result<(), Error> {
    let Metadata { namespace, name, uid, annotations, .. } = found;
    if *namespace != pod.namespace || *name != pod.name {
        let problem = format!("the object is pod {}/{}", quote(namespace), quote(name));
        return Err(unexpected(&format!("pod {pod}"), &problem));
    }
    let is_mirror = annotations.get(STATIC_POD_UID) == Some(&pod.uid);
    if pod.uid.is_empty() || uid.is_empty() || *uid == pod.uid || is_mirror {
        return Ok(());
    }
    // The UIDs differ, so the pod was deleted and created again, for example by a StatefulSet.
    let problem =
        format!("the pod with UID {} was replaced by the pod with UID {}", pod.uid, quote(uid));
    Err(Error::new(Failure::PodReplaced, format!("cannot read pod {pod}: {problem}")))
}

fn unexpected(object: &str, problem: &str) -> Error {
    Error::new(Failure::UnexpectedResponse, format!("cannot read {object}: {problem}"))
}

/// Returns the error for a plugin entry that names no kubeconfig. If the entry is invalid, returns
/// the entry's own error, with which the pod would also fail if the node's copy decided.
fn no_kubeconfig(config: &Config) -> Error {
    if let Some(problem) = &config.problem {
        return problem.clone();
    }
    let problem = "plugin entry of linkerd-cni: \"kubernetes\": \"kubeconfig\" is not set";
    let remedy = "set it to the path of the plugin's kubeconfig; the chart renders the plugin \
                  entry in the ConfigMap linkerd-cni-config";
    Error::new(Failure::Kubeconfig, problem).with_details(remedy)
}

fn read_access(path: &Path) -> Result<ApiAccess, Error> {
    kubeconfig::read(path).map_err(|error| Error::new(Failure::Kubeconfig, error.to_string()))
}

/// Creates a client whose timeouts leave time for a second request if the server does not respond
/// to the first one.
fn new_client(access: &ApiAccess, budget: Duration, deadline: Deadline) -> Result<Client, Error> {
    let deadlines = Deadlines { connect: budget / 3, response: budget / 2, body: budget / 2 };
    Client::new::<LiteralAddress>(access, "linkerd-cni", deadlines)
        .map(|client| client.with_deadline(deadline))
        .map_err(|error| Error::new(Failure::Kubeconfig, error.to_string()))
}
