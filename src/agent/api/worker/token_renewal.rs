//! Requests tokens of the plugin's ServiceAccount (TokenRequest), and reports the results to the
//! schedule, which decides when the next TokenRequest is due.

use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use serde_json::json;
use tracing::info;

use super::{Worker, retry_after};
use crate::agent::api::claims::Claims;
use crate::agent::api::namespace;
use crate::agent::api::token::{self, Token};

/// Longest token that is used, in bytes. A request's head has to fit into 16 KiB.
const LONGEST_TOKEN: usize = 12 << 10;
/// Lifetime requested for the plugin's token, in seconds. The API server may grant less.
const LIFETIME: u64 = 24 * 3600;

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

impl Worker {
    /// Requests a token of the plugin's ServiceAccount. The token is not bound to the agent's pod,
    /// because an upgrade replaces that pod. It is not bound to the Node either: a Node that
    /// registers again has a new UID, which would revoke the token while its pods still run.
    pub(super) fn renew(&mut self) {
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
        let response = client.post_and_decode::<TokenRequest>(&path, &request);
        self.record_own(&response);
        match response {
            Ok(response) => self.renewed(response, &account),
            Err(error) => self.not_renewed(token::describe(&error), retry_after(&error)),
        }
    }

    /// Stores the token of a successful TokenRequest.
    fn renewed(&mut self, response: TokenRequest, account: &str) {
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
        state.token_requests.token =
            Some(Token { text, end: end.map_or(ends, |end| end.max(ends)), revoked: false });
        state.token_requests.error = None;
        drop(state);
        info!("received a token of ServiceAccount {account}, valid for {seconds} s");
        self.api.waker.wake();
    }

    /// Records that the TokenRequest failed, schedules the next one, and wakes the reconciler if the
    /// reason changed.
    fn not_renewed(&mut self, why: String, retry_after: Duration) {
        let mut state = self.api.state();
        let changed = state.token_requests.error.as_ref() != Some(&why);
        state.token_requests.error = Some(why);
        let has_valid_token = state.token_requests.has_valid_token(SystemTime::now());
        drop(state);
        self.schedule.not_renewed(Instant::now(), has_valid_token, retry_after);
        if changed {
            self.api.waker.wake();
        }
    }
}

/// Why `token` must not replace the one that the plugin has.
fn problem(token: &str) -> Option<&'static str> {
    match token.len() {
        0 => Some("the response has no token"),
        1..=LONGEST_TOKEN if token.bytes().all(|byte| byte.is_ascii_graphic()) => None,
        _ => Some("the token is too long or has characters that are invalid in a request header"),
    }
}
