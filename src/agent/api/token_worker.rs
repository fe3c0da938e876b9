//! The thread that talks to the API server.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tracing::{info, warn};

use super::claims::Claims;
use super::event;
use super::posting::Posting;
use super::schedule::{CheckResult, Schedule};
use super::token::{self, Fallback, Token};
use super::untaint::Untaint;
use super::{Api, Checked, USER_AGENT, namespace};
use crate::kube::connection::{Connection, Source};
use crate::kube::retry::Retry;
use crate::kube::{self, Deadlines};

/// For each phase of a request.
const PATIENCE: Duration = Duration::from_secs(3);
/// Shortest time from one turn of the loop to the next, however often it is nudged.
const TURN: Duration = Duration::from_millis(50);
/// Longest Retry-After that is followed.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);
/// Longest token that is used, in bytes. A request's head has to fit into 16 KiB.
const LONGEST_TOKEN: usize = 12 << 10;
/// The life that is asked for; the API server may give less.
const LIFE: u64 = 24 * 3600;

pub struct Errands {
    api: Arc<Api>,
    /// With the agent's own credential.
    own: Connection,
    /// With the one in the kubeconfig, as the plugin takes it.
    plugin: Connection,
    schedule: Schedule,
    untaint: Untaint,
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
    /// `renewal` is how long the plugin's token may stay.
    pub fn new(api: Arc<Api>, source: Source, renewal: Duration) -> Errands {
        let kubeconfig = Source::Kubeconfig(api.settings.kubeconfig());
        let deadlines = Deadlines::each(PATIENCE);
        let now = Instant::now();
        let renewal = api.settings.plugin_account.as_ref().map(|_| renewal);
        Errands {
            own: Connection::new(source, USER_AGENT, deadlines),
            plugin: Connection::new(kubeconfig, USER_AGENT, deadlines),
            schedule: Schedule::new(now, renewal),
            untaint: Untaint::of(&api.settings, now),
            posting: Posting::default(),
            api,
        }
    }

    /// Runs for the rest of the process.
    pub fn run(mut self) {
        loop {
            let begin = Instant::now();
            let reasons = self.api.check_reasons();
            if reasons.kubeconfig_changed {
                self.schedule.kubeconfig_changed(begin);
            }
            if reasons.record_refused {
                self.schedule.record_refused(begin);
            }
            if self.schedule.is_renewal_due(begin) {
                self.renew();
            }
            if self.schedule.is_check_due(Instant::now()) {
                self.check();
            }
            self.post_events();
            self.posting.run(&self.api, &mut self.own);
            let verified = self.api.state().verified;
            let mut end = self.schedule.next();
            if let Some(due) = self.untaint.look(&mut self.own, verified, Instant::now()) {
                end = end.min(due);
            }
            let event = self.api.pod_events().due();
            if self.api.pause(event.map_or(end, |due| end.min(due))) {
                std::thread::sleep(TURN.saturating_sub(begin.elapsed()));
            }
        }
    }

    /// Asks for a token of the plugin's account. The token is bound neither to the agent's pod,
    /// which an upgrade replaces, nor to the Node, as a Node that registers again has another
    /// UID, which would end the token of a node that still runs pods.
    fn renew(&mut self) {
        let Some(account) = self.api.settings.plugin_account.clone() else {
            return;
        };
        let Some(namespace) = namespace(&self.api.settings) else {
            let why = "the agent's namespace is unknown: set LINKERD_CNI_NAMESPACE";
            self.not_renewed(why.into(), Duration::ZERO);
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
            Err(error) => {
                self.not_renewed(error.to_string(), Duration::ZERO);
                return;
            }
        };
        match client.exchange::<TokenRequest>(&path, &request) {
            Ok(answer) => self.take(answer, &account),
            Err(error) => {
                self.reached(error.is_answer());
                match token::denial(error.code(), &account, &namespace) {
                    Some(why) => self.denied(why),
                    None => self.not_renewed(error.to_string(), retry_after(&error)),
                }
            }
        }
    }

    fn take(&mut self, answer: TokenRequest, account: &str) {
        self.reached(true);
        let text = answer.status.token.trim().to_owned();
        if let Some(problem) = problem(&text) {
            let why = format!("the API server answered the TokenRequest {problem}");
            self.not_renewed(why, Duration::ZERO);
            return;
        }
        // The API server's clock may be another, but a life is as long by any clock.
        let seconds = answer.spec.expiration_seconds.unwrap_or(LIFE).min(LIFE);
        let life = Duration::from_secs(seconds.max(2));
        let ends = SystemTime::now() + life;
        let end = Claims::read(&text).and_then(|claims| claims.end());
        self.schedule.renewed(Instant::now(), life);
        let mut state = self.api.state();
        state.grant.token = Some(Token {
            text,
            end: end.map_or(ends, |end| end.max(ends)),
            revoked: false,
        });
        state.grant.denied = None;
        state.grant.error = None;
        drop(state);
        info!("The plugin has a new token of account {account} for {seconds} s");
        self.api.waker.wake();
    }

