//! What the API server's responses have shown the agent so far. On SIGTERM this is evidence for and
//! against an uninstall. Pure.

use std::time::Instant;

use crate::kube;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub reached: bool,
    /// A response has shown the agent's DaemonSet.
    pub daemonset_seen: bool,
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
    /// Records the response to a request with the token. A response for which the token may not have
    /// been checked, such as a 429, a 500 or a proxy's page, changes nothing.
    pub fn record<T>(&mut self, response: &Result<T, kube::Error>, now: Instant) {
        let error = response.as_ref().err();
        if error.is_some_and(|error| error.code() == Some(401)) {
            self.rejected.get_or_insert(now);
        } else if error.is_none_or(kube::Error::is_denied_or_missing) {
            *self = TokenHistory { accepted: Some(now), rejected: None };
        }
    }
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
    fn a_rejection_counts_from_the_first_401_until_a_response_that_shows_a_valid_token() {
        let begin = Instant::now();
        let at = |second| begin + Duration::from_secs(second);
        let mut token = TokenHistory::default();
        token.record(&Ok(()), at(1));
        for (second, response) in [
            (2, status(401, Some("Unauthorized"))),
            (3, status(401, None)),
            (4, status(500, None)),
            (5, status(429, None)),
            (6, status(403, None)),
            (7, status(404, None)),
        ] {
            token.record(&response, at(second));
            let expected = TokenHistory { accepted: Some(at(1)), rejected: Some(at(2)) };
            assert_eq!(token, expected, "{response:?}");
        }
        for response in [Ok(()), status(403, Some("Forbidden")), status(404, Some("NotFound"))] {
            token.record(&status(401, None), at(8));
            token.record(&response, at(9));
            let expected = TokenHistory { accepted: Some(at(9)), rejected: None };
            assert_eq!(token, expected, "{response:?}");
        }
    }
}
