//! What the agent wants from the API server: a token for the plugin, and the word that
//! the kubeconfig on the host is accepted.
//!
//! All of it happens on a thread of its own, so that no slow or absent API server ever
//! keeps the agent from putting the node right. The agent takes what is known so far,
//! and is woken when that changes.

pub mod claims;
mod errands;
mod event;
pub mod pod_events;
mod posting;
mod untaint;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tracing::debug;

use super::environment::Settings;
use super::watch::Waker;
use crate::kube::{config, connection::Source, event::Message};
use claims::Claims;
use pod_events::{PodEvent, PodEvents};

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
    token: Option<Token>,
    checked: Option<Checked>,
    reached: bool,
    /// All on the node is right.
    verified: bool,
    nudged: bool,
    events: VecDeque<Message>,
    /// An Event on a pod was queued.
    offered: bool,
}

/// A token of the plugin's own account.
struct Token {
    text: String,
    end: SystemTime,
}

/// What the API server said to a token.
struct Checked {
    token: String,
    answer: Result<(), String>,
}

impl Api {
    /// Takes over the plugin's token from the agent before this one, and starts the
    /// thread, if there is an API server at all.
    pub fn start(settings: &Arc<Settings>, waker: Waker) -> io::Result<Arc<Api>> {
        let adopted = adopt(settings);
        let renew = adopted.as_ref().map_or(Duration::ZERO, |(_, left)| *left);
        let api = Arc::new(Api {
            settings: Arc::clone(settings),
            state: Mutex::new(State {
                token: adopted.map(|(token, _)| token),
                ..State::default()
            }),
            nudge: Condvar::new(),
            waker,
            pod_events: Mutex::new(PodEvents::new(Instant::now())),
        });
        if let Some(source) = source(settings) {
            let errands = errands::Errands::new(Arc::clone(&api), source, renew);
            thread::Builder::new()
                .name("api".into())
                .stack_size(512 << 10)
                .spawn(move || errands.run())?;
        }
        Ok(api)
    }

    /// The plugin's own token, as long as it is good.
    pub fn token(&self) -> Option<String> {
        let state = self.state();
        let token = state.token.as_ref()?;
        (SystemTime::now() < token.end).then(|| token.text.clone())
    }

    /// What the API server said to `token`; nothing if it was not asked yet.
    pub fn answer(&self, token: &str) -> Option<Result<(), String>> {
        let state = self.state();
        let checked = state.checked.as_ref()?;
        (checked.token == token).then(|| checked.answer.clone())
    }

    /// Whether any token was ever checked.
    pub fn answered(&self) -> bool {
        self.state().checked.is_some()
    }

    /// Whether there ever was an answer from the API server.
    pub fn reached(&self) -> bool {
        self.state().reached
    }

    /// The kubeconfig on the host is another, or was refused: it is to be checked now.
    pub fn nudge(&self) {
        self.state().nudged = true;
        self.nudge.notify_one();
    }

    /// Whether all on the node is right, which the startup taint waits for.
    pub fn verified(&self, verified: bool) {
        let mut state = self.state();
        let begins = verified && !state.verified;
        state.verified = verified;
        drop(state);
        if begins && self.settings.startup_taint.is_some() {
            self.nudge();
        }
    }

    /// Publishes an Event on the agent's pod, some time.
    pub fn tell(&self, event: Message) {
        let mut state = self.state();
        if state.events.len() == EVENTS {
            state.events.pop_front();
        }
        state.events.push_back(event);
        drop(state);
        self.nudge();
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
/// and still good; and when to renew it.
fn adopt(settings: &Settings) -> Option<(Token, Duration)> {
    let account = settings.plugin_account.as_deref()?;
    let namespace = namespace(settings)?;
    let text = config::read(&settings.kubeconfig()).ok()?.token?;
    let claims = Claims::read(&text)?;
    let left = claims.until_half_life(SystemTime::now())?;
    let end = claims.end()?;
    (claims.sub == format!("system:serviceaccount:{namespace}:{account}"))
        .then_some((Token { text, end }, left))
}
