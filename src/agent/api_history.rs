//! Records what the API server's responses show of the agent's token, the plugin's token and the
//! connection. On SIGTERM this is evidence for and against an uninstall. Pure.

use std::time::Instant;

use crate::kube::{self, UNAUTHORIZED, pod_watch};

/// When the API server accepted and rejected each token, and when the watch of pods was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiHistory {
    /// The agent's own token.
    pub own_token: TokenHistory,
    /// The token in the kubeconfig on the host.
    pub plugin_token: TokenHistory,
    /// When the watch of pods failed and did not show whether the agent's token was still valid, as
    /// when the API server restarts. `None` if a request was accepted since.
    pub disconnected: Option<Instant>,
}

impl ApiHistory {
    /// Returns whether the API server ever accepted or rejected a token.
    pub fn has_responded(&self) -> bool {
        let tokens = [self.own_token, self.plugin_token];
        tokens.iter().any(|token| token.accepted.is_some() || token.rejected.is_some())
    }

    /// Records the response to a request with the agent's own token. `error` is `None` if the
    /// request succeeded.
    pub fn record_own_token(&mut self, error: Option<&kube::Error>, now: Instant) {
        self.own_token.record(error, now);
        if shows_valid_token(error) {
            self.disconnected = None;
        }
    }

    /// Records that the watch of pods failed.
    pub fn record_failed_watch(&mut self, error: &pod_watch::Error, now: Instant) {
        if let pod_watch::Error::Request(error) = error
            && shows_token_was_checked(error)
        {
            self.record_own_token(Some(error), now);
        } else {
            self.disconnected.get_or_insert(now);
        }
    }
}

/// When the API server accepted and rejected a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenHistory {
    /// When a response showed last that the token is valid.
    pub accepted: Option<Instant>,
    /// When the API server responded with HTTP 401 for the first time after that.
    pub rejected: Option<Instant>,
}

impl TokenHistory {
    /// Records the response to a request with the token. `error` is `None` if the request
    /// succeeded. Some responses are sent before the token is checked, such as a 429, a 500 or the
    /// page of a proxy. They change nothing.
    pub fn record(&mut self, error: Option<&kube::Error>, now: Instant) {
        if error.is_some_and(|error| error.is_status(401, UNAUTHORIZED)) {
            self.rejected.get_or_insert(now);
        } else if shows_valid_token(error) {
            *self = TokenHistory { accepted: Some(now), rejected: None };
        }
    }
}

/// Returns whether a failed request shows that the API server has checked its token: the API server
/// has rejected the token, or has accepted it and then denied the request or found no object.
fn shows_token_was_checked(error: &kube::Error) -> bool {
    error.is_status(401, UNAUTHORIZED) || error.is_denied_or_missing()
}

/// Returns whether a request with this result shows that its token is valid: whether it succeeded,
/// or was denied or found no object. The API server decides on both only after it has checked the
/// token.
fn shows_valid_token(error: Option<&kube::Error>) -> bool {
    error.is_none_or(kube::Error::is_denied_or_missing)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn status(code: u16, reason: Option<&str>) -> Result<(), kube::Error> {
        Err(kube::Error::Status {
            request: String::new(),
            code,
            reason: reason.map(str::to_owned),
            message: String::new(),
            retry_after: None,
        })
    }

    #[test]
    fn a_proxys_401_is_no_rejection_of_the_token() {
        let now = Instant::now();
        let mut history = ApiHistory::default();
        history.record_own_token(None, now);
        let of_proxy = status(401, None).unwrap_err();
        history.own_token.record(Some(&of_proxy), now);
        history.record_failed_watch(&pod_watch::Error::Request(of_proxy), now);
        assert_eq!(history.own_token, TokenHistory { accepted: Some(now), rejected: None });
        // It does not show whether the token is still valid.
        assert_eq!(history.disconnected, Some(now));
    }

    #[test]
    fn a_rejection_lasts_from_the_first_401_until_an_accepted_token() {
        let begin = Instant::now();
        let at = |second| begin + Duration::from_secs(second);
        let mut token = TokenHistory::default();
        token.record(None, at(1));
        for (second, response) in [
            (2, status(401, Some("Unauthorized"))),
            (3, status(401, None)),
            (4, status(500, None)),
            (5, status(429, None)),
            (6, status(403, None)),
            (7, status(404, None)),
        ] {
            token.record(response.as_ref().err(), at(second));
            let expected = TokenHistory { accepted: Some(at(1)), rejected: Some(at(2)) };
            assert_eq!(token, expected, "{response:?}");
        }
        for response in [Ok(()), status(403, Some("Forbidden")), status(404, Some("NotFound"))] {
            token.record(status(401, Some("Unauthorized")).as_ref().err(), at(8));
            token.record(response.as_ref().err(), at(9));
            let expected = TokenHistory { accepted: Some(at(9)), rejected: None };
            assert_eq!(token, expected, "{response:?}");
        }
    }
}
