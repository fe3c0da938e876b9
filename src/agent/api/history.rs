//! What the API server's responses have shown the agent so far. On SIGTERM this is evidence for and
//! against an uninstall. Pure.

use std::time::Instant;

use crate::kube;

/// What the responses to the agent's own requests have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The API server has responded at least once.
    pub reached: bool,
    /// Whether the agent's DaemonSet existed when the agent started; `None` if no response showed it
    /// yet.
    pub daemonset_existed: Option<bool>,
    /// The agent's own token.
    pub own_token: TokenHistory,
    /// The token in the kubeconfig on the host.
    pub plugin_token: TokenHistory,
}

/// When the API server accepted and rejected a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenHistory {
    /// The last response that shows a valid token.
    pub accepted: Option<Instant>,
    /// The first HTTP 401 since then.
    pub rejected: Option<Instant>,
}

impl TokenHistory {
    /// Records the response to a request with the token. A response that was sent before the token
    /// was checked, such as a 429 or 500, changes nothing.
    pub fn record<T>(&mut self, response: &Result<T, kube::Error>, now: Instant) {
        match response.as_ref().map_err(kube::Error::code) {
            Err(Some(401)) => {
                self.rejected.get_or_insert(now);
            }
            Ok(_) | Err(Some(403 | 404)) => {
                *self = TokenHistory { accepted: Some(now), rejected: None };
            }
            Err(_) => {}
        }
    }
}
