//! Errors of API requests, and which of them to retry.

use std::time::Duration;

/// `reason` in a response of the API server with HTTP 401. A proxy's 401 has no `reason`, so the
/// two can be told apart.
pub const UNAUTHORIZED: &str = "Unauthorized";
/// `reason` in a response of the API server with HTTP 403.
pub const FORBIDDEN: &str = "Forbidden";
/// `reason` in a response of the API server with HTTP 404.
pub const NOT_FOUND: &str = "NotFound";
/// `reason` in a response of the API server with HTTP 409, if the object has changed.
pub const CONFLICT: &str = "Conflict";

/// Why an API request failed. `request` is its method and URL.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{server}: the CA of the API server {problem}")]
    InvalidCa { server: String, problem: String },
    #[error("{request}: {source}")]
    Transport { request: String, source: ureq::Error },
    #[error("{request}: HTTP {code}: {message}")]
    Status {
        request: String,
        code: u16,
        /// Kubernetes' name of the error, e.g. `NotFound`, or empty if its Status has no reason.
        /// `None` if the response is no Kubernetes Status, because a proxy responded instead.
        reason: Option<String>,
        message: String,
        /// `Retry-After` of the response, if it is in seconds.
        retry_after: Option<Duration>,
    },
    #[error("{request}: unexpected response: {problem}")]
    Decode { request: String, problem: String, is_truncated: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Do not retry: the result would be the same.
    Never,
    /// Retry with backoff: the server or the network may recover soon.
    Soon,
    /// Retry after the server's `Retry-After`. It may be of any length, so callers limit it.
    After(Duration),
    /// The server rejects the credential: retry once if there is a newer one.
    NewCredential,
}

impl Error {
    /// Returns the HTTP status code, whoever sent it.
    pub fn code(&self) -> Option<u16> {
        match self {
            Error::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the API server itself responded with this status code and `reason`. A response of a
    /// proxy in front of the API server has no `reason`, so it does not count. Whoever concludes
    /// something about a token or an object from a failed request has to ask this, not
    /// [`Error::code`].
    pub fn is_status(&self, expected_code: u16, expected_reason: &str) -> bool {
        matches!(self, Error::Status { code, reason, .. }
            if *code == expected_code && reason.as_deref() == Some(expected_reason))
    }

    /// Whether the API server itself responded, with Kubernetes' Status, and not a proxy in front
    /// of it.
    pub fn is_kubernetes_status(&self) -> bool {
        matches!(self, Error::Status { reason: Some(_), .. })
    }

    /// Whether Kubernetes accepted the token, but denies the request or does not find the object.
    pub fn is_denied_or_missing(&self) -> bool {
        self.is_status(403, FORBIDDEN) || self.is_status(404, NOT_FOUND)
    }

    /// Whether the response is unreadable: not an API object, not HTTP, or too large.
    pub fn is_unreadable(&self) -> bool {
        use ureq::Error::{BodyExceedsLimit, Protocol};
        matches!(self, Error::Decode { .. })
            || matches!(self, Error::Transport { source: Protocol(_) | BodyExceedsLimit(_), .. })
    }

    /// Whether no request could be sent, because its URL or a header is invalid.
    pub fn is_unsendable(&self) -> bool {
        use ureq::Error::{BadUri, Http};
        matches!(self, Error::Transport { source: Http(_) | BadUri(_), .. })
    }

    /// Whether an HTTP server responded, be it the API server or a proxy.
    pub fn is_response(&self) -> bool {
        matches!(self, Error::Status { .. } | Error::Decode { .. })
    }

    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Transport { source: ureq::Error::Timeout(_), .. })
    }

    pub fn retry(&self) -> Retry {
        match self {
            Error::Status { code: 401, .. } => Retry::NewCredential,
            Error::Status { code: 429 | 500..=599, retry_after, .. } => {
                retry_after.map_or(Retry::Soon, Retry::After)
            }
            Error::Transport { source: ureq::Error::BodyExceedsLimit(_), .. } => Retry::Never,
            Error::Transport { .. } if !self.is_certificate_error() && !self.is_unsendable() => {
                Retry::Soon
            }
            Error::Decode { is_truncated: true, .. } => Retry::Soon,
            _ => Retry::Never,
        }
    }

    /// Whether the request was sent, but the response did not arrive in time.
    pub fn is_response_timeout(&self) -> bool {
        use ureq::{Error::Timeout as TimedOut, Timeout::*};
        matches!(self, Error::Transport { source: TimedOut(RecvResponse | RecvBody), .. })
    }

    pub fn is_certificate_error(&self) -> bool {
        use rustls::Error::InvalidCertificate;
        matches!(self, Error::Transport { source: ureq::Error::Rustls(InvalidCertificate(_)), .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, retry_after: Option<u64>) -> Error {
        Error::Status {
            request: String::new(),
            code,
            reason: None,
            message: String::new(),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    #[test]
    fn only_temporary_failures_are_retried() {
        let cases = [
            (status(401, None), Retry::NewCredential),
            (status(403, None), Retry::Never),
            (status(404, None), Retry::Never),
            (status(302, None), Retry::Never),
            (status(429, None), Retry::Soon),
            (status(429, Some(3)), Retry::After(Duration::from_secs(3))),
            (status(500, None), Retry::Soon),
            (status(503, Some(1)), Retry::After(Duration::from_secs(1))),
        ];
        for (error, expected) in cases {
            assert_eq!(error.retry(), expected, "{error}");
        }
    }

    #[test]
    fn only_a_missing_response_is_a_response_timeout() {
        let timeout = |phase| Error::Transport {
            request: String::new(),
            source: ureq::Error::Timeout(phase),
        };
        assert!(timeout(ureq::Timeout::RecvResponse).is_response_timeout());
        assert!(!timeout(ureq::Timeout::Connect).is_response_timeout());
        assert!(!status(503, None).is_response_timeout());
    }
}
