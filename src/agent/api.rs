//! What the agent wants from the API server: a token for the plugin, and the word that
//! the kubeconfig on the host is accepted.
//!
//! All of it happens on a thread of its own, so that no slow or absent API server ever
//! keeps the agent from putting the node right. The agent takes what is known so far,
//! and is woken when that changes.

pub mod claims;
mod event;
pub mod pod_events;
mod posting;
mod schedule;
pub mod token;
mod token_worker;
mod untaint;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tracing::debug;

use super::settings::Settings;
use super::watch::Waker;
use crate::kube::connection::Source;
use crate::kube::event::Message;
use crate::kube::kubeconfig;
use claims::Claims;
use pod_events::{PodEvent, PodEvents};
use token::{Grant, PluginToken, Token};

/// What the audit log shows.
pub const USER_AGENT: &str = "linkerd2-cni-install";
/// Events that wait for the API server; one more and the oldest is dropped.
const EVENTS: usize = 4;

/// What is known, and the thread that finds it out.
pub struct Api {
    settings: Arc<Settings>,
    state: Mutex<State>,
    nudge: Condvar,
    waker: Waker,
    pod_events: Mutex<PodEvents>,
}

#[derive(Default)]
struct State {
    grant: Grant,
    checked: Option<Checked>,
    /// Why the last check brought no response about the token.
    check_error: Option<String>,
    reached: bool,
    /// All on the node is right.
    verified: bool,
    nudged: bool,
    check_reasons: CheckReasons,
    /// The token of the kubeconfig for which the last check was asked.
    asked_for: Option<String>,
    events: VecDeque<Message>,
    /// An Event on a pod was queued.
    offered: bool,
}

/// Why the kubeconfig is to be checked out of turn.
#[derive(Clone, Copy, Debug, Default)]
struct CheckReasons {
    /// It was written, or its token is new.
    kubeconfig_changed: bool,
    /// A plugin record says that the API server refused the plugin.
    record_refused: bool,
}

/// What the API server said to a token.
struct Checked {
    token: String,
    answer: Result<(), String>,
}

/// What the agent knows about the token in the kubeconfig.
#[derive(Clone, Debug)]
pub struct TokenStatus {
    /// What the API server said to it; nothing if it was not asked yet.
    pub answer: Option<Result<(), String>>,
    /// Whether the API server said anything about any token yet.
    pub answered: bool,
    /// Why the last check brought no response.
    pub error: Option<String>,
}

impl Api {
    /// Takes over the plugin's token from the agent before this one, and starts the
    /// thread, if there is an API server at all.
    pub fn start(settings: &Arc<Settings>, waker: Waker) -> io::Result<Arc<Api>> {
        let adopted = adopt(settings, SystemTime::now());
        let renewal = adopted.as_ref().map_or(Duration::ZERO, |(_, wait)| *wait);
        let state = State {
            grant: Grant {
                token: adopted.map(|(token, _)| token),
                ..Grant::default()
            },
            ..State::default()
        };
        let api = Arc::new(Api {
            settings: Arc::clone(settings),
            state: Mutex::new(state),
            nudge: Condvar::new(),
            waker,
            pod_events: Mutex::new(PodEvents::new(Instant::now())),
        });
        if let Some(source) = source(settings) {
            let errands = token_worker::Errands::new(Arc::clone(&api), source, renewal);
            thread::Builder::new()
                .name("api".into())
                .stack_size(512 << 10)
                .spawn(move || errands.run())?;
        }
        Ok(api)
    }

    /// Which token the kubeconfig on the host should carry.
    pub fn plugin_token(&self) -> PluginToken {
        match self.settings.plugin_account {
            Some(_) => self.state().grant.choose(SystemTime::now()),
            None => PluginToken::Agents { denied: None },
        }
    }

