//! The CNI error object.

use std::fmt;

use serde::Serialize;

/// Codes 1 to 8 are the specification's (SPEC.md, "Error"), 8 is `pkg/types`'.
/// From 100 on they are ours; each is a class of causes with one kind of remedy, and
/// they never change their meaning. The README has them as a table.
pub mod code {
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    pub const INVALID_ENVIRONMENT: u32 = 4;
    pub const IO_FAILURE: u32 = 5;
    pub const DECODING_FAILURE: u32 = 6;
    pub const INVALID_CONFIG: u32 = 7;
    pub const INVALID_NETNS: u32 = 8;

    /// The kubeconfig is missing or unusable.
    pub const KUBECONFIG: u32 = 100;
    /// The API server did not answer, or not in time.
    pub const API_UNREACHABLE: u32 = 101;
    /// The API server refuses the plugin's credential.
    pub const API_REFUSED: u32 = 102;
    /// The API server does not know the pod.
    pub const POD_NOT_FOUND: u32 = 103;
    /// The API server answered with another error or with something unreadable.
    pub const API_ANSWER: u32 = 104;
    /// An annotation of the pod or its namespace has a bad value.
    pub const ANNOTATION: u32 = 110;
    /// The host has none of the iptables programs.
    pub const NO_IPTABLES: u32 = 120;
    /// The rules could not be put into the pod's namespace.
    pub const RULES_FAILED: u32 = 121;
    /// CHECK: rules of a meshed pod are missing or changed.
    pub const RULES_MISSING: u32 = 122;

    /// A fault of the plugin itself.
    pub const INTERNAL: u32 = 999;
}

/// What a runtime is told when a command fails. Runtimes show `msg; details` and
/// hide the code, so the cause belongs into `msg` and the remedy into `details`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Error {
    pub code: u32,
    pub msg: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl Error {
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Error {
            code,
            msg: msg.into(),
            details: String::new(),
        }
    }

    /// Adds what to do about it.
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// The object for stdout, with the `cniVersion` that the specification asks for.
    pub fn to_json(&self, cni_version: &str) -> String {
        #[derive(Serialize)]
        struct Object<'a> {
            #[serde(rename = "cniVersion")]
            cni_version: &'a str,
            #[serde(flatten)]
            error: &'a Error,
        }
        let object = Object {
            cni_version,
            error: self,
        };
        // Strings and a number always serialize; the fallback is for the type checker.
        serde_json::to_string_pretty(&object)
            .unwrap_or_else(|_| format!("{{\"code\":{},\"msg\":\"\"}}", self.code))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.msg)?;
        if !self.details.is_empty() {
            write!(f, "; {}", self.details)?;
        }
        write!(f, " (code {})", self.code)
    }
}

impl std::error::Error for Error {}
