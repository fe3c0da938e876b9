//! Decides which token the kubeconfig on the host gets.
//!
//! A process that reads the host's files must not get the agent's permissions. So if the plugin has
//! a ServiceAccount of its own, the agent's token is written to the host only after the API server
//! denied the TokenRequest with HTTP 403 or 404. No outage, time-out or 5xx causes
//! the agent's token to be written to the host.

use std::time::SystemTime;

/// The token that the kubeconfig on the host should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginToken {
    /// A token of the plugin's ServiceAccount. `renewal_error` says why the last renewal
    /// failed, if it did.
    Issued { token: String, renewal_error: Option<String> },
    /// The agent's own token. `denied` says why, if the plugin has a ServiceAccount of its own.
    AgentToken { denied: Option<String> },
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

/// The token that the plugin uses while TokenRequests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The agent's token, after an HTTP 403 or 404.
    AgentToken,
    /// The last token of the plugin's ServiceAccount, which is still valid.
    LastToken,
    /// No token, or an expired or revoked token.
    NoToken,
}

/// Results of the TokenRequests so far.
#[derive(Default)]
pub struct TokenRequestResults {
    pub token: Option<Token>,
    /// Why the API server denies the TokenRequest (HTTP 403 or 404); cleared by the next token.
    pub denied: Option<String>,
    /// Why the last TokenRequest failed for any other reason.
    pub error: Option<String>,
}

impl TokenRequestResults {
    /// Returns the token for the kubeconfig at `now`. An expired or revoked token stays until
    /// another token replaces it.
    pub fn choose(&self, now: SystemTime) -> PluginToken {
        let issued = |token: &Token| PluginToken::Issued {
            token: token.text.clone(),
            renewal_error: self.error.as_ref().or(self.denied.as_ref()).cloned(),
        };
        match (&self.token, &self.denied) {
            (Some(token), _) if token.is_valid(now) => issued(token),
            (_, Some(why)) => PluginToken::AgentToken { denied: Some(why.clone()) },
            (Some(token), None) => issued(token),
            (None, None) => PluginToken::Pending { error: self.error.clone() },
        }
    }

    /// Returns the token that the plugin uses at `now` if the TokenRequest fails.
    pub fn fallback(&self, now: SystemTime) -> Fallback {
        match &self.token {
            Some(token) if token.is_valid(now) => Fallback::LastToken,
            _ if self.denied.is_some() => Fallback::AgentToken,
            _ => Fallback::NoToken,
        }
    }
}

/// Describes a TokenRequest that failed with the HTTP status `code`, with the remedy. Returns
/// `None` unless the status permits writing the agent's token to the host (403 or 404).
pub fn denial(code: Option<u16>, account: &str, namespace: &str) -> Option<String> {
    let (meaning, remedy) = match code? {
        403 => (
            "was denied (HTTP 403)",
            "grant the agent's ServiceAccount `create` on `serviceaccounts/token` of that account",
        ),
        404 => ("found no such ServiceAccount (HTTP 404)", "create it"),
        _ => return None,
    };
    Some(format!("TokenRequest for ServiceAccount {namespace}/{account} {meaning}: {remedy}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn token(end: SystemTime, revoked: bool) -> Option<Token> {
        let text = "issued".to_owned();
        Some(Token { text, end, revoked })
    }

    #[test]
    fn the_agents_token_is_written_to_the_host_only_after_a_403_or_404() {
        let now = SystemTime::now();
        let hour = Duration::from_secs(3600);
        let (valid, ended) = (token(now + hour, false), token(now - hour, false));
        let revoked = token(now + hour, true);
        for token in [None, valid, ended, revoked] {
            for code in [None, Some(400), Some(401), Some(429), Some(500), Some(503)] {
                let results = TokenRequestResults {
                    token: token.clone(),
                    denied: denial(code, "plugin", "ns"),
                    error: Some("HTTP error or none".into()),
                };
                let chosen = results.choose(now);
                assert!(!matches!(chosen, PluginToken::AgentToken { .. }), "{code:?}");
                assert_ne!(results.fallback(now), Fallback::AgentToken, "{code:?}");
            }
            for code in [403, 404] {
                let results = TokenRequestResults {
                    denied: denial(Some(code), "plugin", "ns"),
                    token: token.clone(),
                    error: None,
                };
                let serves = token.as_ref().is_some_and(|token| token.is_valid(now));
                let agents = matches!(results.choose(now), PluginToken::AgentToken { .. });
                assert_eq!(agents, !serves, "{code}");
                assert_eq!(results.fallback(now) == Fallback::AgentToken, agents);
            }
        }
    }

    #[test]
    fn an_expired_or_revoked_token_stays_until_another_token_is_issued() {
        let now = SystemTime::now();
        for token in [token(now, false), token(now + Duration::from_secs(1), true)] {
            let error = Some("connection refused".to_owned());
            let results = TokenRequestResults { token, denied: None, error: error.clone() };
            let kept = PluginToken::Issued { token: "issued".into(), renewal_error: error };
            assert_eq!(results.choose(now), kept);
        }
    }
}
