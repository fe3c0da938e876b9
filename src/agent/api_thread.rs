//! Talks to the API server: requests the plugin's token, checks the token in the kubeconfig on
//! the host, posts Events, asks for the Events of pods without sandbox, and removes the startup taint
//! from the Node.
//!
//! All requests of this module are sent from one thread, so that a slow or unreachable API server
//! never delays a reconcile pass. The thread stores its results in a state that the reconciler
//! reads, and wakes the reconciler when the state changes. On SIGTERM, `stop` sends requests of its
//! own, from another thread.

pub mod event_queue;
mod first_install;
mod node_readiness;
mod sandbox_events;
mod schedule;
pub mod server_address;
mod startup_taint;
pub mod token;
mod token_check;
mod token_renewal;
mod worker;

use std::io;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tracing::warn;

use super::api_history::ApiHistory;
use super::file_watch::Waker;
use super::identity::{USER_AGENT, access_source};
use super::own_pod::OwnPod;
use super::runtime_proof::RuntimeProof;
use super::settings::Settings;
use crate::deadline::run_within;
use crate::failure::Failure;
use crate::kube::Deadlines;
use crate::kube::connection::Connection;
use crate::kube::pod_watch;
use crate::record::Record;
use event_queue::{Event, EventQueue};
pub use first_install::FirstInstall;
use first_install::FirstWatch;
use node_readiness::NodeReadiness;
pub use schedule::Schedule;
use server_address::ServerAddress;
use token::{AdoptedToken, TokenRequestResults};
pub use token_check::{CHECK_PERIOD, TokenCheckResult, TokenStatus, TokenValidity};
use worker::Worker;

/// Handle to the thread that talks to the API server, and to the state that it keeps.
pub struct ApiHandle {
    settings: Arc<Settings>,
    state: Mutex<State>,
    /// Wakes the thread, so that it looks which requests are due. The channel is full while a wake
    /// is pending.
    thread_waker: SyncSender<()>,
    /// Wakes the main loop, so that it runs a reconcile pass.
    pass_waker: Waker,
}

struct State {
    token_requests: TokenRequestResults,
    server_address: ServerAddress,
    /// Result of the last check of the token in the kubeconfig on the host.
    check: TokenStatus,
    /// Whether the kubeconfig on the host was written after the last check began.
    kubeconfig_written: bool,
    history: ApiHistory,
    own_pod: OwnPod,
    first_watch: FirstWatch,
    runtime_proof: RuntimeProof,
    /// `None` after SIGTERM or SIGINT: the agent then leaves the Node unchanged for the next agent.
    node: Option<NodeReadiness>,
    events: EventQueue,
    schedule: Schedule,
}

impl State {
    /// Returns the state at the start of the agent. Adopts the plugin's token from the kubeconfig
    /// that an earlier agent wrote.
    fn at_start(settings: &Settings) -> State {
        let now = Instant::now();
        let adopted = AdoptedToken::read(settings, SystemTime::now());
        let mut schedule = Schedule::new(now, until_renewal(settings, adopted.as_ref()));
        if settings.api_name().is_some() {
            // The kubeconfig needs the address to which the name resolves. Checks resolve the name,
            // so a check is due at the start.
            schedule.check_changed_kubeconfig(now);
        }
        let token = adopted.map(|adopted| adopted.token);
        State {
            token_requests: TokenRequestResults { token, error: None },
            server_address: ServerAddress::adopted(settings),
            check: TokenStatus::default(),
            kubeconfig_written: false,
            history: ApiHistory::default(),
            own_pod: OwnPod::default(),
            first_watch: FirstWatch::default(),
            runtime_proof: RuntimeProof::new(sandbox_events::watch_problem(settings), now),
            node: Some(NodeReadiness::at_start(now)),
            events: EventQueue::new(now),
            schedule,
        }
    }
}

/// Returns the time until the first TokenRequest. `None` if the plugin has no ServiceAccount of its
/// own.
fn until_renewal(settings: &Settings, adopted: Option<&AdoptedToken>) -> Option<Duration> {
    match adopted {
        Some(adopted) => Some(adopted.until_renewal),
        None if settings.plugin_account.is_some() => Some(Duration::ZERO),
        None => None,
    }
}

impl ApiHandle {
    /// Starts the thread if the address of an API server is configured.
    pub fn start(settings: &Arc<Settings>, pass_waker: Waker) -> io::Result<Arc<ApiHandle>> {
        let state = Mutex::new(State::at_start(settings));
        let (thread_waker, woken) = mpsc::sync_channel(1);
        let settings = Arc::clone(settings);
        let api = Arc::new(ApiHandle { settings, state, thread_waker, pass_waker });
        if let Some(source) = access_source(&api.settings) {
            let worker = Worker::new(Arc::clone(&api), source);
            let thread = thread::Builder::new().name("api".into()).stack_size(512 << 10);
            thread.spawn(move || worker.run(&woken))?;
        }
        Ok(api)
    }

    pub fn token_requests(&self) -> TokenRequestResults {
        self.state().token_requests.clone()
    }

    pub fn server_address(&self) -> ServerAddress {
        self.state().server_address.clone()
    }

