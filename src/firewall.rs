//! Writes redirect rules into the kernel and checks them, in the calling thread's netns.
//!
//! All backends write rules of the same meaning: `native` sends them to nf_tables over netlink; `nft`,
//! `legacy` and `plain` run the host's iptables programs. [`IptablesMode`] selects the backends.

mod check;
mod compare;
mod iptables;
pub mod native;

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::redirect::backend::{Backend, IptablesMode};
use crate::redirect::rules;
use crate::redirect::{Family, Ipv6, Origin, Redirect};
pub use check::{Survey, describe_missing, missing, survey};
pub use compare::compare;

/// Time allowed for the programs of all backends of one call together. The plugin's deadline for a netns
/// is longer, so that an error names the program.
const DEADLINE: Duration = Duration::from_secs(15);

/// IPv6 addresses in the netns of the calling thread. The file is missing if the kernel has no IPv6.
const IF_INET6: &str = "/proc/thread-self/net/if_inet6";

const NO_IPV6: &str = "if the node cannot redirect IPv6, set the chart's disableIPv6 to true";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kernel rejected {subject}: {source}")]
    Native { subject: String, remedy: String, source: nix::Error },
    #[error("the backend native needs Linux 4.18, and this kernel is {release}")]
    OldKernel { release: String },
    #[error(
        "none of {wanted}, together with its -restore program, is in PATH, /usr/sbin, /sbin, /usr/bin or /bin of the node"
    )]
    NoPrograms { wanted: String },
    #[error("cannot start {}: {source}", program.display())]
    Start { program: PathBuf, source: std::io::Error },
    #[error("{} failed: {stderr}", program.display())]
    Restore { program: PathBuf, stderr: String },
    #[error("{} reported success without reading the rules", program.display())]
    Unread { program: PathBuf },
    #[error("{} timed out after {deadline:?} and was killed{}", program.display(), lock.as_ref().map(|lock| format!("; {lock}")).unwrap_or_default())]
    Deadline {
        program: PathBuf,
        deadline: Duration,
        /// Which other process holds the xtables lock, if one does.
        lock: Option<String>,
    },
    #[error("{} did not get the xtables lock in time: {lock}", program.display())]
    Locked { program: PathBuf, lock: String },
    #[error("{} cannot list table nat: {message}", program.display())]
    List { program: PathBuf, message: String },
    #[error(
        "{subject} in the pod's network namespace is too long to read: a process of the pod with CAP_NET_ADMIN may have added rules"
    )]
    TooLong { subject: String },
    #[error("no backend is usable: {}", errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; "))]
    NoBackend { errors: Vec<Error> },
    #[error("{why}")]
    Incomparable { why: String },
}

impl Error {
    pub fn remedy(&self) -> Option<String> {
        match self {
            Error::Locked { .. } => Some(
                "end what the process that holds the lock is doing, or set the chart's iptablesMode to native, which needs no lock".to_owned(),
            ),
            Error::Start { source, .. } if source.kind() != ErrorKind::PermissionDenied => None,
            Error::Unread { .. } | Error::Start { .. } => Some(
                "check the node's audit log for SELinux denials of the iptables program that the message names, or set the chart's iptablesMode to native, which runs no program".to_owned(),
            ),
            Error::Restore { program, .. } if program.to_string_lossy().contains("ip6tables") => {
                Some(NO_IPV6.to_owned())
            }
            Error::Native { remedy, .. } => Some(remedy.clone()).filter(|remedy| !remedy.is_empty()),
            Error::OldKernel { .. } => {
                Some("set the chart's iptablesMode to nft or legacy".to_owned())
            }
            Error::NoBackend { errors } => {
                let remedies: Vec<String> = errors.iter().filter_map(Error::remedy).collect();
                (!remedies.is_empty()).then(|| remedies.join("; "))
            }
            _ => None,
        }
    }
}

/// Chooses the address families. With [`Ipv6::Auto`], those of the kernel, not of the pod's addresses: a
/// pod may get an IPv6 address after its ADD, by router advertisement, from Multus, or because it sets
/// the sysctl `disable_ipv6` of an interface to 0.
pub fn origin(redirect: Redirect, ipv6: Ipv6) -> Origin {
    let is_redirected = match ipv6 {
        Ipv6::Yes => true,
        Ipv6::No => false,
        Ipv6::Auto => fs::exists(IF_INET6).unwrap_or(true),
    };
    Origin { redirect, families: if is_redirected { Family::ALL } else { Family::IPV4 } }
}

/// Writes the rules of `redirect`. Returns the backend that wrote them. If the host lacks the
/// programs of the mode, another variant writes the rules, see [`iptables::apply`]. Idempotent;
/// foreign rules stay.
/// The chains that a failed backend created are removed; chains that existed before keep the rules that it
/// wrote.
pub fn apply(Origin { redirect, families }: &Origin, mode: IptablesMode) -> Result<Backend, Error> {
    let deadline = Deadline::after(DEADLINE);
    let mut errors = Vec::new();
    for &backend in mode.backends() {
        let applied = match backend {
            Backend::Native => native::apply(redirect, families).map(|()| Backend::Native),
            backend => iptables::apply(redirect, families, backend, deadline),
        };
        match applied {
            Ok(backend) => return Ok(backend),
            Err(error) => errors.push(error),
        }
        // The programs of other backends may be the same, or would wait for the same lock.
        if matches!(errors.last(), Some(Error::Locked { .. })) {
            break;
        }
    }
    // Backends look for the same programs.
    errors.dedup_by_key(|error| error.to_string());
    Err(if errors.len() == 1 { errors.remove(0) } else { Error::NoBackend { errors } })
}

/// Corrects what [`survey`] reported as missing, without programs of the host: writes the rules to the
/// plugin's tables and deletes those of `iptables-nft`, which would decide first, and those of IPv6 if
/// the pod has IPv4 rules only.
/// Fails if nf_tables is not usable in this kernel.
pub fn install_native(Origin { redirect, families }: &Origin) -> Result<(), Error> {
    native::apply(redirect, families)?;
    native::flush_others(families)
}

/// Renders the rules as text instead of applying them, for the setting `simulate`.
pub fn simulate(Origin { redirect, families }: &Origin) -> String {
    let mut text = String::new();
    for &family in *families {
        for rule in rules::marked_rules(redirect, family, families) {
            text.push_str(&format!("{family:?} {}\n", rules::rule_line(&rule)));
        }
    }
    text
}
