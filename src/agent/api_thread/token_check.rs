//! Checks the token in the kubeconfig on the host. Before each check, resolves the API server's
//! name, if the settings have a name.

use std::mem;
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;

use super::State;
use super::worker::{Worker, retry_after};
use crate::agent::identity::agent_namespace;
use crate::kube::{self, FORBIDDEN, NOT_FOUND, UNAUTHORIZED};

/// Longest time between two periodic checks of a token that the API server accepts. Jitter
/// shortens it by up to two fifths, so that checks are 6 to 10 minutes apart.
pub const CHECK_PERIOD: Duration = Duration::from_secs(600);
/// Shortest time between two checks because the plugin reported that the API server rejected its
/// token or is unreachable. The API server caches a token review for 10 s, so an earlier check
/// could find a revoked token still accepted.
pub const PLUGIN_FAILURE_GAP: Duration = Duration::from_secs(12);
/// Shortest time between two checks because the kubeconfig changed.
pub const KUBECONFIG_CHANGE_GAP: Duration = Duration::from_millis(500);
/// Shortest time between two changes of the API server's address in the kubeconfig. Without this
/// limit, the address could change at every check: in an outage the API server is unreachable at
/// each of its addresses, and a DNS server may respond with another address each time.
const ADDRESS_GAP: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCheckResult {
    Accepted,
    /// HTTP 401 or 403 of the API server.
    Rejected,
    /// No response, or a response that says nothing about the token.
    Unknown,
}

/// What is known about the token in the kubeconfig on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenStatus {
    pub token: String,
    pub validity: TokenValidity,
    /// Whether any check, perhaps of an earlier token, has had a usable response.
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
    /// HTTP 401 or 403 of the API server, with the error.
    Rejected(String),
}

impl TokenValidity {
    /// Reads the response to a request with the token. `error` is `None` if the response is the
    /// requested object. Only a response of the API server itself says anything about the token: a
    /// proxy in front of it responds with the same status codes, 200 included.
    fn from_response(error: Option<&kube::Error>) -> TokenValidity {
        let Some(error) = error else { return TokenValidity::Accepted };
        if error.is_status(404, NOT_FOUND) {
            TokenValidity::Accepted
        } else if error.is_status(401, UNAUTHORIZED) {
            TokenValidity::Rejected(format!(
                "the API server rejected the token in the kubeconfig (HTTP 401): {error}"
            ))
        } else if error.is_status(403, FORBIDDEN) {
            TokenValidity::Rejected(format!(
                "a request with the token in the kubeconfig was denied (HTTP 403): {error}"
            ))
        } else {
            TokenValidity::Unknown
        }
    }
}

impl Worker {
    /// Checks the token in the kubeconfig on the host. Wakes the reconciler if the result is new.
    pub fn check_token(&mut self) {
        self.api.state().kubeconfig_written = false;
        // If the kubeconfig is unreadable or has an old address, no request is sent: the reconciler
        // has to correct the kubeconfig first.
        let mut checked = None;
        if self.resolve_name() {
            checked = self.request_namespace();
        }
        let now = Instant::now();
        let mut state = self.api.state();
        let Some(checked) = checked else {
            state.schedule.schedule_next_check(now, TokenCheckResult::Unknown, Duration::ZERO);
            return;
        };
        self.is_unreachable = match &checked.error {
            Some(error) => !error.is_response(),
            None => false,
        };
        let is_new = state.record_check(checked, now);
        if is_new {
            self.api.pass_waker.wake();
        }
    }

