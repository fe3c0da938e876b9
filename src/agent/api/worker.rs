//! The thread that talks to the API server: resolves its name, renews the plugin's token
//! ([`token_renewal`]), checks the token in the kubeconfig ([`token_check`]), posts Events and keeps
//! the Node object.

mod token_check;
mod token_renewal;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event_posting::EventPosting;
use super::node_object::NodeUpdates;
use super::schedule::Schedule;
use super::server_address::Resolution;
use super::{ApiHandle, USER_AGENT, daemonset_path, namespace};
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::retry::Retry;
use crate::kube::scheduling::DaemonSet;
use crate::kube::{self, Deadlines, RESPONSE_TIMEOUT};

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

/// State of the thread.
pub struct Worker {
    api: Arc<ApiHandle>,
    /// Connection with the agent's own token.
    own: Connection,
    /// Connection with the kubeconfig on the host, as the plugin connects.
    plugin: Connection,
    schedule: Schedule,
    /// `None` if the settings have the IP address of the API server.
    resolution: Option<Resolution>,
    node_updates: NodeUpdates,
    event_posting: EventPosting,
}

impl Worker {
    /// Prepares the thread. `renewal` is the time until the first TokenRequest, if the plugin has a
    /// ServiceAccount of its own.
    pub fn new(api: Arc<ApiHandle>, source: AccessSource, renewal: Duration) -> Worker {
        let kubeconfig = AccessSource::Kubeconfig(api.settings.node.kubeconfig());
        let deadlines = Deadlines { response: RESPONSE_TIMEOUT, ..Deadlines::each(PHASE_TIMEOUT) };
        let now = Instant::now();
        let renewal = api.settings.plugin_account.as_ref().map(|_| renewal);
        Worker {
            own: Connection::new(source, USER_AGENT, deadlines),
            plugin: Connection::new(kubeconfig, USER_AGENT, deadlines),
            schedule: Schedule::new(now, renewal),
            resolution: Resolution::of(&api.settings, now),
            node_updates: NodeUpdates::of(&api.settings, now),
            event_posting: EventPosting::default(),
            api,
        }
    }

    /// Runs for the rest of the process.
    pub fn run(mut self) {
        loop {
            let begin = Instant::now();
            let requests = self.api.take_requests();
            if requests.server_unreachable {
                self.unreachable_reported();
            }
            if requests.kubeconfig_changed {
                self.schedule.kubeconfig_changed(begin);
            }
            if requests.token_rejected {
                self.schedule.rejection_reported(begin);
            }
            self.resolve();
            if self.schedule.is_renewal_due(begin) {
                self.renew();
                self.look_for_daemonset();
            }
            if self.schedule.is_check_due(Instant::now()) {
                self.check();
                self.look_for_daemonset();
            }
            self.event_posting.run(&self.api, &mut self.own);
            let node_state = || self.api.state().node.clone();
            let node = self.node_updates.run(&mut self.own, node_state, Instant::now());
            let resolution = self.resolution.as_ref().map(Resolution::due);
            let event = self.api.state().events.due();
            let others = [node, resolution, event].into_iter().flatten();
            let next = others.fold(self.schedule.next(), Instant::min);
            if next.saturating_duration_since(Instant::now()) > LONGEST_IDLE {
                self.own.close();
                self.plugin.close();
            }
            if self.api.wait_for_request(next) {
                std::thread::sleep(MIN_ITERATION.saturating_sub(begin.elapsed()));
            }
        }
    }

    /// Resolves the API server's name if that is due. Wakes the reconciler if the address or an error
    /// changed.
    fn resolve(&mut self) {
        let current = self.api.state().server_address.clone();
        let found = self.resolution.as_mut().and_then(|resolution| resolution.run(&current));
        if let Some(found) = found.filter(|found| *found != current) {
            self.api.state().server_address = found;
            self.api.waker.wake();
        }
    }

    fn unreachable_reported(&mut self) {
        if let Some(resolution) = &mut self.resolution {
            resolution.unreachable_reported(Instant::now());
        }
    }

    /// Looks for the agent's DaemonSet until the API server has shown it: a missing DaemonSet proves an
    /// uninstall only to an agent that has seen it. An early HTTP 403 or 404 may come from a role that
    /// is created later, or from a cache that lags behind. Call it after another request.
    fn look_for_daemonset(&mut self) {
        let history = self.api.state().history;
        let is_due = self.schedule.is_daemonset_due(Instant::now());
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
        let is_seen = response.is_ok_and(|found| found.metadata.name == *name);
        self.api.state().history.daemonset_seen = is_seen;
        if !is_seen {
            self.schedule.daemonset_unseen(Instant::now());
        }
    }

    /// Records a response to a request with the agent's own token.
    fn record_own<T>(&self, response: &Result<T, kube::Error>) {
        let mut state = self.api.state();
        state.history.own_token.record(response, Instant::now());
        state.history.reached |= response.as_ref().err().is_none_or(kube::Error::is_response);
    }
}

/// Time that an overloaded API server asks clients to wait (Retry-After), bounded. Zero if the API
/// server is not overloaded.
fn retry_after(error: &kube::Error) -> Duration {
    match error.retry() {
        Retry::After(wait) => wait.min(LONGEST_RETRY_AFTER),
        _ if error.is_response_timeout() => TIMEOUT_WAIT,
        _ => Duration::ZERO,
    }
}
