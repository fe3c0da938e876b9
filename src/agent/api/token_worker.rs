//! The thread that talks to the API server: renews and checks the plugin's token, posts Events and
//! removes the startup taint.

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

/// Time-out of each phase of a request.
const PHASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Shortest time between two iterations of the loop, however often other threads wake it.
const ITERATION: Duration = Duration::from_millis(50);
/// Longest Retry-After that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(600);
/// Longest token that is used, in bytes. A request's head has to fit into 16 KiB.
const LONGEST_TOKEN: usize = 12 << 10;
/// Lifetime requested for the plugin's token, in seconds. The API server may grant less.
const LIFETIME: u64 = 24 * 3600;

/// State of the thread.
pub struct TokenWorker {
    api: Arc<Api>,
    /// Connection with the agent's own token.
    own: Connection,
    /// Connection with the kubeconfig on the host, as the plugin connects.
    plugin: Connection,
    schedule: Schedule,
    untaint: Untaint,
    posting: Posting,
}

/// Response to a TokenRequest.
#[derive(Deserialize)]
struct TokenRequest {
    #[serde(default)]
    spec: TokenRequestSpec,
    status: TokenRequestStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TokenRequestSpec {
    expiration_seconds: Option<u64>,
}

#[derive(Deserialize)]
struct TokenRequestStatus {
    token: String,
}

impl TokenWorker {
    /// Prepares the thread. `renewal` is the time until the first TokenRequest, if the plugin has a
    /// ServiceAccount of its own.
    pub fn new(api: Arc<Api>, source: Source, renewal: Duration) -> TokenWorker {
        let kubeconfig = Source::Kubeconfig(api.settings.kubeconfig());
        let deadlines = Deadlines::each(PHASE_TIMEOUT);
        let now = Instant::now();
        let renewal = api.settings.plugin_account.as_ref().map(|_| renewal);
        TokenWorker {
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
            let node_ready = self.api.state().node_ready;
            let mut end = self.schedule.next();
            if let Some(due) = self.untaint.run(&mut self.own, node_ready, Instant::now()) {
                end = end.min(due);
            }
            let event = self.api.pod_events().due();
            if self.api.pause(event.map_or(end, |due| end.min(due))) {
                std::thread::sleep(ITERATION.saturating_sub(begin.elapsed()));
            }
        }
    }

