//! The subjects of problems. The log line of a problem and its text in `/ready` begin with the
//! subject, and its key in `/status` identifies the subject. Pure.

use std::fmt;
use std::path::PathBuf;

/// The subject of a problem. `/ready` lists problems in the order of these variants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A CNI directory that is no longer the node's.
    Mounts,
    /// The plugin binary and the other files in the CNI bin dir that the agent installs.
    Binary,
    Kubeconfig,
    /// The token in the kubeconfig, as the API server judges it.
    KubeconfigToken,
    NetworkConfig,
    SelfTest,
    /// The node's copy of its pods.
    PodCopy,
    /// The address of the API server in the kubeconfig.
    ServerAddress,
    /// The request for a new token of the plugin.
    TokenRequest,
    /// Files that a dead agent has left on the node.
    Leftovers,
    /// The original network configs, kept for uninstall.
    SavedState,
    /// The directories in which the runtime looks for network configs and plugins.
    CniDirectories,
    Inotify,
    AdminListener,
    /// One network config, as a path in the agent's container.
    File(PathBuf),
}

impl Subject {
    /// Returns whether the node is not ready while this subject has a problem.
    pub fn decides_readiness(&self) -> bool {
        match self {
            Subject::Mounts
            | Subject::Binary
            | Subject::Kubeconfig
            | Subject::KubeconfigToken
            | Subject::NetworkConfig
            | Subject::SelfTest
            | Subject::PodCopy => true,
            Subject::ServerAddress
            | Subject::TokenRequest
            | Subject::Leftovers
            | Subject::SavedState
            | Subject::CniDirectories
            | Subject::Inotify
            | Subject::AdminListener
            | Subject::File(_) => false,
        }
    }

    /// Returns the key in `/status`. It differs from the words in log lines, which may change
    /// between versions: `linkerd cni` may have another version than the agent.
    pub fn key(&self) -> String {
        let key = match self {
            Subject::Mounts => "mounts",
            Subject::Binary => "binary",
            Subject::Kubeconfig => "kubeconfig",
            Subject::KubeconfigToken => "kubeconfigToken",
            Subject::NetworkConfig => "networkConfig",
            Subject::SelfTest => "selfTest",
            Subject::PodCopy => "podCopy",
            Subject::ServerAddress => "serverAddress",
            Subject::TokenRequest => "tokenRequest",
            Subject::Leftovers => "leftovers",
            Subject::SavedState => "savedState",
            Subject::CniDirectories => "cniDirectories",
            Subject::Inotify => "inotify",
            Subject::AdminListener => "adminListener",
            Subject::File(path) => return path.display().to_string(),
        };
        key.to_owned()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::Mounts => "mounts",
            Subject::Binary => "binary",
            Subject::Kubeconfig => "kubeconfig",
            Subject::KubeconfigToken => "kubeconfig token",
            Subject::NetworkConfig => "network config",
            Subject::SelfTest => "self-test",
            Subject::PodCopy => "copy of the pods",
            Subject::ServerAddress => "API server address",
            Subject::TokenRequest => "TokenRequest",
            Subject::Leftovers => "leftovers",
            Subject::SavedState => "saved state",
            Subject::CniDirectories => "CNI directories",
            Subject::Inotify => "inotify",
            Subject::AdminListener => "admin listener",
            Subject::File(path) => return path.display().fmt(f),
        })
    }
}
