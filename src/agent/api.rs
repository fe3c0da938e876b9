//! Talks to the API server: requests the plugin's token, checks the token in the kubeconfig on
//! the host, posts Events, and keeps the Node object: startup taint or condition.
//!
//! All requests of this module are sent from one thread, so that a slow or unreachable API server
//! never delays a reconcile pass. On SIGTERM, `stop` sends its own requests.
//! The thread stores its results in the state that the reconciler reads, and wakes the reconciler
//! when the state changes.

pub mod events;
mod node_object;
mod node_state;
mod schedule;
pub mod server_address;
pub mod token;
mod worker;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tracing::warn;

use super::settings::{NodeSignal, Settings};
use super::watch::Waker;
use crate::deadline::run_within;
use crate::failure::Failure;
use crate::files;
use crate::kube::Deadlines;
use crate::kube::claims::Claims;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::kubeconfig;
use crate::record::Record;
use events::{Event, EventQueue};
use node_state::NodeState;
pub use schedule::{CHECK_PERIOD, CheckResult, Schedule};
use server_address::ServerAddress;
use token::{History, Token, TokenRequestResults};

/// User agent of the requests, which the API server's audit log shows.
pub const USER_AGENT: &str = "linkerd2-cni-install";
/// Why the agent sends no request that needs its namespace.
pub const NO_NAMESPACE: &str = "the agent's namespace is unknown: set LINKERD_CNI_NAMESPACE";

/// Handle to the thread that talks to the API server, and to the state that it keeps.
pub struct ApiHandle {
    settings: Arc<Settings>,
    state: Mutex<State>,
    /// Wakes the thread, which then looks at the times in the state again.
    wake: Condvar,
    waker: Waker,
}

struct State {
    token_requests: TokenRequestResults,
    server_address: ServerAddress,
    /// The API server was unreachable at the address since its name was resolved last.
    is_unreachable: bool,
    /// The last check with a usable response.
    last_check: Option<TokenCheck>,
    /// Why the last check got no usable response.
    check_error: Option<String>,
    history: History,
    node: NodeState,
    events: EventQueue,
    schedule: Schedule,
    /// The thread has something to do.
    is_requested: bool,
    /// Token for which the reconciler requested a check last.
    check_requested: Option<String>,
}

#[derive(PartialEq)]
struct TokenCheck {
    token: String,
    /// The error says why the API server rejects the token.
    result: Result<(), String>,
}

#[derive(Clone, Debug)]
pub struct TokenStatus {
    /// Result of checking the token; `None` if it was not checked yet. The error says why the
    /// API server rejects the token.
    pub result: Option<Result<(), String>>,
    /// Whether a check of any token has had a usable response.
    pub responded: bool,
    pub error: Option<String>,
}

impl ApiHandle {
    /// Adopts the plugin's token from the kubeconfig that an earlier agent wrote. Starts the
    /// thread if the address of an API server is configured.
    pub fn start(settings: &Arc<Settings>, waker: Waker) -> io::Result<Arc<ApiHandle>> {
        let adopted = adopt(settings, SystemTime::now());
        let now = Instant::now();
        let renewal = adopted.as_ref().map_or(Duration::ZERO, |(_, wait)| *wait);
        let renewal = settings.plugin_account.as_ref().map(|_| renewal);
        let mut state = State {
            token_requests: TokenRequestResults {
                token: adopted.map(|(token, _)| token),
                ..TokenRequestResults::default()
            },
            server_address: ServerAddress::adopted(settings),
            is_unreachable: false,
            last_check: None,
            check_error: None,
            history: History::default(),
            node: NodeState::at_start(now),
            events: EventQueue::new(now),
            schedule: Schedule::new(now, renewal),
            is_requested: false,
            check_requested: None,
        };
        if settings.api_name().is_some() {
            // The first check resolves the name, without which there is no kubeconfig.
            state.schedule.kubeconfig_changed(now);
        }
        let api = Arc::new(ApiHandle {
            settings: Arc::clone(settings),
            state: Mutex::new(state),
            wake: Condvar::new(),
            waker,
        });
        if let Some(source) = source(settings) {
            let worker = worker::Worker::new(Arc::clone(&api), source);
            thread::Builder::new()
                .name("api".into())
                .stack_size(512 << 10)
                .spawn(move || worker.run())?;
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
            state.schedule.kubeconfig_changed(Instant::now());
            self.wake_thread(&mut state);
        }
        TokenStatus { result, responded, error: state.check_error.clone() }
    }

