//! What a problem is about: the first words of its log line and of its text in `/ready`.

use std::fmt;
use std::path::PathBuf;

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
    /// Failed TokenRequests for the plugin's ServiceAccount.
    TokenRequest,
    /// The address of an API server that the settings name by a host name.
    ServerAddress,
    /// A CNI bin dir without plugins of the primary CNI.
    Directories,
    SavedState,
    /// Files of earlier agents that cannot be removed.
    Leftovers,
    Inotify,
    AdminListener,
    /// One network config, as a path in the agent's container.
    File(PathBuf),
}

impl Subject {
    /// The subjects that decide whether the node is ready, in the order of `/ready`. The others
    /// are only logged.
    pub const DECIDE_READINESS: [Subject; 7] = [
        Subject::Mounts,
        Subject::Binary,
        Subject::Kubeconfig,
        Subject::KubeconfigToken,
        Subject::NetworkConfig,
        Subject::SelfTest,
        Subject::PodCopy,
    ];
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
            Subject::TokenRequest => "TokenRequest",
            Subject::ServerAddress => "API server address",
            Subject::Directories => "CNI directories",
            Subject::SavedState => "saved state",
            Subject::Leftovers => "leftovers",
            Subject::Inotify => "inotify",
            Subject::AdminListener => "admin listener",
            Subject::File(path) => return path.display().fmt(f),
        })
    }
}
