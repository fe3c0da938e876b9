//! Requests tokens of the plugin's ServiceAccount (TokenRequest).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracing::info;

use super::State;
use super::worker::{Worker, retry_after};
use crate::agent::api_history::TokenHistory;
use crate::agent::identity::{NO_NAMESPACE, namespace};
use crate::kube;

/// Longest token that is used, in bytes. A request's head has to fit into 16 KiB.
const LONGEST_TOKEN: usize = 12 << 10;
/// Lifetime requested for the plugin's token, in seconds. The API server may grant less.
const LIFETIME: u64 = 24 * 3600;

#[derive(Clone)]
pub struct Token {
    pub text: String,
    /// The API server rejected the token with HTTP 401.
    pub revoked: bool,
}

#[derive(Clone, Default)]
pub struct TokenRequestResults {
    pub token: Option<Token>,
    pub error: Option<String>,
}

/// Describes why a TokenRequest failed, with the remedy if the API server denied it.
fn describe(error: &kube::Error) -> String {
    let remedy = match error.code() {
        Some(403) => {
            "; grant the agent's ServiceAccount `create` on `serviceaccounts/token` of that account"
        }
        Some(404) => "; create that ServiceAccount",
        _ => "",
    };
    format!("{error}{remedy}")
}

impl Worker {
    /// Requests a token of the plugin's ServiceAccount, and schedules the next request. Wakes the
    /// reconciler if there is a new token or a new failure.
    pub fn renew(&mut self) {
        let Some(account) = self.api.settings.plugin_account.clone() else { return };
        let requested = self.request_token(&account);
        let (mut guard, now) = (self.api.state(), Instant::now());
        let State { token_requests, schedule, check, history, .. } = &mut *guard;
        match requested {
            Ok((text, seconds)) => {
                // Uses the lifetime, not the expiry: the clocks of API server and node may differ.
                schedule.renewed(now, Duration::from_secs(seconds.max(2)));
                let token = Some(Token { text, revoked: false });
                *token_requests = TokenRequestResults { token, error: None };
                history.plugin_token = TokenHistory { accepted: Some(now), rejected: None };
                info!("received a token of ServiceAccount {account}, valid for {seconds} s");
            }
            Err((why, retry_after)) => {
                // An issued token that expires is rejected in the next check, which causes a
                // request.
                let is_accepted = token_requests.token.is_some() && check.result == Some(Ok(()));
                schedule.not_renewed(now, is_accepted, retry_after);
                let is_known = token_requests.error.as_ref() == Some(&why);
                token_requests.error = Some(why);
                if is_known {
                    return;
                }
            }
        }
        self.api.waker.wake();
    }

    /// Returns a token and its lifetime in seconds. Fails with the reason, and the time that an
    /// overloaded API server asks to wait. The token is not bound to the agent's pod, which an
    /// upgrade replaces. It is not bound to the Node either: a Node that registers again has a new
    /// UID, which would revoke the token while its pods still run.
    fn request_token(&mut self, account: &str) -> Result<(String, u64), (String, Duration)> {
        let failed = |why: String| (why, Duration::ZERO);
        let namespace = namespace(&self.api.settings).ok_or_else(|| failed(NO_NAMESPACE.into()))?;
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFETIME},
        });
        let client = self.own.client().map_err(|error| failed(error.to_string()))?;
        let response = client.post_and_decode::<Value>(&path, &request);
        self.record_own(response.as_ref().err());
        let response = response.map_err(|error| (describe(&error), retry_after(&error)))?;
        let token = response["status"]["token"].as_str().unwrap_or_default().trim();
        let is_usable = (1..=LONGEST_TOKEN).contains(&token.len())
            && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_usable {
            let why = "its token is missing, too long, or invalid in a request header";
            return Err(failed(format!("unexpected response to the TokenRequest: {why}")));
        }
        let seconds = response["spec"]["expirationSeconds"].as_u64();
        Ok((token.to_owned(), seconds.unwrap_or(LIFETIME).min(LIFETIME)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::agent::api_thread::ApiHandle;
    use crate::agent::file_watch::FileWatch;
    use crate::agent::settings::Settings;
    use crate::kube::connection::AccessSource;

    #[test]
    fn a_failed_request_is_repeated_each_minute_unless_an_issued_token_is_accepted() {
        let account = |name: &str| name == "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT";
        let lookup = |name: &str| account(name).then(|| "plugin".to_owned());
        let settings = Arc::new(Settings::read(lookup).unwrap());
        for (is_issued, minutes) in [(true, 30), (false, 1)] {
            let waker = FileWatch::start().unwrap().waker;
            let api = ApiHandle::start(&settings, waker).unwrap();
            let missing = AccessSource::Kubeconfig("/missing".into());
            let mut worker = Worker::new(Arc::clone(&api), missing);
            let issued = Token { text: "issued".into(), revoked: false };
            api.state().token_requests.token = Some(issued).filter(|_| is_issued);
            // Of the token on the host, which may belong to an account that is about to go.
            api.state().check.result = Some(Ok(()));
            (0..20).for_each(|_| worker.renew());
            let wait = api.state().schedule.renewal.unwrap() - Instant::now();
            let longest = Duration::from_secs(60 * minutes);
            assert!((longest / 2..=longest).contains(&wait), "{is_issued}: {wait:?}");
        }
    }
}
