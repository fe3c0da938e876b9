//! Requests to the API server within one budget of time, all tries together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::cni::args::PodRef;
use crate::cni::error::{Error, code};
use crate::config::pod::{API_SERVICE, NO_API_SERVER, Surroundings, facts, namespace_path};
use crate::config::{Annotations, Config, PodFacts};
use crate::kube::kubeconfig;
use crate::kube::kubeconfig::Access;
use crate::kube::retry::Retry;
use crate::kube::types::{Namespace, Pod, Service};
use crate::kube::{self, Client, Deadlines};

/// Pauses between tries: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Runs `work` on a thread of its own and waits for it at most `budget`: answers that
/// come drop by drop keep within each phase's deadline for longer. The thread ends
/// with the process.
pub fn within<T: Send + 'static>(
    budget: Duration,
    pod: &PodRef,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let started = thread::Builder::new().name("api".into()).spawn(move || {
        // Nobody listens any more only after the budget.
        let _ = sender.send(work());
    });
    if let Err(error) = started {
        return Err(Error::new(
            code::INTERNAL,
            format!("cannot start a thread: {error}"),
        ));
    }
    match receiver.recv_timeout(budget) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(Error::new(
            code::API_UNREACHABLE,
            format!(
                "cannot tell whether pod {}/{} is meshed: no answer of the API server within {budget:?}",
                pod.namespace, pod.name
            ),
        )
        .with_details(UNREACHABLE)),
        Err(RecvTimeoutError::Disconnected) => Err(Error::new(
            code::INTERNAL,
            "the request to the API server ended without a result",
        )),
    }
}

const UNREACHABLE: &str =
    "the node cannot reach the API server, or not in time; the runtime tries again";
const CERTIFICATE: &str = "the kubeconfig has another CA than the API server, or its server under another name, or the node's clock is wrong; the agent (DaemonSet linkerd-cni) writes the kubeconfig";
const KUBECONFIG: &str =
    "the agent (DaemonSet linkerd-cni) writes the kubeconfig; see whether it is ready on this node";

/// Asks the API server; `None` for a pod that is not meshed or that `linkerd-init`
/// looks after. One request, and one more (the namespace) for a meshed pod without
/// all annotations; a control-plane pod takes one more (the Service).
pub fn ask(
    pod: &PodRef,
    config: &Config,
    requests: Arc<AtomicU32>,
) -> Result<Option<PodFacts>, Error> {
    let mut api = Api::open(config, pod, requests)?;
    let PodRef { namespace, name } = pod;
    let found: Pod = api.get(&format!("/api/v1/namespaces/{namespace}/pods/{name}"))?;
    facts(found, pod, &mut api)
}

/// The API server as the kubeconfig has it.
struct Api<'a> {
    config: &'a Config,
    pod: &'a PodRef,
    end: Instant,
    access: Access,
    client: Client,
    requests: Arc<AtomicU32>,
}

impl<'a> Api<'a> {
    /// Reads the kubeconfig; nothing is sent yet. `requests` counts what will be.
    fn open(config: &'a Config, pod: &'a PodRef, requests: Arc<AtomicU32>) -> Result<Self, Error> {
        let access = access(config)?;
        Ok(Api {
            config,
            pod,
            end: Instant::now() + config.api_budget,
            client: client(&access, config.api_budget)?,
            access,
            requests,
        })
    }

    /// GETs `path`, again if that may help and the budget allows.
    fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let error = match self.client.get(path) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let wait = match error.retry() {
                Retry::NewCredential if self.renew()? => Duration::ZERO,
                Retry::Never | Retry::NewCredential => return Err(self.failure(&error)),
                Retry::Soon => pause,
                Retry::After(wait) if wait < self.left() => wait.max(pause),
                // Longer than the pod can wait.
                Retry::After(_) => LAST_PAUSE,
            };
            if wait >= self.left() {
                return Err(self.failure(&error));
            }
            tracing::info!("linkerd-cni: trying again in {wait:?}: {error}");
            thread::sleep(wait);
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether the kubeconfig has another credential by now.
    fn renew(&mut self) -> Result<bool, Error> {
        let access = access(self.config)?;
        if access == self.access {
            return Ok(false);
        }
        self.client = client(&access, self.config.api_budget)?;
        self.access = access;
        Ok(true)
    }

    fn failure(&self, error: &kube::Error) -> Error {
        let PodRef { namespace, name } = self.pod;
        let (code, remedy) = match error.code() {
            Some(401 | 403) => (
                code::API_REFUSED,
                "the API server refuses the token in the kubeconfig or its rights; the agent (DaemonSet linkerd-cni) renews it, see whether it is ready on this node",
            ),
            Some(404) => (
                code::POD_NOT_FOUND,
                "the pod is gone, or the kubeconfig is of another cluster",
            ),
            Some(_) => (
                code::API_ANSWER,
                "the API server has a problem; the runtime tries again",
            ),
            None if error.is_unreadable() => (code::API_ANSWER, NO_API_SERVER),
            None if error.is_unsendable() => (code::KUBECONFIG, KUBECONFIG),
            None if error.is_certificate() => (code::API_UNREACHABLE, CERTIFICATE),
            None => (code::API_UNREACHABLE, UNREACHABLE),
        };
        let tries = self.requests.load(Ordering::Relaxed);
        Error::new(
            code,
            format!(
                "cannot tell whether pod {namespace}/{name} is meshed: {error} (request {tries})"
            ),
        )
        .with_details(remedy)
    }
}

impl Surroundings for Api<'_> {
    fn namespace(&mut self, name: &str) -> Result<Annotations, Error> {
        let found: Namespace = self.get(&namespace_path(name))?;
        Ok(found.metadata.annotations)
    }

    fn api_service(&mut self) -> Result<Service, Error> {
        self.get(API_SERVICE)
    }
}

fn access(config: &Config) -> Result<Access, Error> {
    if config.kubeconfig.as_os_str().is_empty() {
        return Err(unusable(
            "network configuration of linkerd-cni: \"kubernetes\": \"kubeconfig\" is not set",
        ));
    }
    kubeconfig::read(&config.kubeconfig).map_err(|error| unusable(&error.to_string()))
}

/// A silent server leaves time for a second try.
fn client(access: &Access, budget: Duration) -> Result<Client, Error> {
    let deadlines = Deadlines {
        connect: budget / 3,
        response: budget / 2,
        body: budget / 2,
    };
    Client::new(access, "linkerd-cni", deadlines).map_err(|error| unusable(&error.to_string()))
}

fn unusable(problem: &str) -> Error {
    Error::new(code::KUBECONFIG, problem).with_details(KUBECONFIG)
}
