//! The thread that talks to the API server.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tracing::{info, warn};

use super::claims::Claims;
use super::event;
use super::posting::Posting;
use super::untaint::Untaint;
use super::{Api, Checked, Token, USER_AGENT, namespace};
use crate::kube::backoff::Backoff;
use crate::kube::connection::{Connection, Source};
use crate::kube::{self, Deadlines};

/// For each phase of a request.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often the kubeconfig is checked, unless the resync is more often: a token that
/// was revoked is replaced this soon. The API server takes a token that it knows for 10 s
/// without a look; asked a little less often, it looks each time. (The jitter takes up to
/// a fifth off.)
const CHECK: Duration = Duration::from_secs(13);
/// Nudges do not make it more often than this.
const PAUSE: Duration = Duration::from_millis(500);
/// The life that is asked for; the API server may give less.
const LIFE: u64 = 24 * 3600;

pub struct Errands {
    api: Arc<Api>,
    /// With the agent's own credential.
    own: Connection,
    /// With the one in the kubeconfig, as the plugin takes it.
    plugin: Connection,
    renew: Instant,
    check: Instant,
    backoff: Backoff,
    untaint: Untaint,
    /// What was said last about the plugin's token and about the kubeconfig.
    said: [Option<String>; 2],
    posting: Posting,
}

/// The answer to a TokenRequest.
#[derive(Deserialize)]
struct TokenRequest {
    #[serde(default)]
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    expiration_seconds: Option<u64>,
}

#[derive(Deserialize)]
struct Status {
    token: String,
}

impl Errands {
    /// `renew` is how long the plugin's token may stay.
    pub fn new(api: Arc<Api>, source: Source, renew: Duration) -> Errands {
        let kubeconfig = Source::Kubeconfig(api.settings.kubeconfig());
        let deadlines = Deadlines::each(PATIENCE);
        let now = Instant::now();
        Errands {
            own: Connection::new(source, USER_AGENT, deadlines),
            plugin: Connection::new(kubeconfig, USER_AGENT, deadlines),
            renew: now + renew,
            check: now,
            backoff: Backoff::default(),
            untaint: Untaint::of(&api.settings, now),
            said: [None, None],
            posting: Posting::default(),
            api,
        }
    }

    /// Runs for the rest of the process.
    pub fn run(mut self) {
        let mut nudged = false;
        loop {
            let now = Instant::now();
            if self.api.settings.plugin_account.is_some() && now >= self.renew {
                self.renew();
            }
            if nudged || now >= self.check {
                self.check();
            }
            self.post_events();
            self.posting.run(&self.api, &mut self.own);
            let verified = self.api.state().verified;
            let mut end = self.check;
            if self.api.settings.plugin_account.is_some() {
                end = end.min(self.renew);
            }
            if let Some(due) = self.untaint.look(&mut self.own, verified, Instant::now()) {
                end = end.min(due);
            }
            let event = self.api.pod_events().due();
            nudged = self.api.pause(event.map_or(end, |due| end.min(due)));
            if nudged {
                std::thread::sleep(PAUSE.saturating_sub(now.elapsed()));
            }
        }
    }

