//! The thread that talks to the API server: renews the plugin's token ([`token`](super::token)),
//! checks the token in the kubeconfig ([`token_check`](super::token_check)), posts Events, asks for
//! the Events of pods without sandbox ([`sandbox_events`](super::sandbox_events)) and removes the
//! startup taint.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::ApiHandle;
use super::node_readiness::NodeReadiness;
use super::startup_taint::StartupTaint;
use crate::agent::identity::USER_AGENT;
use crate::agent::runtime_proof::evidence_search::{EvidenceSearch, Moment};
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::{self, Deadlines, RESPONSE_TIMEOUT, Retry};

/// Time-out of each phase of a request except the response.
const PHASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Wait after a response that did not arrive in time, as if the API server had asked for this wait.
/// The API server is probably overloaded, and would stay so if all nodes retried at once.
const TIMEOUT_WAIT: Duration = Duration::from_secs(1);
/// Longest wait for the next request in which connections are kept open. Open connections cost
/// memory.
const LONGEST_IDLE: Duration = Duration::from_secs(10);
/// Longest `Retry-After` that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);

pub struct Worker {
    pub api: Arc<ApiHandle>,
    /// Connection with the agent's own token.
    pub own_connection: Connection,
    /// Connection with the kubeconfig on the host, as the plugin connects.
    pub plugin_connection: Connection,
    startup_taint: StartupTaint,
    pub evidence_search: EvidenceSearch,
    /// Whether the last list of a pod's Events failed.
    pub event_list_fails: bool,
    /// Whether the API server was unreachable in a check since its name was resolved.
    pub is_unreachable: bool,
    /// When the name was last resolved to another address than the one that was in use.
    pub address_changed: Option<Instant>,
}

impl Worker {
    pub fn new(api: Arc<ApiHandle>, source: AccessSource) -> Worker {
        let kubeconfig = AccessSource::Kubeconfig(api.settings.node.kubeconfig());
        let deadlines =
            Deadlines { response: RESPONSE_TIMEOUT, ..Deadlines::per_phase(PHASE_TIMEOUT) };
        Worker {
            own_connection: Connection::new(source, USER_AGENT, deadlines),
            plugin_connection: Connection::new(kubeconfig, USER_AGENT, deadlines),
            startup_taint: StartupTaint::new(&api.settings, Instant::now()),
            evidence_search: EvidenceSearch::new(Moment::now()),
            event_list_fails: false,
            is_unreachable: false,
            address_changed: None,
            api,
        }
    }

    /// Sends requests when they are due, until the process exits. A message on `woken` ends a wait.
    pub fn run(mut self, woken: &Receiver<()>) {
        loop {
            let renewal_due = self.api.state().schedule.renewal_due;
            if let Some(renewal_due) = renewal_due
                && renewal_due <= Instant::now()
            {
                self.renew();
            }
            let check_due = self.api.state().schedule.check_due;
            if check_due <= Instant::now() {
                self.check_token();
            }
            self.post_events();
            self.ask_for_sandbox_events();
            let is_ready = self.api.state().node.as_ref().is_some_and(NodeReadiness::is_ready);
            let taint_due = self.startup_taint.remove_if_due(&mut self.own_connection, is_ready);
            let wait = self.next_due(taint_due).saturating_duration_since(Instant::now());
            if wait > LONGEST_IDLE {
                self.own_connection.close();
                self.plugin_connection.close();
            }
            let _ = woken.recv_timeout(wait);
        }
    }

    /// Returns when the next request is due. `taint_due` is when the startup taint is to be
    /// removed.
    fn next_due(&self, taint_due: Option<Instant>) -> Instant {
        let state = self.api.state();
        let mut next = state.schedule.next_due();
        let times = [taint_due, state.events.due(), state.runtime_proof.due()];
        for due in times.into_iter().flatten() {
            next = next.min(due);
        }
        next
    }

    /// Records the response to a request with the agent's own token. `error` is `None` if the
    /// request succeeded.
    pub fn record_own_token(&self, error: Option<&kube::Error>) {
        self.api.state().history.record_own_token(error, Instant::now());
    }
}

/// Returns how long an overloaded API server asks clients to wait (`Retry-After`), at most
/// [`LONGEST_RETRY_AFTER`]. Returns [`TIMEOUT_WAIT`] if its response did not arrive in time, and
/// zero for any other error.
pub fn retry_after(error: &kube::Error) -> Duration {
    if let Retry::After(wait) = error.retry() {
        return wait.min(LONGEST_RETRY_AFTER);
    }
    if error.is_response_timeout() {
        return TIMEOUT_WAIT;
    }
    Duration::ZERO
}