    /// The API server answered 403 or 404 to the TokenRequest.
    fn denied(&mut self, why: String) {
        let mut state = self.api.state();
        let changed = state.grant.denied.as_ref() != Some(&why) || state.grant.error.is_some();
        state.grant.denied = Some(why);
        state.grant.error = None;
        drop(state);
        if self.renew_later(Duration::ZERO, changed) == Fallback::AgentsToken {
            self.schedule.token_known(Instant::now());
        }
    }

    /// The TokenRequest failed for another reason, which says nothing about its rights.
    fn not_renewed(&mut self, why: String, retry_after: Duration) {
        let mut state = self.api.state();
        let changed = state.grant.error.as_ref() != Some(&why);
        state.grant.error = Some(why);
        drop(state);
        self.renew_later(retry_after, changed);
    }

    fn renew_later(&mut self, retry_after: Duration, changed: bool) -> Fallback {
        let fallback = self.api.state().grant.fallback(SystemTime::now());
        self.schedule
            .not_renewed(Instant::now(), fallback, retry_after);
        if changed {
            self.api.waker.wake();
        }
        fallback
    }

    /// Asks something cheap with the kubeconfig on the host.
    fn check(&mut self) {
        // A kubeconfig that cannot be read is the reconciler's to correct.
        let client = self.plugin.client().ok();
        let token = self.plugin.token().map(str::to_owned);
        let (Some(client), Some(token), Some(namespace)) =
            (client, token, namespace(&self.api.settings))
        else {
            self.schedule.nothing_to_check(Instant::now());
            return;
        };
        // Answered from memory by the API server.
        let path = format!("/api/v1/namespaces/{namespace}?resourceVersion=0");
        match client.get::<IgnoredAny>(&path) {
            Ok(_) => self.answered(token, Ok(())),
            Err(error) => match error.code() {
                Some(404) => self.answered(token, Ok(())),
                Some(401) => self.answered(token, Err((401, error))),
                Some(403) => self.answered(token, Err((403, error))),
                // Unreachable, or in trouble: what it said last still counts.
                _ => self.unanswered(&error),
            },
        }
    }

    /// The API server accepts the token in the kubeconfig, or refuses it with 401 or 403.
    fn answered(&mut self, token: String, result: Result<(), (u16, kube::Error)>) {
        let now = Instant::now();
        let said = match result {
            Ok(()) => CheckResult::Accepted,
            Err(_) => CheckResult::Refused,
        };
        self.schedule.checked(now, said, Duration::ZERO);
        let is_revoked = matches!(result, Err((401, _)));
        let answer = result.map_err(|(code, error)| match code {
            401 => format!("the API server refuses the token in the kubeconfig: {error}"),
            _ => format!("the token in the kubeconfig has not the rights it needs: {error}"),
        });
        let mut state = self.api.state();
        state.reached = true;
        let mut changed = state.check_error.take().is_some();
        let issued = state.grant.token.as_mut();
        if let Some(issued) = issued.filter(|issued| issued.text == token) {
            if is_revoked && !issued.revoked {
                self.schedule.revoked(now);
            }
            issued.revoked = is_revoked;
        }
        let before = state.checked.replace(Checked {
            token: token.clone(),
            answer: answer.clone(),
        });
        changed |= before.is_none_or(|before| before.token != token || before.answer != answer);
        drop(state);
        if changed {
            self.api.waker.wake();
        }
    }

    /// The check brought no word about the token.
    fn unanswered(&mut self, error: &kube::Error) {
        self.schedule
            .checked(Instant::now(), CheckResult::Unknown, retry_after(error));
        self.reached(error.is_answer());
        let why = error.to_string();
        let before = self.api.state().check_error.replace(why.clone());
        if before.as_ref() != Some(&why) {
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
}

/// Why `token` must not replace the one that the plugin has.
fn problem(token: &str) -> Option<&'static str> {
    match token.len() {
        0 => Some("without a token"),
        1..=LONGEST_TOKEN if token.bytes().all(|byte| byte.is_ascii_graphic()) => None,
        _ => Some("with a token that no request can carry"),
    }
}

/// How long the API server wants to be left alone.
fn retry_after(error: &kube::Error) -> Duration {
    match error.retry() {
        Retry::After(wait) => wait.min(LONGEST_RETRY_AFTER),
        _ => Duration::ZERO,
    }
}