    /// Asks for a token of the plugin's account, bound to no pod.
    fn renew(&mut self) {
        let (Some(account), Some(namespace)) = (
            self.api.settings.plugin_account.clone(),
            namespace(&self.api.settings),
        ) else {
            self.renew = Instant::now() + self.backoff.lengthen();
            return;
        };
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFE},
        });
        let client = match self.own.client() {
            Ok(client) => client,
            // The token or the CA is missing, which the agent itself says.
            Err(_) => {
                self.renew = Instant::now() + self.backoff.lengthen();
                return;
            }
        };
        match client.exchange::<TokenRequest>(&path, &request) {
            Ok(answer) => self.take(answer, &account),
            Err(error) => {
                self.reached(error.is_answer());
                let wait = match error.code() {
                    Some(403 | 404) => self.api.settings.resync,
                    _ => self.backoff.lengthen(),
                };
                self.renew = Instant::now() + wait;
                self.say(0, Some(format!(
                    "there is no new token of account {account}, so the kubeconfig keeps its last one, or has the agent's: {error}"
                )));
            }
        }
    }

    fn take(&mut self, answer: TokenRequest, account: &str) {
        self.reached(true);
        self.backoff.reset();
        self.say(0, None);
        let text = answer.status.token.trim().to_owned();
        // The API server's clock may be another, but a life is as long by any clock.
        let seconds = answer.spec.expiration_seconds.unwrap_or(LIFE).min(LIFE);
        let life = Duration::from_secs(seconds.max(2));
        let ends = SystemTime::now() + life;
        let end = Claims::read(&text).and_then(|claims| claims.end());
        self.renew = Instant::now() + jitter(life / 2);
        self.api.state().token = Some(Token {
            text,
            end: end.map_or(ends, |end| end.max(ends)),
        });
        info!("The plugin has a new token of account {account} for {seconds} s");
        self.api.waker.wake();
    }

    /// Asks something cheap with the kubeconfig on the host.
    fn check(&mut self) {
        self.check = Instant::now() + jitter(CHECK.min(self.api.settings.resync));
        let Some(namespace) = namespace(&self.api.settings) else {
            return;
        };
        // A kubeconfig that cannot be read is the agent's to put right.
        let Ok(client) = self.plugin.client() else {
            return;
        };
        let Some(token) = self.plugin.token().map(str::to_owned) else {
            return;
        };
        // Answered from memory by the API server.
        let path = format!("/api/v1/namespaces/{namespace}?resourceVersion=0");
        let answer = match client.get::<IgnoredAny>(&path) {
            Ok(_) => Ok(()),
            Err(error) => match error.code() {
                Some(404) => Ok(()),
                Some(401 | 403) => Err(error),
                // Away, or with troubles of its own: what it said last still counts.
                _ => {
                    self.reached(error.is_answer());
                    self.say(1, Some(error.to_string()));
                    return;
                }
            },
        };
        self.reached(true);
        let code = answer.as_ref().err().and_then(kube::Error::code);
        let why = answer.err().map(|error| match code {
            Some(401) => format!("the API server refuses the token in the kubeconfig: {error}"),
            _ => format!("the token in the kubeconfig has not the rights it needs: {error}"),
        });
        self.say(1, None);
        let mut state = self.api.state();
        if code == Some(401) && state.token.as_ref().is_some_and(|own| own.text == token) {
            state.token = None;
            self.renew = Instant::now();
        }
        let answer = why.map_or(Ok(()), Err);
        let changed = match &state.checked {
            Some(checked) => checked.token != token || checked.answer != answer,
            None => true,
        };
        state.checked = Some(Checked { token, answer });
        drop(state);
        if changed {
            self.api.waker.wake();
        }
    }

    fn post_events(&mut self) {
        loop {
            let Some(message) = self.api.state().events.pop_front() else {
                return;
            };
            if let Err(error) = event::publish(&mut self.own, &self.api.settings, &message) {
                warn!("cannot post an Event: {error}");
            }
        }
    }

    fn reached(&self, reached: bool) {
        self.api.state().reached |= reached;
    }

    /// One line a change. `subject` is an index of `said`.
    fn say(&mut self, subject: usize, why: Option<String>) {
        let Some(said) = self.said.get_mut(subject) else {
            return;
        };
        match (&why, &said) {
            (Some(new), _) if Some(new) != said.as_ref() => warn!("{new}"),
            (None, Some(_)) => info!("the API server answers again"),
            _ => {}
        }
        *said = why;
    }
}

/// `whole`, or up to a fifth less, so that the nodes do not all ask at once.
fn jitter(whole: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1024;
    whole - whole / 5 * (random as u32) / 1024
}
