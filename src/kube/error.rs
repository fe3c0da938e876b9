//! Errors of API requests.

use std::time::Duration;

/// `reason` of Kubernetes' Status with HTTP 401 and 404. A response without it comes from a proxy.
pub const UNAUTHORIZED: &str = "Unauthorized";
pub const NOT_FOUND: &str = "NotFound";

/// Why an API request failed. `request` is its method and URL.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{server}: the CA of the API server {problem}")]
    InvalidCa { server: String, problem: String },
    #[error("{request}: {source}")]
    Transport {
        request: String,
        #[source]
        source: ureq::Error,
    },
    #[error("{request}: HTTP {code}: {message}")]
    Status {
        request: String,
        code: u16,
        /// Kubernetes' name of the error, e.g. `NotFound`. `None` if a proxy responded instead.
        reason: Option<String>,
        message: String,
        /// `Retry-After` of the response, if it is in seconds.
        retry_after: Option<Duration>,
    },
    #[error("{request}: unexpected response: {problem}")]
    Decode { request: String, problem: String, is_truncated: bool },
}

impl Error {
    pub fn code(&self) -> Option<u16> {
        match self {
            Error::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the response has this status code and `reason`. A response of a proxy in front of
    /// the API server has no `reason`.
    pub fn is_status(&self, wanted: u16, wanted_reason: &str) -> bool {
        matches!(self, Error::Status { code, reason, .. }
            if *code == wanted && reason.as_deref() == Some(wanted_reason))
    }

    /// Whether Kubernetes accepted the token, but denies the request or does not find the object.
    pub fn is_denied_or_missing(&self) -> bool {
        self.is_status(403, "Forbidden") || self.is_status(404, NOT_FOUND)
    }

    /// Whether the response is unreadable: not an API object, not HTTP, or too large.
    pub fn is_unreadable(&self) -> bool {
        match self {
            Error::Decode { .. } => true,
            Error::Transport { source, .. } => {
                matches!(source, ureq::Error::Protocol(_) | ureq::Error::BodyExceedsLimit(_))
            }
            _ => false,
        }
    }

    /// Whether the request cannot be sent, e.g. because the server's URL is invalid.
    pub fn is_unsendable(&self) -> bool {
        matches!(
            self,
            Error::Transport { source: ureq::Error::Http(_) | ureq::Error::BadUri(_), .. }
        )
    }

    /// Whether the server responded, with an error status or an unreadable object.
    pub fn is_response(&self) -> bool {
        matches!(self, Error::Status { .. } | Error::Decode { .. })
    }

    /// Whether the request exceeded one of the [`Deadlines`](super::Deadlines).
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Transport { source: ureq::Error::Timeout(_), .. })
    }
}
