//! The CNI error object.

use std::fmt;

use serde::Serialize;

/// Error codes. CNI spec 1.1, section 5, "Error", defines codes 1 to 7, and `pkg/types` of
/// the reference implementation defines 8. Codes from 100 on are linkerd-cni's own: each is a
/// class of causes with one remedy, and its meaning never changes. `docs/error-codes.md`
/// lists them.
pub mod code {
    /// The plugin does not support the `cniVersion` of the config, or the command needs a newer one.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A `CNI_*` environment variable is missing or invalid.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// stdin cannot be read or stdout cannot be written.
    pub const IO_FAILURE: u32 = 5;
    /// The config on stdin is not valid JSON, or a member, such as `prevResult`, cannot be decoded.
    pub const DECODING_FAILURE: u32 = 6;
    /// The config on stdin lacks a required member, or a member has an invalid value.
    pub const INVALID_CONFIG: u32 = 7;
    /// `CNI_NETNS` is not the path of a netns, or is the netns of the plugin itself.
    pub const INVALID_NETNS: u32 = 8;

    /// The kubeconfig is missing or unusable.
    pub const KUBECONFIG: u32 = 100;
    /// The API server is unreachable or did not respond in time.
    pub const API_UNREACHABLE: u32 = 101;
    /// The API server rejects the plugin's credential or its rights (HTTP 401 or 403).
    pub const API_DENIED: u32 = 102;
    /// The API server does not know the pod or its namespace (HTTP 404), or a pod with another UID
    /// has taken the pod's name.
    pub const POD_NOT_FOUND: u32 = 103;
    /// The API server responded with another error, or its response is unreadable.
    pub const API_RESPONSE: u32 = 104;
    /// An annotation of the pod or its namespace has an invalid value.
    pub const ANNOTATION: u32 = 110;
    /// A container of the app runs as the user of the proxy, and the plugin entry refuses such pods.
    pub const SHARED_PROXY_USER: u32 = 111;
    /// The host has no iptables program together with its `-restore` program. With `auto`, nf_tables
    /// failed too.
    pub const NO_IPTABLES: u32 = 120;
    /// The redirect rules could not be installed in the pod's netns. In the record of a CHECK: not be
    /// read.
    pub const RULES_FAILED: u32 = 121;
    /// CHECK found redirect rules missing or changed.
    pub const RULES_MISSING: u32 = 122;

    /// A bug in the plugin.
    pub const INTERNAL: u32 = 999;
}

/// The CNI error of a failed command. Runtimes show `msg; details` and hide the code, so `msg`
/// has the cause and `details` the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Error {
    pub code: u32,
    pub msg: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl Error {
    /// An error without a remedy.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Error { code, msg: msg.into(), details: String::new() }
    }

    /// Sets the remedy.
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// Formats the error object for stdout, with the `cniVersion` that the CNI spec requires.
    pub fn to_json(&self, cni_version: &str) -> String {
        #[derive(Serialize)]
        struct ErrorObject<'a> {
            #[serde(rename = "cniVersion")]
            cni_version: &'a str,
            #[serde(flatten)]
            error: &'a Error,
        }
        let object = ErrorObject { cni_version, error: self };
        // Serializing strings and a number cannot fail; the types require a fallback.
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
