//! The thread that talks to the API server: renews the plugin's token ([`token`](super::token)),
//! checks the token in the kubeconfig ([`token_check`](super::token_check)), posts Events and
//! removes the startup taint.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::ApiHandle;
use super::node_readiness::NodeReadiness;
use super::startup_taint::StartupTaint;
use crate::agent::identity::USER_AGENT;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::{self, Deadlines, RESPONSE_TIMEOUT, Retry};

/// Time-out of each phase of a request but the response.
const PHASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time to wait after a response that did not arrive in time, as if the API server had asked for
/// it: the API server is overloaded, and an immediate retry of all nodes would keep it
/// overloaded.
const TIMEOUT_WAIT: Duration = Duration::from_secs(1);
/// Longest time for which connections are kept for the next request. They cost memory.
const LONGEST_IDLE: Duration = Duration::from_secs(10);
/// Longest Retry-After that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

pub struct Worker {
    pub api: Arc<ApiHandle>,
    /// Connection with the agent's own token.
    pub own: Connection,
    /// Connection with the kubeconfig on the host, as the plugin connects.
    pub plugin: Connection,
    startup_taint: StartupTaint,
    /// The API server was unreachable since its name was last resolved.
    pub is_unreachable: bool,
    /// When another address replaced one that was in use.
    pub address_changed: Option<Instant>,
}

impl Worker {
    pub fn new(api: Arc<ApiHandle>, source: AccessSource) -> Worker {
        let kubeconfig = AccessSource::Kubeconfig(api.settings.node.kubeconfig());
        let deadlines =
            Deadlines { response: RESPONSE_TIMEOUT, ..Deadlines::per_phase(PHASE_TIMEOUT) };
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
                self.check_token();
            }
            self.post_events();
            let is_ready = self.api.state().node.as_ref().is_some_and(NodeReadiness::is_ready);
            let taint_due = self.startup_taint.run(&mut self.own, is_ready);
            let wait = self.next_due(taint_due).saturating_duration_since(Instant::now());
            if wait > LONGEST_IDLE {
                self.own.close();
                self.plugin.close();
            }
            let _ = woken.recv_timeout(wait);
        }
    }

    /// Returns when the thread has to act next.
    fn next_due(&self, taint_due: Option<Instant>) -> Instant {
        let state = self.api.state();
        let mut next = state.schedule.next_due();
        for due in [taint_due, state.events.due()].into_iter().flatten() {
            next = next.min(due);
        }
        next
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
