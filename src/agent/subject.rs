//! What a problem is about: the first words of its log line and of its text in `/ready`.

use std::fmt;
use std::path::PathBuf;

/// In the order of `/ready`.
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
    Other(&'static str),
    /// One network config, as a path in the agent's container.
    File(PathBuf),
}

impl Subject {
    pub fn decides_readiness(&self) -> bool {
        !matches!(self, Subject::Other(_) | Subject::File(_))
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
            Subject::Other(name) => name,
            Subject::File(path) => return path.display().fmt(f),
        })
    }
}
