//! Why the API server could not be asked, or did not answer as it should.

use std::time::Duration;

use ureq::http::Method;

/// Why a request to the API server brought no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{server}: the CA of the API server has no PEM certificate in it")]
    NoCertificates { server: String },
    #[error("{server}: the CA of the API server is not valid PEM: {source}")]
    BadCertificate {
        server: String,
        #[source]
        source: ureq::Error,
    },
    #[error("{method} {url}: {source}")]
    Transport {
        method: Method,
        url: String,
        #[source]
        source: ureq::Error,
    },
    #[error("{method} {url}: HTTP {code}: {message}")]
    Status {
        method: Method,
        url: String,
        /// HTTP status code, e.g. 404.
        code: u16,
        /// What Kubernetes calls the error, e.g. `NotFound`; `None` if a proxy answered.
        reason: Option<String>,
        message: String,
        /// When to try again, if the server says it in seconds.
        retry_after: Option<Duration>,
    },
    #[error("{method} {url}: the answer is not what the API promises: {problem}")]
    Decode {
        method: Method,
        url: String,
        problem: String,
        /// Whether it ends too early.
        is_cut: bool,
    },
    #[error("{method} {url}: cannot encode the request: {source}")]
    Encode {
        method: Method,
        url: String,
        #[source]
        source: serde_json::Error,
    },
}

impl Error {
    /// The HTTP status code, if the API server answered with an error.
    pub fn code(&self) -> Option<u16> {
        match self {
            Error::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether Kubernetes itself answered with this status code and `reason`, and not a proxy
    /// before it.
    pub fn is_status(&self, wanted: u16, wanted_reason: &str) -> bool {
        matches!(self, Error::Status { code, reason, .. }
            if *code == wanted && reason.as_deref() == Some(wanted_reason))
    }

    /// Whether an answer came, but one that cannot be read: not of the API's, not HTTP
    /// or without an end.
    pub fn is_unreadable(&self) -> bool {
        match self {
            Error::Decode { .. } => true,
            Error::Transport { source, .. } => matches!(
                source,
                ureq::Error::Protocol(_) | ureq::Error::BodyExceedsLimit(_)
            ),
            _ => false,
        }
    }

    /// Whether the request cannot be sent to anyone, e.g. as the server's URL is none.
    pub fn is_unsendable(&self) -> bool {
        matches!(
            self,
            Error::Transport {
                source: ureq::Error::Http(_) | ureq::Error::BadUri(_),
                ..
            }
        )
    }

    /// Whether an answer came at all, of whatever kind.
    pub fn is_answer(&self) -> bool {
        matches!(self, Error::Status { .. } | Error::Decode { .. })
    }

    /// Whether the request ran into one of the [`Deadlines`].
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Error::Transport {
                source: ureq::Error::Timeout(_),
                ..
            }
        )
    }
}