    /// What is known about `token`, which the kubeconfig on the host carries. Asks for a check of
    /// a kubeconfig that was `written` just now, and of a token that no check has seen.
    pub fn token_status(&self, token: &str, written: bool) -> TokenStatus {
        let mut state = self.state();
        let checked = state.checked.as_ref();
        let answer = checked
            .filter(|checked| checked.token == token)
            .map(|checked| checked.answer.clone());
        let answered = checked.is_some();
        let asked = state.asked_for.as_deref() == Some(token);
        if written || answer.is_none() && !asked {
            state.asked_for = Some(token.to_owned());
            state.check_reasons.kubeconfig_changed = true;
            state.nudged = true;
            self.nudge.notify_one();
        }
        TokenStatus {
            answer,
            answered,
            error: state.check_error.clone(),
        }
    }

    /// A plugin record says that the API server refused the plugin's token or its rights.
    pub fn record_refused(&self) {
        let mut state = self.state();
        state.check_reasons.record_refused = true;
        state.nudged = true;
        self.nudge.notify_one();
    }

    /// Whether there ever was an answer from the API server.
    pub fn reached(&self) -> bool {
        self.state().reached
    }

    /// Whether all on the node is right, which the startup taint waits for.
    pub fn verified(&self, verified: bool) {
        let mut state = self.state();
        let begins = verified && !state.verified;
        state.verified = verified;
        if begins && self.settings.startup_taint.is_some() {
            state.nudged = true;
            self.nudge.notify_one();
        }
    }

    /// Publishes an Event on the agent's pod, some time.
    pub fn tell(&self, event: Message) {
        let mut state = self.state();
        if state.events.len() == EVENTS {
            state.events.pop_front();
        }
        state.events.push_back(event);
        state.nudged = true;
        self.nudge.notify_one();
    }

    /// Takes the reasons that came since the last call.
    fn check_reasons(&self) -> CheckReasons {
        std::mem::take(&mut self.state().check_reasons)
    }

    /// Publishes an Event on a pod of the node, some time; drops it if it repeats a recent
    /// one or if too many wait.
    pub fn tell_on_pod(&self, event: PodEvent) {
        let name = format!("{}/{}", event.namespace, event.pod);
        if !self.pod_events().offer(event, Instant::now()) {
            debug!("no Event on pod {name}: it repeats a recent one, or too many wait");
            return;
        }
        self.state().offered = true;
        self.nudge.notify_one();
    }

    fn pod_events(&self) -> MutexGuard<'_, PodEvents> {
        let events = self.pod_events.lock();
        events.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `end`, for a nudge, or for an Event on a pod; whether there was a nudge.
    fn pause(&self, end: Instant) -> bool {
        let mut state = self.state();
        while !state.nudged && !std::mem::take(&mut state.offered) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.nudge.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut state.nudged)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the API server is, for the agent itself.
pub fn source(settings: &Settings) -> Option<Source> {
    Some(Source::InCluster {
        host: settings.api_host.clone()?,
        port: settings.api_port.clone()?,
        dir: settings.service_account_dir.clone(),
    })
}

/// The agent's own namespace.
pub fn namespace(settings: &Settings) -> Option<String> {
    let beside = || fs::read_to_string(settings.service_account_dir.join("namespace")).ok();
    let name = settings.namespace.clone().or_else(beside)?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The token in the kubeconfig that is already there, if it is of the plugin's account
/// and still good at `now`; and how long to wait before it is renewed.
fn adopt(settings: &Settings, now: SystemTime) -> Option<(Token, Duration)> {
    let account = settings.plugin_account.as_deref()?;
    let namespace = namespace(settings)?;
    let text = kubeconfig::read(&settings.kubeconfig()).ok()?.token?;
    let claims = Claims::read(&text)?;
    let until_half_life = claims.until_half_life(now)?;
    let end = claims.end()?;
    let left = end.duration_since(now).ok()?;
    let token = Token {
        text,
        end,
        revoked: false,
    };
    (claims.sub == format!("system:serviceaccount:{namespace}:{account}"))
        .then_some((token, schedule::first_renewal(until_half_life, left)))
}
