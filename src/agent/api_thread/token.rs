//! Requests tokens of the plugin's ServiceAccount (TokenRequest), and adopts the token that an
//! earlier agent requested.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tracing::info;

use super::State;
use super::token_check::TokenValidity;
use super::token_renewal::{LIFETIME_SECONDS, RENEWAL_PERCENT, adopted_renewal_wait};
use super::worker::{Worker, retry_after};
use crate::agent::api_history::TokenHistory;
use crate::agent::identity::{NO_NAMESPACE, agent_namespace};
use crate::agent::settings::Settings;
use crate::kube::claims::Claims;
use crate::kube::{self, FORBIDDEN, NOT_FOUND, kubeconfig};

/// Longest token that is used, in bytes. With a longer one, the head of a request would not fit
/// into 16 KiB.
const LONGEST_TOKEN: usize = 12 << 10;

#[derive(Clone)]
pub struct Token {
    pub text: String,
    /// Whether the API server rejected the token with HTTP 401.
    pub is_revoked: bool,
}

/// A token that an earlier agent requested.
pub struct AdoptedToken {
    pub token: Token,
    pub until_renewal: Duration,
}

impl AdoptedToken {
    /// Reads the token in the kubeconfig on the host. `None` unless the token belongs to the
    /// plugin's ServiceAccount and is valid at `now`.
    pub fn read(settings: &Settings, now: SystemTime) -> Option<AdoptedToken> {
        let account = settings.plugin_account.as_deref()?;
        let namespace = agent_namespace(settings)?;
        let text = kubeconfig::read(&settings.node.kubeconfig()).ok()?.token?;
        let claims = Claims::read(&text)?;
        if claims.account() != Some((&*namespace, account)) {
            return None;
        }
        let until_latest = claims.until_percent_of_lifetime(RENEWAL_PERCENT[1], now)?;
        let until_expiry = claims.expiry()?.duration_since(now).ok()?;
        let until_renewal = adopted_renewal_wait(until_latest, until_expiry);
        Some(AdoptedToken { token: Token { text, is_revoked: false }, until_renewal })
    }
}

/// What the TokenRequests so far have returned.
#[derive(Clone, Default)]
pub struct TokenRequestResults {
    /// The last token that was issued, or the adopted one.
    pub token: Option<Token>,
    /// Why the last TokenRequest failed.
    pub error: Option<String>,
}

/// A token that the API server has issued.
struct IssuedToken {
    text: String,
    lifetime_seconds: u64,
}

/// Why a TokenRequest failed.
struct RequestFailure {
    why: String,
    /// Time that an overloaded API server asks to wait, or zero.
    retry_after: Duration,
}

impl From<String> for RequestFailure {
    fn from(why: String) -> RequestFailure {
        RequestFailure { why, retry_after: Duration::ZERO }
    }
}

impl From<kube::Error> for RequestFailure {
    fn from(error: kube::Error) -> RequestFailure {
        let remedy = if error.is_status(403, FORBIDDEN) {
            "; grant the agent's ServiceAccount `create` on `serviceaccounts/token` of that account"
        } else if error.is_status(404, NOT_FOUND) {
            "; create that ServiceAccount"
        } else {
            ""
        };
        RequestFailure { why: format!("{error}{remedy}"), retry_after: retry_after(&error) }
    }
}

impl Worker {
    /// Requests a token of the plugin's ServiceAccount, and schedules the next request. Wakes the
    /// reconciler if there is a new token or a new failure.
    pub fn renew(&mut self) {
        let Some(account) = self.api.settings.plugin_account.clone() else { return };
        let requested = self.request_token(&account);
        let now = Instant::now();
        let mut state = self.api.state();
        match requested {
            Ok(issued) => {
                let seconds = issued.lifetime_seconds;
                state.record_issued_token(issued, now);
                info!("received a token of ServiceAccount {account}, valid for {seconds} s");
                self.api.pass_waker.wake();
            }
            Err(failure) => {
                let is_new = state.record_failed_request(failure, now);
                if is_new {
                    self.api.pass_waker.wake();
                }
            }
        }
    }

    /// Requests a token of the ServiceAccount `account`. The token is not bound to the agent's pod,
    /// because an upgrade replaces that pod. It is not bound to the Node either: a Node that
    /// registers again has a new UID, which would revoke the token while the pods of the node still
    /// run.
    fn request_token(&mut self, account: &str) -> Result<IssuedToken, RequestFailure> {
        let Some(namespace) = agent_namespace(&self.api.settings) else {
            return Err(NO_NAMESPACE.to_owned().into());
        };
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFETIME_SECONDS},
        });
        let client = self.own_connection.client().map_err(|error| error.to_string())?;
        let response = match client.post_and_decode::<Value>(&path, &request) {
            Ok(response) => response,
            Err(error) => {
                self.record_own_token(Some(&error));
                return Err(error.into());
            }
        };
        let text = response["status"]["token"].as_str().unwrap_or_default().trim();
        if !is_usable(text) {
            let why = "its token is missing, too long, or invalid in a request header";
            return Err(format!("unexpected response to the TokenRequest: {why}").into());
        }
        // Only a response with a token is one of the API server.
        self.record_own_token(None);
        let granted = response["spec"]["expirationSeconds"].as_u64().unwrap_or(LIFETIME_SECONDS);
        let lifetime_seconds = granted.min(LIFETIME_SECONDS);
        Ok(IssuedToken { text: text.to_owned(), lifetime_seconds })
    }
}

