//! Talks to the API server: requests the plugin's token, checks the token in the kubeconfig on
//! the host, posts Events and removes the startup taint.
//!
//! All requests of this module are sent from one thread, so that a slow or unreachable API server
//! never delays a reconcile pass. On SIGTERM, `stop` sends its own requests.
//! The thread stores its results in the state that the reconciler reads, and wakes the reconciler
//! when the state changes.

pub mod claims;
mod event_posting;
pub mod history;
pub mod pod_event_queue;
mod schedule;
pub mod server_address;
mod startup_taint;
pub mod token;
mod worker;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tracing::debug;

use super::settings::Settings;
use super::watch::Waker;
use crate::files;
use crate::kube::connection::AccessSource;
use crate::kube::event::EventContent;
use crate::kube::kubeconfig;
use claims::Claims;
use history::History;
use pod_event_queue::{PodEvent, PodEventQueue};
pub use schedule::CHECK_PERIOD;
use server_address::ServerAddress;
use token::{PluginToken, Token, TokenRequestResults};

/// User agent of the requests, which the API server's audit log shows.
pub const USER_AGENT: &str = "linkerd2-cni-install";
/// Maximum number of queued Events on the agent's pod and node. A further Event replaces the oldest.
const MAX_EVENTS: usize = 4;

/// Handle to the thread that talks to the API server, and to the state that it keeps.
pub struct Api {
    settings: Arc<Settings>,
    state: Mutex<State>,
    /// Wakes the thread.
    wake: Condvar,
    /// Signals that an Event on the agent's pod or node was posted, or could not be.
    posted: Condvar,
    /// Wakes the reconciler.
    waker: Waker,
    pod_events: Mutex<PodEventQueue>,
}

#[derive(Default)]
struct State {
    token_requests: TokenRequestResults,
    server_address: ServerAddress,
    /// The last check with a usable response.
    last_check: Option<TokenCheck>,
    /// Why the last check got no usable response.
    check_error: Option<String>,
    history: History,
    /// The last reconcile pass found the node ready.
    node_ready: bool,
    /// The thread has something to do.
    work_pending: bool,
    check_reasons: CheckReasons,
    /// The API server is unreachable at the address in the kubeconfig.
    unreachable_reported: bool,
    /// Token for which the reconciler requested a check last.
    check_requested: Option<String>,
    /// Events on the agent's pod or node that wait to be posted, oldest first.
    events: VecDeque<(AgentObject, EventContent)>,
    /// Number of those Events that are queued or being posted.
    unposted_events: usize,
    /// An Event on another pod was queued.
    pod_event_queued: bool,
}

/// The object of an Event about the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentObject {
    Pod,
    /// The agent's pod if the settings do not name the node.
    Node,
}

/// Why the token in the kubeconfig is checked before the periodic check.
#[derive(Clone, Copy, Debug, Default)]
struct CheckReasons {
    /// The kubeconfig was written, or its token is new.
    kubeconfig_changed: bool,
    /// A plugin record reports that the API server rejected the plugin's token.
    rejection_reported: bool,
}

/// Result of checking a token.
struct TokenCheck {
    token: String,
    /// The error says why the API server rejects the token.
    result: Result<(), String>,
}

/// What the agent knows about the token in the kubeconfig.
#[derive(Clone, Debug)]
pub struct TokenStatus {
    /// Result of checking the token; `None` if it was not checked yet. The error says why the
    /// API server rejects the token.
    pub result: Option<Result<(), String>>,
    /// Whether a check of any token has had a usable response.
    pub responded: bool,
    /// Why the last check got no usable response.
    pub error: Option<String>,
}

impl Api {
    /// Adopts the plugin's token from the kubeconfig that an earlier agent wrote. Starts the
    /// thread if the address of an API server is configured.
    pub fn start(settings: &Arc<Settings>, waker: Waker) -> io::Result<Arc<Api>> {
        let adopted = adopt(settings, SystemTime::now());
        let renewal = adopted.as_ref().map_or(Duration::ZERO, |(_, wait)| *wait);
        let state = State {
            token_requests: TokenRequestResults {
                token: adopted.map(|(token, _)| token),
                ..TokenRequestResults::default()
            },
            server_address: worker::adopted_address(settings),
            ..State::default()
        };
        let api = Arc::new(Api {
            settings: Arc::clone(settings),
            state: Mutex::new(state),
            wake: Condvar::new(),
            posted: Condvar::new(),
            waker,
            pod_events: Mutex::new(PodEventQueue::new(Instant::now())),
        });
        if let Some(source) = source(settings) {
            let worker = worker::Worker::new(Arc::clone(&api), source, renewal);
            thread::Builder::new()
                .name("api".into())
                .stack_size(512 << 10)
                .spawn(move || worker.run())?;
        }
        Ok(api)
    }

    /// Returns the token that the kubeconfig on the host should have.
    pub fn plugin_token(&self) -> PluginToken {
        match self.settings.plugin_account {
            Some(_) => self.state().token_requests.choose(),
            None => PluginToken::AgentToken,
        }
    }

    /// Returns the address of the API server for the kubeconfig, if the settings have a host name.
    pub fn server_address(&self) -> ServerAddress {
        self.state().server_address.clone()
    }