    /// Requests a token of the plugin's ServiceAccount. The token is not bound to the agent's pod,
    /// because an upgrade replaces that pod. It is not bound to the Node either: a Node that
    /// registers again has a new UID, which would revoke the token while its pods still run.
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
            "spec": {"expirationSeconds": LIFETIME},
        });
        let client = match self.own.client() {
            Ok(client) => client,
            Err(error) => {
                self.not_renewed(error.to_string(), Duration::ZERO);
                return;
            }
        };
        match client.exchange::<TokenRequest>(&path, &request) {
            Ok(response) => self.renewed(response, &account),
            Err(error) => {
                self.reached(error.is_answer());
                match token::denial(error.code(), &account, &namespace) {
                    Some(why) => self.denied(why),
                    None => self.not_renewed(error.to_string(), retry_after(&error)),
                }
            }
        }
    }

    /// Takes the token from a successful TokenRequest.
    fn renewed(&mut self, response: TokenRequest, account: &str) {
        self.reached(true);
        let text = response.status.token.trim().to_owned();
        if let Some(problem) = problem(&text) {
            let why = format!("unexpected response to the TokenRequest: {problem}");
            self.not_renewed(why, Duration::ZERO);
            return;
        }
        // The API server's clock may differ from the node's. A lifetime is the same by both clocks.
        let seconds = response.spec.expiration_seconds;
        let seconds = seconds.unwrap_or(LIFETIME).min(LIFETIME);
        let lifetime = Duration::from_secs(seconds.max(2));
        let ends = SystemTime::now() + lifetime;
        let end = Claims::read(&text).and_then(|claims| claims.end());
        self.schedule.renewed(Instant::now(), lifetime);
        let mut state = self.api.state();
        state.grant.token =
            Some(Token { text, end: end.map_or(ends, |end| end.max(ends)), revoked: false });
        state.grant.denied = None;
        state.grant.error = None;
        drop(state);
        info!("The plugin has a new token of ServiceAccount {account}, valid for {seconds} s");
        self.api.waker.wake();
    }

    /// Records that the API server denied the TokenRequest with HTTP 403 or 404.
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

    /// Records that the TokenRequest failed for another reason, which says nothing about the
    /// agent's permissions.
    fn not_renewed(&mut self, why: String, retry_after: Duration) {
        let mut state = self.api.state();
        let changed = state.grant.error.as_ref() != Some(&why);
        state.grant.error = Some(why);
        drop(state);
        self.renew_later(retry_after, changed);
    }

    /// Schedules the next TokenRequest, and wakes the reconciler if the reason `changed`.
    fn renew_later(&mut self, retry_after: Duration, changed: bool) -> Fallback {
        let fallback = self.api.state().grant.fallback(SystemTime::now());
        self.schedule.not_renewed(Instant::now(), fallback, retry_after);
        if changed {
            self.api.waker.wake();
        }
        fallback
    }

    /// Checks the token in the kubeconfig on the host with a cheap request.
    fn check(&mut self) {
        // The reconciler corrects a kubeconfig that cannot be read.
        let client = self.plugin.client().ok();
        let token = self.plugin.token().map(str::to_owned);
        let (Some(client), Some(token), Some(namespace)) =
            (client, token, namespace(&self.api.settings))
        else {
            self.schedule.nothing_to_check(Instant::now());
            return;
        };
        // With `resourceVersion=0` the API server responds from its cache.
        let path = format!("/api/v1/namespaces/{namespace}?resourceVersion=0");
        match client.get::<IgnoredAny>(&path) {
            Ok(_) => self.checked(token, Ok(())),
            Err(error) => match error.code() {
                Some(404) => self.checked(token, Ok(())),
                Some(401) => self.checked(token, Err((401, error))),
                Some(403) => self.checked(token, Err((403, error))),
                // Unreachable or failing: the result of the last check stays valid.
                _ => self.check_failed(&error),
            },
        }
    }

    /// Records whether the API server accepts the token in the kubeconfig. An error has the HTTP
    /// status, 401 or 403.
    fn checked(&mut self, token: String, result: Result<(), (u16, kube::Error)>) {
        let now = Instant::now();
        let check_result = match result {
            Ok(()) => CheckResult::Accepted,
            Err(_) => CheckResult::Refused,
        };
        self.schedule.checked(now, check_result, Duration::ZERO);
        let is_revoked = matches!(result, Err((401, _)));
        let answer = result.map_err(|(code, error)| match code {
            401 => {
                format!("the API server rejected the token in the kubeconfig (HTTP 401): {error}")
            }
            _ => {
                format!("a request with the token in the kubeconfig was denied (HTTP 403): {error}")
            }
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
        let before =
            state.checked.replace(Checked { token: token.clone(), answer: answer.clone() });
        changed |= before.is_none_or(|before| before.token != token || before.answer != answer);
        drop(state);
        if changed {
            self.api.waker.wake();
        }
    }

    /// Records a check without a usable response.
    fn check_failed(&mut self, error: &kube::Error) {
        self.schedule.checked(Instant::now(), CheckResult::Unknown, retry_after(error));
        self.reached(error.is_answer());
        let why = error.to_string();
        let before = self.api.state().check_error.replace(why.clone());
        if before.as_ref() != Some(&why) {
            self.api.waker.wake();
        }
    }

    /// Posts the queued Events on the agent's own pod. A failed Event is not retried.
    fn post_events(&mut self) {
        loop {
            let Some(message) = self.api.state().events.pop_front() else {
                return;
            };
            if let Err(error) = event::publish(&mut self.own, &self.api.settings, &message) {
                warn!("cannot post an Event on the agent's pod: {error}");
            }
        }
    }

    /// Remembers that the API server has responded, if `reached`.
    fn reached(&self, reached: bool) {
        self.api.state().reached |= reached;
    }
}

/// Why `token` must not replace the one that the plugin has.
fn problem(token: &str) -> Option<&'static str> {
    match token.len() {
        0 => Some("it has no token"),
        1..=LONGEST_TOKEN if token.bytes().all(|byte| byte.is_ascii_graphic()) => None,
        _ => Some("its token does not fit into a request header"),
    }
}

/// Time that the API server asks clients to wait (Retry-After), bounded.
fn retry_after(error: &kube::Error) -> Duration {
    match error.retry() {
        Retry::After(wait) => wait.min(LONGEST_RETRY_AFTER),
        _ => Duration::ZERO,
    }
}