    /// Resolves the API server's name, if the settings have a name. Wakes the reconciler if the
    /// result is new. Returns whether the kubeconfig on the host has the right address. If it has
    /// not, a check would only show that the old address is wrong.
    fn resolve_name(&mut self) -> bool {
        let Some(name) = self.api.settings.api_name() else { return true };
        if let Some(changed_at) = self.address_changed
            && changed_at.elapsed() < ADDRESS_GAP
        {
            return true;
        }
        let current = self.api.server_address();
        let was_unreachable = mem::take(&mut self.is_unreachable);
        let found = current.resolve_again(name, was_unreachable);
        let is_same_address = found.address == current.address;
        if !is_same_address && current.address.is_some() {
            self.address_changed = Some(Instant::now());
        }
        if found != current {
            self.api.state().server_address = found;
            self.api.pass_waker.wake();
        }
        is_same_address
    }

    /// Reads the agent's Namespace with the token in the kubeconfig on the host. A response that is
    /// not that Namespace is an error. Returns `None` if the kubeconfig is unreadable.
    fn request_namespace(&mut self) -> Option<CheckedToken> {
        let client = self.plugin_connection.client().ok()?;
        let token = self.plugin_connection.token()?.to_owned();
        let namespace = agent_namespace(&self.api.settings)?;
        // `resourceVersion=0` lets the API server respond from its cache, which costs it less.
        let path = format!("/api/v1/namespaces/{namespace}?resourceVersion=0");
        let response = client.get_object::<IgnoredAny>(&path, "Namespace");
        Some(CheckedToken { token, error: response.err() })
    }
}

/// A token, and the response to a request with it.
struct CheckedToken {
    token: String,
    /// `None` if the request succeeded.
    error: Option<kube::Error>,
}

impl State {
    /// Records a check of the token in the kubeconfig, and schedules the next requests. Returns
    /// whether the check has changed what is known about the token.
    fn record_check(&mut self, checked: CheckedToken, now: Instant) -> bool {
        let error = checked.error.as_ref();
        let validity = TokenValidity::from_response(error);
        self.history.plugin_token.record(error, now);
        self.schedule_check(&validity, error, now);
        self.replace_if_revoked(&checked, &validity, now);
        let before = self.check.clone();
        self.check = match validity {
            // The API server was unreachable or failed, so the result of the last check stays
            // valid.
            TokenValidity::Unknown => {
                TokenStatus { error: error.map(ToString::to_string), ..before.clone() }
            }
            validity => {
                TokenStatus { token: checked.token, validity, responded: true, error: None }
            }
        };
        self.check != before
    }

    /// Schedules the next check after a check that has shown this `validity`. `error` is `None` if
    /// the request of the check succeeded.
    fn schedule_check(
        &mut self,
        validity: &TokenValidity,
        error: Option<&kube::Error>,
        now: Instant,
    ) {
        let result = if self.server_address.error.is_some() {
            // The name could not be resolved. Each check resolves the name again, so the result
            // that lets the next check follow soon is recorded.
            TokenCheckResult::Unknown
        } else {
            match validity {
                TokenValidity::Unknown => TokenCheckResult::Unknown,
                TokenValidity::Accepted => TokenCheckResult::Accepted,
                TokenValidity::Rejected(_) => TokenCheckResult::Rejected,
            }
        };
        let wait = error.map_or(Duration::ZERO, retry_after);
        self.schedule.schedule_next_check(now, result, wait);
        if self.kubeconfig_written {
            self.schedule.check_changed_kubeconfig(now);
        }
    }

    /// Schedules a request for another token if the API server rejects the token with HTTP 401 and
    /// the token is the one that it issued last.
    fn replace_if_revoked(
        &mut self,
        checked: &CheckedToken,
        validity: &TokenValidity,
        now: Instant,
    ) {
        let Some(issued) = &mut self.token_requests.token else { return };
        if issued.text != checked.token || *validity == TokenValidity::Unknown {
            return;
        }
        let was_revoked = issued.is_revoked;
        issued.is_revoked = match &checked.error {
            Some(error) => error.is_status(401, UNAUTHORIZED),
            None => false,
        };
        if issued.is_revoked && !was_revoked {
            self.schedule.replace_revoked_token(now);
        }
    }
}
