//! Checks the token in the kubeconfig on the host, and resolves the API server's name before.

use std::mem;
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;

use super::State;
use super::worker::{Worker, retry_after};
use crate::agent::identity::namespace;
use crate::kube;

/// Longest time between two periodic checks of a token that the API server accepts. Jitter
/// shortens it by up to two fifths, so that checks are 6 to 10 minutes apart.
pub const CHECK_PERIOD: Duration = Duration::from_secs(600);
/// Shortest time between two checks because the plugin reported that the API server rejected its
/// token or is unreachable. The API server caches a token review for 10 s, so an earlier check
/// could find a revoked token still accepted.
pub const PLUGIN_FAILURE_GAP: Duration = Duration::from_secs(12);
/// Shortest time between two checks because the kubeconfig changed.
pub const KUBECONFIG_CHANGE_GAP: Duration = Duration::from_millis(500);
/// Time between two changes of the address. An outage of the API server lasts at each address, and
/// a DNS server may respond with another one each time.
const ADDRESS_GAP: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCheckResult {
    Accepted,
    /// HTTP 401 or 403.
    Rejected,
    /// No response, or a response that says nothing about the token.
    Unknown,
}

/// What is known about the token in the kubeconfig on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenStatus {
    pub token: String,
    pub validity: TokenValidity,
    /// Whether a check of any token has had a usable response.
    pub responded: bool,
    /// Why the last check had no usable response.
    pub error: Option<String>,
}

/// What the last usable response of the API server shows of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenValidity {
    #[default]
    Unknown,
    Accepted,
    /// HTTP 401 or 403, with the error.
    Rejected(String),
}

impl TokenValidity {
    /// Reads a response to a request with the token. `error`: why the request failed.
    fn from_response(error: Option<&kube::Error>) -> TokenValidity {
        let Some(error) = error else { return TokenValidity::Accepted };
        match error.code() {
            Some(404) => TokenValidity::Accepted,
            Some(401) => TokenValidity::Rejected(format!(
                "the API server rejected the token in the kubeconfig (HTTP 401): {error}"
            )),
            Some(403) => TokenValidity::Rejected(format!(
                "a request with the token in the kubeconfig was denied (HTTP 403): {error}"
            )),
            _ => TokenValidity::Unknown,
        }
    }
}

impl Worker {
    /// Checks the token in the kubeconfig on the host. Wakes the reconciler if the result is new.
    pub fn check_token(&mut self) {
        self.api.state().kubeconfig_written = false;
        // A kubeconfig with an old address, or that is unreadable, is not checked: the reconciler
        // corrects it first.
        let answer = if self.resolve_name() { self.request_namespace() } else { None };
        let (mut guard, now) = (self.api.state(), Instant::now());
        let state = &mut *guard;
        let Some((token, response)) = answer else {
            state.schedule.check_done(now, TokenCheckResult::Unknown, Duration::ZERO);
            return;
        };
        let error = response.as_ref().err();
        self.is_unreachable = error.is_some_and(|error| !error.is_response());
        let validity = TokenValidity::from_response(error);
        state.history.plugin_token.record(error, now);
        state.schedule_check(&validity, error, now);
        state.record_revocation(&token, error, &validity, now);
        let check = match validity {
            // The API server was unreachable or failed: the result of the last check stays valid.
            TokenValidity::Unknown => {
                TokenStatus { error: error.map(ToString::to_string), ..state.check.clone() }
            }
            validity => TokenStatus { token, validity, responded: true, error: None },
        };
        if state.check != check {
            state.check = check;
            self.api.waker.wake();
        }
    }

    /// Resolves the API server's name, if the settings have one. Wakes the reconciler if the result
    /// is new. Returns whether the address on the host is current, and so is to be checked.
    fn resolve_name(&mut self) -> bool {
        let Some(name) = self.api.settings.api_name() else { return true };
        if self.address_changed.is_some_and(|at| at.elapsed() < ADDRESS_GAP) {
            return true;
        }
        let current = self.api.server_address();
        let found = current.resolve_again(name, mem::take(&mut self.is_unreachable));
        let is_same = found.address == current.address;
        if !is_same && current.address.is_some() {
            self.address_changed = Some(Instant::now());
        }
        if found != current {
            self.api.state().server_address = found;
            self.api.waker.wake();
        }
        is_same
    }

    /// Sends a request with the token in the kubeconfig on the host. Returns the token and the
    /// response. `None`: the kubeconfig is unreadable.
    fn request_namespace(&mut self) -> Option<(String, Result<IgnoredAny, kube::Error>)> {
        let client = self.plugin.client().ok()?;
        let token = self.plugin.token()?.to_owned();
        let namespace = namespace(&self.api.settings)?;
        // With `resourceVersion=0` the API server responds from its cache.
        let path = format!("/api/v1/namespaces/{namespace}?resourceVersion=0");
        Some((token, client.get(&path)))
    }
}

impl State {
    /// Schedules the next check after a check with this result. `error`: why its request failed.
    fn schedule_check(
        &mut self,
        validity: &TokenValidity,
        error: Option<&kube::Error>,
        now: Instant,
    ) {
        let result = if self.server_address.error.is_some() {
            // The next check comes soon, because each check resolves the name again.
            TokenCheckResult::Unknown
        } else {
            match validity {
                TokenValidity::Unknown => TokenCheckResult::Unknown,
                TokenValidity::Accepted => TokenCheckResult::Accepted,
                TokenValidity::Rejected(_) => TokenCheckResult::Rejected,
            }
        };
        self.schedule.check_done(now, result, error.map_or(Duration::ZERO, retry_after));
        if self.kubeconfig_written {
            self.schedule.kubeconfig_changed(now);
        }
    }

    /// Requests another token if the API server rejects `token` with HTTP 401, and has issued it to
    /// this agent.
    fn record_revocation(
        &mut self,
        token: &str,
        error: Option<&kube::Error>,
        validity: &TokenValidity,
        now: Instant,
    ) {
        let Some(issued) = &mut self.token_requests.token else { return };
        if issued.text != token || *validity == TokenValidity::Unknown {
            return;
        }
        let was_revoked = issued.revoked;
        issued.revoked = error.and_then(kube::Error::code) == Some(401);
        if issued.revoked && !was_revoked {
            self.schedule.revoked(now);
        }
    }
}
