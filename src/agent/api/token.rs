//! Decides which token the kubeconfig on the host carries.
//!
//! With an account of the plugin's own configured, the agent's token lands on the host only after
//! the API server answered 403 or 404 to the TokenRequest: whoever reads a host's files must not
//! get the agent's rights. An outage, a timeout or a 5xx never leads there.

use std::time::SystemTime;

/// Which token the kubeconfig on the host should carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginToken {
    /// A token of the plugin's account; `doubt` says why it is not renewed, if it is not.
    Issued {
        token: String,
        doubt: Option<String>,
    },
    /// The agent's own token; `denied` says why, if the plugin has an account of its own.
    Agents { denied: Option<String> },
    /// None yet: what the host has stays. `error` says why the last TokenRequest failed, if one
    /// did.
    Awaited { error: Option<String> },
}

/// A token of the plugin's own account.
#[derive(Clone)]
pub struct Token {
    pub text: String,
    pub end: SystemTime,
    /// The API server answered 401 to it.
    pub revoked: bool,
}

impl Token {
    pub fn is_valid(&self, now: SystemTime) -> bool {
        now < self.end && !self.revoked
    }
}

/// What the plugin has while TokenRequests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The agent's token, after a 403 or 404.
    AgentsToken,
    /// Its last token, which is still valid.
    LastToken,
    /// No token, or one that ran out or was revoked.
    NoToken,
}

/// What the TokenRequests came to so far.
#[derive(Default)]
pub struct Grant {
    pub token: Option<Token>,
    /// Why the API server gives none (403 or 404); counts until it does.
    pub denied: Option<String>,
    /// Why the last TokenRequest failed otherwise.
    pub error: Option<String>,
}

impl Grant {
    /// The token to carry at `now`. One that has run out or was revoked stays as long as there
    /// is no other.
    pub fn choose(&self, now: SystemTime) -> PluginToken {
        let issued = |token: &Token| PluginToken::Issued {
            token: token.text.clone(),
            doubt: self.error.as_ref().or(self.denied.as_ref()).cloned(),
        };
        match (&self.token, &self.denied) {
            (Some(token), _) if token.is_valid(now) => issued(token),
            (_, Some(why)) => PluginToken::Agents {
                denied: Some(why.clone()),
            },
            (Some(token), None) => issued(token),
            (None, None) => PluginToken::Awaited {
                error: self.error.clone(),
            },
        }
    }

    /// What the plugin has at `now` if no TokenRequest brings a token.
    pub fn fallback(&self, now: SystemTime) -> Fallback {
        match &self.token {
            Some(token) if token.is_valid(now) => Fallback::LastToken,
            _ if self.denied.is_some() => Fallback::AgentsToken,
            _ => Fallback::NoToken,
        }
    }
}

/// Why a TokenRequest brought no token when the API server answered `code` to it, if that is
/// one of the answers that let the agent's token onto the host.
pub fn denial(code: Option<u16>, account: &str, namespace: &str) -> Option<String> {
    let (meaning, remedy) = match code? {
        403 => (
            "403 (forbidden)",
            "grant the agent's ServiceAccount `create` on `serviceaccounts/token` of that account",
        ),
        404 => ("404 (not found)", "create that ServiceAccount"),
        _ => return None,
    };
    Some(format!(
        "TokenRequest for ServiceAccount {namespace}/{account} answered HTTP {meaning}: {remedy}"
    ))
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
    fn the_agents_token_lands_on_the_host_only_after_a_403_or_404() {
        let now = SystemTime::now();
        let hour = Duration::from_secs(3600);
        let (valid, ended) = (token(now + hour, false), token(now - hour, false));
        let revoked = token(now + hour, true);
        for token in [None, valid, ended, revoked] {
            for code in [None, Some(400), Some(401), Some(429), Some(500), Some(503)] {
                let grant = Grant {
                    token: token.clone(),
                    denied: denial(code, "plugin", "ns"),
                    error: Some("HTTP error or none".into()),
                };
                let chosen = grant.choose(now);
                assert!(!matches!(chosen, PluginToken::Agents { .. }), "{code:?}");
                assert_ne!(grant.fallback(now), Fallback::AgentsToken, "{code:?}");
            }
            for code in [403, 404] {
                let grant = Grant {
                    denied: denial(Some(code), "plugin", "ns"),
                    token: token.clone(),
                    error: None,
                };
                let serves = token.as_ref().is_some_and(|token| token.is_valid(now));
                let agents = matches!(grant.choose(now), PluginToken::Agents { .. });
                assert_eq!(agents, !serves, "{code}");
                assert_eq!(grant.fallback(now) == Fallback::AgentsToken, agents);
            }
        }
    }

    #[test]
    fn a_token_that_ran_out_or_was_revoked_stays_until_there_is_another() {
        let now = SystemTime::now();
        for token in [token(now, false), token(now + Duration::from_secs(1), true)] {
            let error = Some("connection refused".to_owned());
            let grant = Grant {
                token,
                denied: None,
                error: error.clone(),
            };
            let kept = PluginToken::Issued {
                token: "issued".into(),
                doubt: error,
            };
            assert_eq!(grant.choose(now), kept);
        }
    }
}
