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
use super::{ApiHandle, TokenStatus, USER_AGENT, namespace};
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::scheduling::{DaemonSet, daemonset_path};
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
/// Number of responses without the DaemonSet after which the agent looks no more: some two hours of
/// checks that accept the plugin's token. With upstream's chart, the agent never has the permission to
/// read it.
const DAEMONSET_LOOKS: u32 = 20;
/// Time between two changes of the address. An outage of the API server lasts at each address, and a
/// DNS server may respond with another one each time.
const ADDRESS_GAP: Duration = Duration::from_secs(30);

pub struct Worker {
    pub api: Arc<ApiHandle>,
    pub own: Connection,
    /// Connection with the kubeconfig on the host, as the plugin connects.
    plugin: Connection,
    startup_taint: StartupTaint,
    /// Remaining requests for the DaemonSet.
    daemonset_looks: u32,
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
            daemonset_looks: DAEMONSET_LOOKS,
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
                self.look_for_daemonset();
            }
            if self.api.state().schedule.check <= Instant::now() {
                self.check();
                self.look_for_daemonset();
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
        state.history.plugin_token.record(&response, now);
        let error = response.as_ref().err();
        self.is_unreachable = error.is_some_and(|error| !error.is_response());
        state.history.reached |= !self.is_unreachable;
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

    /// Looks for the agent's DaemonSet until the API server has shown it: a missing DaemonSet proves an
    /// uninstall only to an agent that has seen it. An early HTTP 403 or 404 may come from a role that
    /// is created later, or from a cache that lags behind. Call it after another request.
    fn look_for_daemonset(&mut self) {
        let history = self.api.history();
        if !history.reached || history.daemonset_seen || self.daemonset_looks == 0 {
            return;
        }
        let (Some(namespace), Ok(client)) = (namespace(&self.api.settings), self.own.client())
        else {
            return;
        };
        let name = &self.api.settings.daemonset;
        // With `resourceVersion=0` the API server responds from its cache.
        let path = format!("{}?resourceVersion=0", daemonset_path(&namespace, name));
        let response = client.get::<DaemonSet>(&path);
        self.record_own(&response);
        let is_answer = response.as_ref().err().is_none_or(kube::Error::is_denied_or_missing);
        let mut state = self.api.state();
        let counts = is_answer && state.check.result == Some(Ok(()));
        self.daemonset_looks -= u32::from(counts);
        state.history.daemonset_seen = response.is_ok_and(|found| found.metadata.name == *name);
    }

    pub fn record_own<T>(&self, response: &Result<T, kube::Error>) {
        let mut state = self.api.state();
        state.history.own_token.record(response, Instant::now());
        state.history.reached |= response.as_ref().err().is_none_or(kube::Error::is_response);
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