    /// Returns what is known about `token`, the token in the kubeconfig on the host. Requests a
    /// check if the kubeconfig was written just now (`was_written`), or if the last check was of
    /// another token.
    pub fn token_status(&self, token: &str, was_written: bool) -> TokenStatus {
        let mut state = self.state();
        let is_new = state.check.token != token;
        if is_new {
            state.check.token = token.to_owned();
            state.check.validity = TokenValidity::Unknown;
        }
        if is_new || was_written {
            state.kubeconfig_written = true;
            state.schedule.check_changed_kubeconfig(Instant::now());
            self.wake_thread();
        }
        state.check.clone()
    }

    /// Requests a check of the token if the plugin `record` reports that the API server rejected
    /// the plugin's token (HTTP 401 or 403), or that the API server is unreachable at the address
    /// to which its name was resolved.
    pub fn report_failure(&self, record: &Record) {
        // The failure is identified by its code, because the text of an error may differ between
        // versions of the plugin.
        let is_rejected = record.has_code(Failure::TokenRejected);
        let is_unreachable_at_resolved_address =
            record.has_code(Failure::ApiUnreachable) && self.settings.api_name().is_some();
        if is_rejected || is_unreachable_at_resolved_address {
            self.state().schedule.check_after_plugin_failure(Instant::now());
            self.wake_thread();
        }
    }

    pub fn history(&self) -> ApiHistory {
        self.state().history
    }

    /// Returns the agent's own pod, as the API server showed it last.
    pub fn own_pod(&self) -> OwnPod {
        self.state().own_pod.clone()
    }

    /// Announces that a watch of the agent's own pod will begin. `uid` is the UID of the pod, if it
    /// is known.
    pub fn await_own_pod(&self, uid: Option<String>) {
        let mut state = self.state();
        state.own_pod.uid = uid;
        state.first_watch.begin_wait(Instant::now());
    }

    /// Calls `update` with what is known of the agent's own pod. Wakes the main loop if that
    /// changes.
    pub fn update_own_pod(&self, update: impl FnOnce(&mut OwnPod)) {
        let mut state = self.state();
        let before = state.own_pod.clone();
        update(&mut state.own_pod);
        if state.own_pod != before {
            self.pass_waker.wake();
        }
    }

    /// Records that the API server has responded to a list of pods, and so accepted the agent's own
    /// token.
    pub fn record_listed_pods(&self) {
        self.state().history.record_own_token(None, Instant::now());
    }

    /// Records that the watch of pods is open. Wakes the main loop if the first install waits for
    /// that.
    pub fn record_open_watch(&self) {
        let mut state = self.state();
        state.history.record_own_token(None, Instant::now());
        if state.first_watch.end_wait() {
            self.pass_waker.wake();
        }
    }

    /// Records that a list or a watch of pods failed. Wakes the main loop if the first install
    /// waits for the watch.
    pub fn record_failed_watch(&self, error: &pod_watch::Error) {
        let mut state = self.state();
        state.history.record_failed_watch(error, Instant::now());
        state.own_pod.record_lost_watch();
        // After a denial, the first install keeps waiting. The agent's ClusterRole may have just
        // been deleted with the chart. Then this agent is about to be stopped and should not
        // install.
        if !error.is_denied() && state.first_watch.end_wait() {
            self.pass_waker.wake();
        }
    }

    /// Returns whether the kubeconfig may be written on a node where nothing is installed.
    pub fn first_install(&self, now: Instant) -> FirstInstall {
        let state = self.state();
        let is_rejected = state.history.own_token.rejected.is_some();
        state.first_watch.first_install(is_rejected, now)
    }

    /// Records at the end of each pass why the node is not ready. Queues an Event if the node has
    /// not been ready for long. Wakes the thread, which removes the startup taint once the node is
    /// ready.
    pub fn record_pass(&self, not_ready: Option<&str>) {
        let now = Instant::now();
        let mut guard = self.state();
        let State { node, events, .. } = &mut *guard;
        let Some(node) = node else { return };
        let report = node.record_pass(not_ready, now);
        if report.is_some() || self.settings.startup_taint.is_some() {
            self.wake_thread();
        }
        if let Some(report) = report {
            events.offer(Event::on_node(report), now);
        }
    }

    /// Stops the updates of the Node. From now on the agent neither removes the startup taint nor
    /// reports that the node is not ready.
    pub fn stop_node_updates(&self) {
        self.state().node = None;
    }

    /// Queues an Event. An Event on a pod is dropped if it repeats a recent one, or if too many
    /// Events are waiting.
    pub fn report_event(&self, event: Event) {
        if self.state().events.offer(event, Instant::now()) {
            self.wake_thread();
        }
    }

    /// Posts the Event about a failed uninstall from a thread of its own, and waits at most for the
    /// time `budget`. The agent ends in any case, so a timeout is ignored.
    pub fn report_failed_uninstall(&self, event: Event, budget: Duration) {
        let Some(source) = access_source(&self.settings) else { return };
        let settings = Arc::clone(&self.settings);
        let _ = run_within("last request", budget, move || {
            let mut connection =
                Connection::new(source, USER_AGENT, Deadlines::per_phase(budget / 2));
            if let Err(error) = event_queue::post(&mut connection, &settings, &event) {
                warn!("cannot post an Event: {error}");
            }
        });
    }

    fn wake_thread(&self) {
        // The error is ignored: sending fails if a wake is pending already.
        let _ = self.thread_waker.try_send(());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