impl State {
    /// Records a new token, and schedules its renewal.
    fn record_issued_token(&mut self, issued: IssuedToken, now: Instant) {
        // The renewal is scheduled by the lifetime of the token and not by its expiry, because the
        // clocks of API server and node may differ.
        let lifetime = Duration::from_secs(issued.lifetime_seconds.max(2));
        self.schedule.schedule_renewal(now, lifetime);
        let token = Some(Token { text: issued.text, is_revoked: false });
        self.token_requests = TokenRequestResults { token, error: None };
        self.history.plugin_token = TokenHistory { accepted: Some(now), rejected: None };
    }

    /// Records the failure of a TokenRequest, and schedules the next one. Returns whether the last
    /// request did not fail in the same way.
    fn record_failed_request(&mut self, failure: RequestFailure, now: Instant) -> bool {
        // The expiry of the token does not have to be examined here: once the token has expired, the
        // next check finds it rejected, and schedules a TokenRequest.
        let has_valid_token =
            self.token_requests.token.is_some() && self.check.validity == TokenValidity::Accepted;
        self.schedule.retry_renewal(now, has_valid_token, failure.retry_after);
        let is_new = self.token_requests.error.as_ref() != Some(&failure.why);
        self.token_requests.error = Some(failure.why);
        is_new
    }
}

/// Returns whether the token can be sent in the header of a request.
fn is_usable(token: &str) -> bool {
    !token.is_empty()
        && token.len() <= LONGEST_TOKEN
        && token.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use testkit::api::Api as Server;

    use super::*;
    use crate::agent::api_thread::ApiHandle;
    use crate::agent::file_watch::FileWatch;
    use crate::kube::connection::AccessSource;

    fn plugin_account(variable: &str) -> Option<String> {
        match variable {
            "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT" => Some("plugin".to_owned()),
            "LINKERD_CNI_NAMESPACE" => Some("linkerd-cni".to_owned()),
            _ => None,
        }
    }

    /// A proxy in front of the API server accepts any token.
    #[test]
    fn only_a_response_with_a_token_shows_that_the_agents_own_token_is_valid() {
        let path = "/api/v1/namespaces/linkerd-cni/serviceaccounts/plugin/token";
        let settings = Arc::new(Settings::read(plugin_account).unwrap());
        for (response, is_accepted) in [
            (json!({"message": "no route"}), false),
            (json!({"kind": "Status", "status": "Success"}), false),
            (json!({"kind": "TokenRequest", "status": {"token": "issued"}}), true),
        ] {
            let server = Server::start();
            server.answer(path, 201, &response.to_string());
            let dir = tempfile::tempdir().unwrap();
            let kubeconfig = dir.path().join("kubeconfig");
            fs::write(&kubeconfig, server.kubeconfig()).unwrap();
            let waker = FileWatch::start().unwrap().waker;
            let api = ApiHandle::start(&settings, waker).unwrap();
            Worker::new(Arc::clone(&api), AccessSource::Kubeconfig(kubeconfig)).renew();
            assert_eq!(server.requests(), [format!("POST {path}")]);
            let accepted = api.history().own_token.accepted;
            assert_eq!(accepted.is_some(), is_accepted, "{response}");
        }
    }

    #[test]
    fn failed_token_requests_are_rarer_while_an_issued_token_is_accepted() {
        let settings = Arc::new(Settings::read(plugin_account).unwrap());
        for (is_issued, minutes) in [(true, 30), (false, 1)] {
            let waker = FileWatch::start().unwrap().waker;
            let api = ApiHandle::start(&settings, waker).unwrap();
            let missing = AccessSource::Kubeconfig("/missing".into());
            let mut worker = Worker::new(Arc::clone(&api), missing);
            let issued = Token { text: "issued".into(), is_revoked: false };
            api.state().token_requests.token = if is_issued { Some(issued) } else { None };
            // The API server accepts the token on the host. If no token was issued, that token may
            // belong to an account that is being deleted, so a new one is requested soon.
            api.state().check.validity = TokenValidity::Accepted;
            for _ in 0..20 {
                worker.renew();
            }
            let wait = api.state().schedule.renewal_due.unwrap() - Instant::now();
            let longest = Duration::from_secs(60 * minutes);
            assert!((longest / 2..=longest).contains(&wait), "{is_issued}: {wait:?}");
        }
    }
}
