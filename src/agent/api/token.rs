//! The tokens that the API server issues for the plugin's ServiceAccount.

use std::time::SystemTime;

use crate::kube;

/// A token of the plugin's ServiceAccount.
#[derive(Clone)]
pub struct Token {
    pub text: String,
    /// When the token expires.
    pub end: SystemTime,
    /// The API server rejected the token with HTTP 401.
    pub revoked: bool,
}

/// Results of the TokenRequests so far.
#[derive(Clone, Default)]
pub struct TokenRequestResults {
    pub token: Option<Token>,
    /// Why the last TokenRequest failed, if it did.
    pub error: Option<String>,
}

impl TokenRequestResults {
    /// Returns whether the last token is valid at `now`.
    pub fn has_valid_token(&self, now: SystemTime) -> bool {
        self.token.as_ref().is_some_and(|token| now < token.end && !token.revoked)
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
    fn an_expired_or_revoked_token_is_not_valid() {
        let now = SystemTime::now();
        let later = now + Duration::from_secs(1);
        for (end, revoked, valid) in
            [(now, false, false), (later, true, false), (later, false, true)]
        {
            let token = Some(Token { text: "issued".into(), end, revoked });
            assert_eq!(TokenRequestResults { token, error: None }.has_valid_token(now), valid);
        }
    }
}
