//! Which failed requests are worth another try. Pure.

use std::error::Error as _;
use std::time::Duration;

use super::Error;

/// What to do after a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Another try would bring the same.
    Never,
    /// The server or the way to it may be better soon.
    Soon,
    /// The server says when (Retry-After). Callers bound it.
    After(Duration),
    /// The credential is refused: worth one try if there is a newer one.
    NewCredential,
}

impl Error {
    pub fn retry(&self) -> Retry {
        match self {
            Error::Status { code: 401, .. } => Retry::NewCredential,
            Error::Status {
                code: 429 | 500..=599,
                retry_after,
                ..
            } => retry_after.map_or(Retry::Soon, Retry::After),
            Error::Transport {
                source: ureq::Error::BodyExceedsLimit(_),
                ..
            } => Retry::Never,
            Error::Transport { .. } if !self.is_certificate() && !self.is_unsendable() => {
                Retry::Soon
            }
            Error::Decode { is_cut: true, .. } => Retry::Soon,
            _ => Retry::Never,
        }
    }

    /// Whether the server is not the one that the CA stands for; rustls says so inside an
    /// I/O error.
    pub fn is_certificate(&self) -> bool {
        let Error::Transport { source, .. } = self else {
            return false;
        };
        let found = match source {
            ureq::Error::Rustls(error) => Some(error),
            ureq::Error::Io(error) => error
                .get_ref()
                .and_then(|inner| inner.downcast_ref())
                .or_else(|| error.source().and_then(|inner| inner.downcast_ref())),
            _ => None,
        };
        matches!(found, Some(rustls::Error::InvalidCertificate(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::http::Method;

    fn status(code: u16, retry_after: Option<u64>) -> Error {
        Error::Status {
            method: Method::GET,
            url: "u".into(),
            code,
            reason: None,
            message: String::new(),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    #[test]
    fn only_what_may_pass_by_itself_is_tried_again() {
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
        for (error, wanted) in cases {
            assert_eq!(error.retry(), wanted, "{error}");
        }
    }

    #[test]
    fn a_wrong_certificate_is_final_and_a_reset_is_not() {
        let transport = |source| Error::Transport {
            method: Method::GET,
            url: "u".into(),
            source,
        };
        let wrong = || rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let wrapped = std::io::Error::new(std::io::ErrorKind::InvalidData, wrong());
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert_eq!(transport(ureq::Error::Io(wrapped)).retry(), Retry::Never);
        assert_eq!(
            transport(ureq::Error::Rustls(wrong())).retry(),
            Retry::Never
        );
        assert_eq!(transport(ureq::Error::Io(reset)).retry(), Retry::Soon);
    }
}
