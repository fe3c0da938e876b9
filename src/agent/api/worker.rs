//! The thread that talks to the API server: resolves its name ([`resolution`]), renews the plugin's
//! token ([`token_renewal`]), checks the token in the kubeconfig ([`token_check`]), posts Events and
//! removes the startup taint.

mod resolution;
mod token_check;
mod token_renewal;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;

use super::event_posting::{self, PodEventPosting};
use super::schedule::Schedule;
use super::server_address::ResolutionSchedule;
use super::startup_taint::TaintRemoval;
use super::{Api, USER_AGENT, daemonset_path, namespace};
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::retry::Retry;
use crate::kube::scheduling::DaemonSet;
use crate::kube::{self, Deadlines};
pub use resolution::adopted_address;

/// Time-out of each phase of a request but the response.
const PHASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time-out of the response. Longer, because an overloaded API server queues requests, and a request
/// that is sent again waits at the end of the queue. The same as in the repair controller.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(9);
/// Shortest time between two iterations of the loop when other threads request work. Events on
/// other pods have their own rate limit.
const MIN_ITERATION: Duration = Duration::from_millis(50);
/// Time to wait after a response that did not arrive in time, as if the API server had asked for it:
/// the API server is overloaded, and an immediate retry of all nodes would keep it so.
const TIMEOUT_WAIT: Duration = Duration::from_secs(1);
/// Longest Retry-After that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

/// State of the thread.
pub struct Worker {
    api: Arc<Api>,
    /// Connection with the agent's own token.
    own: Connection,
    /// Connection with the kubeconfig on the host, as the plugin connects.
    plugin: Connection,
    schedule: Schedule,
    /// `None` if the settings have the IP address of the API server.
    resolution: Option<ResolutionSchedule>,
    taint_removal: TaintRemoval,
    pod_events: PodEventPosting,
}

impl Worker {
    /// Prepares the thread. `renewal` is the time until the first TokenRequest, if the plugin has a
    /// ServiceAccount of its own.
    pub fn new(api: Arc<Api>, source: AccessSource, renewal: Duration) -> Worker {
        let kubeconfig = AccessSource::Kubeconfig(api.settings.kubeconfig());
        let deadlines = Deadlines { response: RESPONSE_TIMEOUT, ..Deadlines::each(PHASE_TIMEOUT) };
        let now = Instant::now();
        let renewal = api.settings.plugin_account.as_ref().map(|_| renewal);
        Worker {
            own: Connection::new(source, USER_AGENT, deadlines),
            plugin: Connection::new(kubeconfig, USER_AGENT, deadlines),
            schedule: Schedule::new(now, renewal),
            resolution: api.settings.api_name().map(|_| ResolutionSchedule::new(now)),
            taint_removal: TaintRemoval::of(&api.settings, now),
            pod_events: PodEventPosting::default(),
            api,
        }
    }

    /// Runs for the rest of the process.
    pub fn run(mut self) {
        loop {
            let begin = Instant::now();
            self.resolve();
            let reasons = self.api.check_reasons();
            if reasons.kubeconfig_changed {
                self.schedule.kubeconfig_changed(begin);
            }
            if reasons.rejection_reported {
                self.schedule.rejection_reported(begin);
            }
            if self.schedule.is_renewal_due(begin) {
                self.renew();
                self.look_for_daemonset();
            }
            if self.schedule.is_check_due(Instant::now()) {
                self.check();
                self.look_for_daemonset();
            }
            self.post_agent_events();
            self.pod_events.run(&self.api, &mut self.own);
            let is_ready = || self.api.state().node_ready;
            let mut end = self.schedule.next();
            if let Some(due) = self.taint_removal.run(&mut self.own, is_ready, Instant::now()) {
                end = end.min(due);
            }
            if let Some(resolution) = &self.resolution {
                end = end.min(resolution.due());
            }
            let event = self.api.pod_events().due();
            if self.api.wait_for_work(event.map_or(end, |due| end.min(due))) {
                std::thread::sleep(MIN_ITERATION.saturating_sub(begin.elapsed()));
            }
        }
    }

    /// Posts the queued Events on the agent's own pod and node. A failed Event is not retried.
    fn post_agent_events(&mut self) {
        loop {
            let Some((object, content)) = self.api.state().events.pop_front() else {
                return;
            };
            let posted = event_posting::post(&mut self.own, &self.api.settings, object, &content);
            if let Err(error) = posted {
                warn!("cannot post an Event on the agent's pod or node: {error}");
            }
            self.api.state().unposted_events -= 1;
            self.api.posted.notify_all();
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
