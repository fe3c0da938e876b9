//! Decides which token the kubeconfig on the host gets.
//!
//! A process that reads the host's files must not get the agent's permissions. So if the plugin has
//! a ServiceAccount of its own, the agent's token is never written to the host: neither an outage
//! nor a denied TokenRequest causes that. A proxy or an API server that is starting denies requests
//! too.

use std::time::SystemTime;

use crate::kube;

/// The token that the kubeconfig on the host should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginToken {
    /// A token of the plugin's ServiceAccount. `renewal_error` says why the last renewal
    /// failed, if it did.
    Issued { token: String, renewal_error: Option<String> },
    /// The agent's own token: the plugin has no ServiceAccount of its own, as in upstream's chart.
    AgentToken,
    /// No token yet, so the kubeconfig stays unchanged. `error` says why the last TokenRequest
    /// failed, if one did.
    Pending { error: Option<String> },
}

/// A token of the plugin's ServiceAccount.
#[derive(Clone)]
pub struct Token {
    pub text: String,
    /// When the token expires.
    pub end: SystemTime,
    /// The API server rejected the token with HTTP 401.
    pub revoked: bool,
}

impl Token {
    pub fn is_valid(&self, now: SystemTime) -> bool {
        now < self.end && !self.revoked
    }
}

/// Results of the TokenRequests so far.
#[derive(Default)]
pub struct TokenRequestResults {
    pub token: Option<Token>,
    /// Why the last TokenRequest failed, if it did.
    pub error: Option<String>,
}

impl TokenRequestResults {
    /// Returns the token for the kubeconfig of a plugin with a ServiceAccount of its own. An expired
    /// or revoked token stays until another token replaces it.
    pub fn choose(&self) -> PluginToken {
        let error = self.error.clone();
        match &self.token {
            Some(token) => PluginToken::Issued { token: token.text.clone(), renewal_error: error },
            None => PluginToken::Pending { error },
        }
    }

    /// Returns whether the last token is valid at `now`.
    pub fn has_valid_token(&self, now: SystemTime) -> bool {
        self.token.as_ref().is_some_and(|token| token.is_valid(now))
    }
}

/// Describes why a TokenRequest failed, with the remedy if the API server denied it.
pub fn describe(error: &kube::Error) -> String {
    let remedy = match error.code() {
        Some(403) => {
            "; grant the agent's ServiceAccount `create` on `serviceaccounts/token` of that account"
        }
        Some(404) => "; create that ServiceAccount",
        _ => "",
    };
    format!("{error}{remedy}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_expired_or_revoked_token_stays_until_another_token_is_issued() {
        let now = SystemTime::now();
        for (end, revoked) in [(now, false), (now + Duration::from_secs(1), true)] {
            let token = Some(Token { text: "issued".into(), end, revoked });
            let error = Some("HTTP 403: denied".to_owned());
            let results = TokenRequestResults { token, error: error.clone() };
            let kept = PluginToken::Issued { token: "issued".into(), renewal_error: error };
            assert_eq!(results.choose(), kept);
            assert!(!results.has_valid_token(now));
        }
    }
}
