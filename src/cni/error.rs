//! The CNI error object.

use serde_json::json;

use crate::failure::Failure;

/// The CNI error of a failed command. Runtimes show `msg; details` and hide the code, so `msg`
/// has the cause and `details` the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{msg}; {details} (code {})", .failure.code())]
pub struct Error {
    pub failure: Failure,
    pub msg: String,
    pub details: String,
}

impl Error {
    /// Creates an error with the failure's remedy.
    pub fn new(failure: Failure, msg: impl Into<String>) -> Self {
        Error { failure, msg: msg.into(), details: failure.row().remedy.to_owned() }
    }

    /// Replaces the failure's remedy with a more specific one.
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// Renders the error object that the plugin prints to stdout.
    pub fn to_json(&self, cni_version: &str) -> String {
        let Error { failure, msg, details } = self;
        let code = failure.code();
        let object =
            json!({"cniVersion": cni_version, "code": code, "msg": msg, "details": details});
        format!("{object:#}")
    }
}
