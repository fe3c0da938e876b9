//! Errors of the backends, and what an operator can do about them.

use std::path::PathBuf;

/// Remedy for an error that concerns IPv6 rules.
pub const NO_IPV6: &str = "if the node cannot redirect IPv6, set the chart's disableIPv6 to true";

/// Remedy for a process that keeps the xtables lock.
const FREE_LOCK: &str = "stop the process that holds the lock, or set the chart's iptablesMode to \
                         native, which needs no lock";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kernel rejected {subject}: {source}")]
    Native { subject: String, remedy: String, source: nix::Error },
    #[error(
        "none of {wanted}, together with its -restore program, is in PATH, /usr/sbin, /sbin, \
         /usr/bin or /bin of the node"
    )]
    NoPrograms { wanted: String },
    #[error("{} failed: {stderr}", program.display())]
    Restore { program: PathBuf, stderr: String },
    #[error("{} did not get the xtables lock in time: {lock}", program.display())]
    Locked { program: PathBuf, lock: String },
    #[error(
        "{subject} in the pod's network namespace is too long to read: a process of the pod with \
         CAP_NET_ADMIN may have added rules"
    )]
    TooLong { subject: String },
    #[error("no backend is usable: {}", join_texts(errors))]
    NoBackend { errors: Vec<Error> },
    #[error("{problem}")]
    Other { problem: String, remedy: Option<&'static str> },
}

impl Error {
    /// Returns what an operator can do about the error. `None` if no remedy is known.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Error::Native { remedy, .. } if remedy.is_empty() => None,
            Error::Native { remedy, .. } => Some(remedy.clone()),
            Error::Restore { program, .. } if program.to_string_lossy().contains("ip6tables") => {
                Some(NO_IPV6.to_owned())
            }
            Error::Locked { .. } => Some(FREE_LOCK.to_owned()),
            Error::NoBackend { errors } => join_remedies(errors),
            Error::Other { remedy, .. } => remedy.map(str::to_owned),
            Error::NoPrograms { .. } | Error::Restore { .. } | Error::TooLong { .. } => None,
        }
    }
}

fn join_texts(errors: &[Error]) -> String {
    errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; ")
}

fn join_remedies(errors: &[Error]) -> Option<String> {
    let remedies: Vec<String> = errors.iter().filter_map(Error::remedy).collect();
    if remedies.is_empty() { None } else { Some(remedies.join("; ")) }
}
