//! The thread that talks to the API server: renews the plugin's token ([`token`](super::token)), resolves
//! the API server's name and checks the token in the kubeconfig, posts Events and keeps the Node object.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;

use super::node_object::NodeUpdates;
use super::schedule::CheckResult;
use super::{ApiHandle, TokenCheck, USER_AGENT, events, namespace};
use crate::backoff::{Backoff, Limits};
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::scheduling::{DaemonSet, daemonset_path};
use crate::kube::{self, Deadlines, RESPONSE_TIMEOUT, Retry};

/// Time-out of each phase of a request but the response.
const PHASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Shortest time between two iterations of the loop when other threads request work.
const MIN_ITERATION: Duration = Duration::from_millis(50);
/// Time to wait after a response that did not arrive in time, as if the API server had asked for it:
/// the API server is overloaded, and an immediate retry of all nodes would keep it so.
const TIMEOUT_WAIT: Duration = Duration::from_secs(1);
/// Longest time for which connections are kept for the next request. They cost memory.
const LONGEST_IDLE: Duration = Duration::from_secs(10);
/// Longest Retry-After that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);
/// How often the agent looks for a DaemonSet that it does not see, and the waits between, which take more
/// than an hour. Upstream's chart never gives the right to read it.
const DAEMONSET_LOOKS: u32 = 20;
const LOOK_WAITS: Limits = [Duration::from_millis(100), Duration::from_secs(600)];
/// Time between two changes of the address. An outage of the API server lasts at each address, and a
/// DNS server may respond with another one each time.
const ADDRESS_GAP: Duration = Duration::from_secs(30);

pub struct Worker {
    pub api: Arc<ApiHandle>,
    pub own: Connection,
    /// Connection with the kubeconfig on the host, as the plugin connects.
    plugin: Connection,
    node_updates: NodeUpdates,
    daemonset_looks: u32,
    look_wait: Backoff,
    next_look: Instant,
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
            node_updates: NodeUpdates::of(&api.settings, Instant::now()),
            daemonset_looks: DAEMONSET_LOOKS,
            look_wait: Backoff::new(LOOK_WAITS),
            next_look: Instant::now(),
            address_changed: None,
            api,
        }
    }

    pub fn run(mut self) {
        loop {
            let begin = Instant::now();
            if self.api.state().schedule.renewal.is_some_and(|due| due <= begin) {
                self.renew();
                self.look_for_daemonset();
            }
            if self.api.state().schedule.check <= Instant::now() {
                self.check();
                self.look_for_daemonset();
            }
            events::post_due(&self.api, &mut self.own);
            let node_state = || self.api.state().node.clone();
            let node = self.node_updates.run(&mut self.own, node_state, Instant::now());
            let state = self.api.state();
            let others = [node, state.events.due()].into_iter().flatten();
            let next = others.fold(state.schedule.next(), Instant::min);
            drop(state);
            if next.saturating_duration_since(Instant::now()) > LONGEST_IDLE {
                self.own.close();
                self.plugin.close();
            }
            if self.api.wait_for_request(next) {
                std::thread::sleep(MIN_ITERATION.saturating_sub(begin.elapsed()));
            }
        }
    }

    /// Resolves the API server's name, if the settings have one. Wakes the reconciler if the result is
    /// new. Returns whether the address on the host is to be checked: it is the current one.
    fn resolve(&mut self) -> bool {
        let Some(name) = self.api.settings.api_name() else { return true };
        if self.address_changed.is_some_and(|at| at.elapsed() < ADDRESS_GAP) {
            return true;
        }
        let mut state = self.api.state();
        let is_unreachable = std::mem::take(&mut state.is_unreachable);
        let current = state.server_address.clone();
        drop(state);
        let found = current.resolve(name, is_unreachable);
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
        if !self.resolve() {
            // The reconciler writes the new address, and requests another check.
            let mut state = self.api.state();
            return state.schedule.check_done(Instant::now(), CheckResult::Unknown, Duration::ZERO);
        }
        // The reconciler corrects a kubeconfig that cannot be read.
        let client = self.plugin.client().ok();
        let token = self.plugin.token().map(str::to_owned);
        let (Some(client), Some(token), Some(namespace)) =
            (client, token, namespace(&self.api.settings))
        else {
            let mut state = self.api.state();
            return state.schedule.check_done(Instant::now(), CheckResult::Unknown, Duration::ZERO);
        };
        // With `resourceVersion=0` the API server responds from its cache.
        let path = format!("/api/v1/namespaces/{namespace}?resourceVersion=0");
        let response = client.get::<IgnoredAny>(&path);
        let now = Instant::now();
        self.api.state().history.plugin_token.record(&response, now);
        let error = response.err();
        let code = error.as_ref().and_then(kube::Error::code);
        let rejection = match (&error, code) {
            (None, _) | (_, Some(404)) => Ok(()),
            (Some(error), Some(401)) => Err(format!(
                "the API server rejected the token in the kubeconfig (HTTP 401): {error}"
            )),
            (Some(error), Some(403)) => Err(format!(
                "a request with the token in the kubeconfig was denied (HTTP 403): {error}"
            )),
            // Unreachable or failing: the result of the last check stays valid.
            (Some(error), _) => return self.check_failed(error),
        };
        let mut guard = self.api.state();
        let state = &mut *guard;
        let result = match rejection {
            // The name is to be resolved again soon.
            _ if state.server_address.error.is_some() => CheckResult::Unknown,
            Ok(()) => CheckResult::Accepted,
            Err(_) => CheckResult::Rejected,
        };
        state.schedule.check_done(now, result, Duration::ZERO);
        state.history.reached = true;
        let issued = state.token_requests.token.as_mut();
        if let Some(issued) = issued.filter(|issued| issued.text == token) {
            let is_revoked = code == Some(401);
            if is_revoked && !issued.revoked {
                state.schedule.revoked(now);
            }
            issued.revoked = is_revoked;
        }
        let check = Some(TokenCheck { token, result: rejection });
        if state.check_error.take().is_some() || state.last_check != check {
            self.api.waker.wake();
        }
        state.last_check = check;
    }

    fn check_failed(&mut self, error: &kube::Error) {
        let mut state = self.api.state();
        state.schedule.check_done(Instant::now(), CheckResult::Unknown, retry_after(error));
        state.is_unreachable = !error.is_response();
        state.history.reached |= error.is_response();
        let why = Some(error.to_string());
        if state.check_error != why {
            self.api.waker.wake();
        }
        state.check_error = why;
    }

    /// Looks for the agent's DaemonSet until the API server has shown it: a missing DaemonSet proves an
    /// uninstall only to an agent that has seen it. An early HTTP 403 or 404 may come from a role that
    /// is created later, or from a cache that lags behind. Call it after another request.
    fn look_for_daemonset(&mut self) {
        let history = self.api.state().history;
        let is_due = self.daemonset_looks > 0 && self.next_look <= Instant::now();
        if !history.reached || history.daemonset_seen || !is_due {
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
        let error = response.as_ref().err();
        let is_answer = error.is_none_or(kube::Error::is_denied_or_missing);
        self.daemonset_looks -= u32::from(is_answer);
        self.next_look = Instant::now() + self.look_wait.next_delay();
        let is_seen = response.is_ok_and(|found| found.metadata.name == *name);
        self.api.state().history.daemonset_seen = is_seen;
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