    /// Returns what is known about `token`, the token in the kubeconfig on the host. Requests a
    /// check if the kubeconfig was `written` just now, or if the token was never checked.
    pub fn token_status(&self, token: &str, written: bool) -> TokenStatus {
        let mut state = self.state();
        let last_check = state.last_check.as_ref();
        let result =
            last_check.filter(|check| check.token == token).map(|check| check.result.clone());
        let responded = last_check.is_some();
        let requested = state.check_requested.as_deref() == Some(token);
        if written || result.is_none() && !requested {
            state.check_requested = Some(token.to_owned());
            state.check_reasons.kubeconfig_changed = true;
            state.work_pending = true;
            self.wake.notify_one();
        }
        TokenStatus { result, responded, error: state.check_error.clone() }
    }

    /// Requests a check, because a plugin record reports that the API server rejected the plugin's
    /// token (HTTP 401 or 403).
    pub fn report_rejection(&self) {
        let mut state = self.state();
        state.check_reasons.rejection_reported = true;
        state.work_pending = true;
        self.wake.notify_one();
    }

    /// Requests a resolution of the API server's name, if the settings have one: the API server is
    /// unreachable, for the plugin or with the kubeconfig.
    pub fn report_unreachable(&self) {
        if self.settings.api_name().is_none() {
            return;
        }
        let mut state = self.state();
        state.unreachable_reported = true;
        state.work_pending = true;
        self.wake.notify_one();
    }

    /// Returns what the API server's responses have shown so far.
    pub fn history(&self) -> History {
        self.state().history
    }

    /// Sets whether the node is ready. The startup taint is removed only while the node is ready. Each
    /// pass calls this, also the one that a new token of the agent causes.
    pub fn set_node_ready(&self, ready: bool) {
        let mut state = self.state();
        state.node_ready = ready;
        if ready && self.settings.startup_taint.is_some() {
            state.work_pending = true;
            self.wake.notify_one();
        }
    }

    /// Queues an Event on the agent's own pod. The thread posts it later.
    pub fn report_event(&self, event: EventContent) {
        self.queue_event(AgentObject::Pod, event);
    }

    /// Queues an Event on the node, which outlives the agent's pod. The thread posts it later.
    pub fn report_node_event(&self, event: EventContent) {
        self.queue_event(AgentObject::Node, event);
    }

    /// Waits until all Events on the agent's pod and node are posted or have failed, at most for
    /// `longest`.
    pub fn wait_for_events(&self, longest: Duration) {
        if source(&self.settings).is_some() {
            let pending = |state: &mut State| state.unposted_events > 0;
            drop(self.posted.wait_timeout_while(self.state(), longest, pending));
        }
    }

    fn queue_event(&self, object: AgentObject, event: EventContent) {
        let mut state = self.state();
        if state.events.len() == MAX_EVENTS {
            state.events.pop_front();
            state.unposted_events -= 1;
        }
        state.unposted_events += 1;
        state.events.push_back((object, event));
        state.work_pending = true;
        self.wake.notify_one();
    }

    /// Takes the reasons for a check since the last call.
    fn check_reasons(&self) -> CheckReasons {
        std::mem::take(&mut self.state().check_reasons)
    }

    /// Queues an Event on another pod of this node. Drops it if it repeats a recent one, or if
    /// too many are waiting.
    pub fn report_pod_event(&self, event: PodEvent) {
        let name = format!("{}/{}", event.namespace, event.pod);
        if !self.pod_events().offer(event, Instant::now()) {
            debug!(
                "dropped an Event on pod {name}: it repeats a recent Event, or the queue is full"
            );
            return;
        }
        self.state().pod_event_queued = true;
        self.wake.notify_one();
    }

    fn pod_events(&self) -> MutexGuard<'_, PodEventQueue> {
        let events = self.pod_events.lock();
        events.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `end`, or until another thread requests work or queues an Event on another pod.
    /// Returns whether work was requested: the caller then limits its loop rate.
    fn wait_for_work(&self, end: Instant) -> bool {
        let mut state = self.state();
        while !state.work_pending && !std::mem::take(&mut state.pod_event_queued) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.wake.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut state.work_pending)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns where the agent finds the API server, with its own ServiceAccount; `None` if no address
/// is configured.
pub fn source(settings: &Settings) -> Option<AccessSource> {
    Some(AccessSource::InCluster {
        host: settings.api_host.clone()?,
        port: settings.api_port.clone()?,
        dir: settings.service_account_dir.clone(),
    })
}

/// Returns the agent's Namespace, from the settings or from the ServiceAccount's files.
pub fn namespace(settings: &Settings) -> Option<String> {
    let from_file = || {
        let (bytes, _) = files::read(&settings.service_account_dir.join("namespace")).ok()?;
        String::from_utf8(bytes).ok()
    };
    let name = settings.namespace.clone().or_else(from_file)?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Path of the agent's DaemonSet in the API.
pub fn daemonset_path(namespace: &str, name: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
}

/// Returns the token in the kubeconfig on the host, and the time until its renewal. `None` unless
/// the token belongs to the plugin's ServiceAccount and is valid at `now`.
fn adopt(settings: &Settings, now: SystemTime) -> Option<(Token, Duration)> {
    let account = settings.plugin_account.as_deref()?;
    let namespace = namespace(settings)?;
    let text = kubeconfig::read(&settings.kubeconfig()).ok()?.token?;
    let claims = Claims::read(&text)?;
    let until_half_life = claims.until_half_life(now)?;
    let end = claims.end()?;
    let left = end.duration_since(now).ok()?;
    let token = Token { text, end, revoked: false };
    (claims.sub == format!("system:serviceaccount:{namespace}:{account}"))
        .then_some((token, schedule::first_renewal(until_half_life, left)))
}