    /// Requests a check if a plugin record reports that the API server rejected the plugin's token
    /// (HTTP 401 or 403), or is unreachable at an address to which its name was resolved.
    pub fn report_failure(&self, record: &Record) {
        // By code: the plugin on the node may be of another version.
        let is_unreachable = record.has_code(Failure::ApiUnreachable);
        if record.has_code(Failure::TokenRejected)
            || is_unreachable && self.settings.api_name().is_some()
        {
            let mut state = self.state();
            state.schedule.failure_reported(Instant::now());
            self.wake_thread(&mut state);
        }
    }

    pub fn history(&self) -> History {
        self.state().history
    }

    /// Sets why the node is not ready, for the Node object, and for an Event if that lasts. Each pass calls
    /// this, also the one that a new token of the agent causes.
    pub fn pass_finished(&self, not_ready: Option<&str>) {
        let (mut state, now) = (self.state(), Instant::now());
        let report = state.node.pass_finished(not_ready, self.settings.resync, now);
        if report.is_some() || self.settings.node_signal.is_some() {
            self.wake_thread(&mut state);
        }
        report.map(|report| state.events.offer(Event::on_node(report), now));
    }

    /// From now on, the Node object stays as it is.
    pub fn stop_node_updates(&self) {
        self.state().node.stop();
    }

    /// Queues an Event. An Event on a pod is dropped if it repeats a recent one, or if many wait.
    pub fn report_event(&self, event: Event) {
        let mut state = self.state();
        if state.events.offer(event, Instant::now()) {
            self.wake_thread(&mut state);
        }
    }

    /// Reports an uninstall: removes the condition from the Node if the agent keeps one, and posts an Event
    /// if the uninstall `failed`. Waits for the responses at most for `longest`.
    pub fn report_uninstall(&self, failed: Option<Event>, longest: Duration) {
        let Some(source) = source(&self.settings) else {
            return;
        };
        let settings = Arc::clone(&self.settings);
        let _ = run_within("last requests", longest, move || {
            let mut connection = Connection::new(source, USER_AGENT, Deadlines::each(longest / 2));
            if let (Some(NodeSignal::Condition), Some(node)) =
                (&settings.node_signal, &settings.node_name)
            {
                let removed = node_object::remove_condition(&mut connection, node);
                removed.unwrap_or_else(|why| warn!("{why}"));
            }
            if let Some(event) = failed
                && let Err(error) = events::post(&mut connection, &settings, &event)
            {
                warn!("cannot post an Event: {error}");
            }
        });
    }

    fn wake_thread(&self, state: &mut State) {
        state.is_requested = true;
        self.wake.notify_one();
    }

    /// Waits until another thread requests something, or until `end`. Returns whether it did.
    fn wait_for_request(&self, end: Instant) -> bool {
        let longest = end.saturating_duration_since(Instant::now());
        let waited =
            self.wake.wait_timeout_while(self.state(), longest, |state| !state.is_requested);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        std::mem::take(&mut state.is_requested)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how the agent reaches the API server; `None` if no address is configured.
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

/// Returns the token in the kubeconfig on the host, and the time until its renewal. `None` unless
/// the token belongs to the plugin's ServiceAccount and is valid at `now`.
fn adopt(settings: &Settings, now: SystemTime) -> Option<(Token, Duration)> {
    let account = settings.plugin_account.as_deref()?;
    let namespace = namespace(settings)?;
    let text = kubeconfig::read(&settings.node.kubeconfig()).ok()?.token?;
    let claims = Claims::read(&text)?;
    let until_half_life = claims.until_half_life(now)?;
    let end = claims.expiry()?;
    let left = end.duration_since(now).ok()?;
    let token = Token { text, end, revoked: false };
    (claims.account() == Some((&*namespace, account)))
        .then_some((token, schedule::first_renewal(until_half_life, left)))
}
