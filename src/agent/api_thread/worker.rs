//! The thread that talks to the API server: renews the plugin's token ([`token`](super::token)), resolves
//! the API server's name and checks the token in the kubeconfig, posts Events and removes the startup
//! taint.

use std::mem;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;

use super::node_readiness::NodeReadiness;
use super::schedule::CheckResult;
use super::startup_taint::StartupTaint;
use super::{ApiHandle, TokenStatus};
use crate::agent::identity::{USER_AGENT, namespace};
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::{self, Deadlines, RESPONSE_TIMEOUT, Retry};

/// Time-out of each phase of a request but the response.
const PHASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time to wait after a response that did not arrive in time, as if the API server had asked for it:
/// the API server is overloaded, and an immediate retry of all nodes would keep it so.
const TIMEOUT_WAIT: Duration = Duration::from_secs(1);
/// Longest time for which connections are kept for the next request. They cost memory.
const LONGEST_IDLE: Duration = Duration::from_secs(10);
/// Longest Retry-After that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);
/// Time between two changes of the address. An outage of the API server lasts at each address, and a
/// DNS server may respond with another one each time.
const ADDRESS_GAP: Duration = Duration::from_secs(30);

pub struct Worker {
    pub api: Arc<ApiHandle>,
    pub own: Connection,
    /// Connection with the kubeconfig on the host, as the plugin connects.
    plugin: Connection,
    startup_taint: StartupTaint,
    /// The API server was unreachable since its name was last resolved.
    is_unreachable: bool,
    /// When another address replaced one that was in use.
    address_changed: Option<Instant>,
}

impl Worker {
    pub fn new(api: Arc<ApiHandle>, source: AccessSource) -> Worker {
        let kubeconfig = AccessSource::Kubeconfig(api.settings.node.kubeconfig());
        let deadlines = Deadlines { response: RESPONSE_TIMEOUT, ..Deadlines::each(PHASE_TIMEOUT) };
        Worker {
            own: Connection::new(source, USER_AGENT, deadlines),
            plugin: Connection::new(kubeconfig, USER_AGENT, deadlines),
            startup_taint: StartupTaint::new(&api.settings, Instant::now()),
            is_unreachable: false,
            address_changed: None,
            api,
        }
    }

    /// Runs until the process exits. A message on `woken` ends a wait.
    pub fn run(mut self, woken: &Receiver<()>) {
        loop {
            if self.api.state().schedule.renewal.is_some_and(|due| due <= Instant::now()) {
                self.renew();
            }
            if self.api.state().schedule.check <= Instant::now() {
                self.check();
            }
            self.post_events();
            let is_ready = self.api.state().node.as_ref().is_some_and(NodeReadiness::is_ready);
            let taint = self.startup_taint.run(&mut self.own, is_ready);
            let state = self.api.state();
            let others = [taint, state.events.due()].into_iter().flatten();
            let next = others.fold(state.schedule.next(), Instant::min);
            drop(state);
            let wait = next.saturating_duration_since(Instant::now());
            if wait > LONGEST_IDLE {
                self.own.close();
                self.plugin.close();
            }
            let _ = woken.recv_timeout(wait);
        }
    }

    /// Resolves the API server's name, if the settings have one. Wakes the reconciler if the result is
    /// new. Returns whether the address on the host is to be checked: it is the current one.
    fn resolve(&mut self) -> bool {
        let Some(name) = self.api.settings.api_name() else { return true };
        if self.address_changed.is_some_and(|at| at.elapsed() < ADDRESS_GAP) {
            return true;
        }
        let current = self.api.server_address();
        let found = current.resolve(name, mem::take(&mut self.is_unreachable));
        let is_same = found.address == current.address;
        if !is_same && current.address.is_some() {
            self.address_changed = Some(Instant::now());
        }
        if found != current {
            self.api.state().server_address = found;
            self.api.waker.wake();
        }
        is_same
    }

    /// Checks the token in the kubeconfig on the host. Wakes the reconciler if the result is new.
    fn check(&mut self) {
        self.api.state().is_changed = false;
        // The reconciler writes a new address, and corrects an unreadable kubeconfig.
        let answer = if self.resolve() { self.request_namespace() } else { None };
        let (mut guard, now) = (self.api.state(), Instant::now());
        let state = &mut *guard;
        let Some((token, response)) = answer else {
            return state.schedule.check_done(now, CheckResult::Unknown, Duration::ZERO);
        };
        let error = response.as_ref().err();
        state.history.plugin_token.record(error, now);
        self.is_unreachable = error.is_some_and(|error| !error.is_response());
        let code = error.and_then(kube::Error::code);
        let judged = match (error, code) {
            (None, _) | (_, Some(404)) => Some(Ok(())),
            (Some(error), Some(401)) => Some(Err(format!(
                "the API server rejected the token in the kubeconfig (HTTP 401): {error}"
            ))),
            (Some(error), Some(403)) => Some(Err(format!(
                "a request with the token in the kubeconfig was denied (HTTP 403): {error}"
            ))),
            // Unreachable or failing: the result of the last check stays valid.
            _ => None,
        };
        let result = match &judged {
            // The name is to be resolved again soon.
            _ if state.server_address.error.is_some() => CheckResult::Unknown,
            None => CheckResult::Unknown,
            Some(Ok(())) => CheckResult::Accepted,
            Some(Err(_)) => CheckResult::Rejected,
        };
        state.schedule.check_done(now, result, error.map_or(Duration::ZERO, retry_after));
        if state.is_changed {
            state.schedule.kubeconfig_changed(now);
        }
        let issued = state.token_requests.token.as_mut().filter(|issued| issued.text == token);
        if let (Some(issued), Some(_)) = (issued, &judged) {
            let was_revoked = mem::replace(&mut issued.revoked, code == Some(401));
            if issued.revoked && !was_revoked {
                state.schedule.revoked(now);
            }
        }
        let check = match judged {
            None => TokenStatus { error: error.map(ToString::to_string), ..state.check.clone() },
            result => TokenStatus { token, result, responded: true, error: None },
        };
        if state.check != check {
            state.check = check;
            self.api.waker.wake();
        }
    }

    /// Sends a request with the token in the kubeconfig on the host. Returns the token and the
    /// response. `None`: the kubeconfig is unreadable.
    fn request_namespace(&mut self) -> Option<(String, Result<IgnoredAny, kube::Error>)> {
        let client = self.plugin.client().ok()?;
        let token = self.plugin.token()?.to_owned();
        let namespace = namespace(&self.api.settings)?;
        // With `resourceVersion=0` the API server responds from its cache.
        let path = format!("/api/v1/namespaces/{namespace}?resourceVersion=0");
        Some((token, client.get(&path)))
    }

    /// Records the response to a request with the agent's own token. `error`: why it failed.
    pub fn record_own(&self, error: Option<&kube::Error>) {
        self.api.state().history.record_own(error, Instant::now());
    }
}

/// Time that an overloaded API server asks clients to wait (Retry-After), bounded, or zero.
pub fn retry_after(error: &kube::Error) -> Duration {
    match error.retry() {
        Retry::After(wait) => wait.min(LONGEST_RETRY_AFTER),
        _ if error.is_response_timeout() => TIMEOUT_WAIT,
        _ => Duration::ZERO,
    }
}
