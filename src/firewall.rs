//! Writes redirect rules into the kernel and checks them, in the calling thread's netns.
//!
//! All backends write rules of the same meaning: `native` sends them to nf_tables over netlink; `nft`,
//! `legacy` and `plain` run the host's iptables programs. [`IptablesMode`] selects the backends.

mod check;
mod compare;
mod families;
mod iptables;
pub mod native;
mod unsupported;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::redirect::backend::{Backend, IptablesMode};
use crate::redirect::rules::{self, Verdict};
use crate::redirect::{Family, Origin, Redirect};
pub use check::{Survey, describe_missing, missing, survey};
pub use compare::compare;
pub use families::families;
use unsupported::run_for;

/// Time allowed for the programs of all backends of one call together, also if the call is repeated
/// without IPv6. The plugin's deadline for a netns is longer, so that an error names the program.
const DEADLINE: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kernel rejected {subject}: {source}")]
    Native {
        subject: String,
        remedy: Option<&'static str>,
        #[source]
        source: nix::Error,
    },
    #[error("the backend native needs Linux 4.18, and this kernel is {release}")]
    OldKernel { release: String },
    #[error(
        "none of {wanted}, together with its -restore program, is in PATH, /usr/sbin, /sbin, /usr/bin or /bin of the node"
    )]
    NoPrograms { wanted: String },
    #[error("cannot start {}: {source}", program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
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
            Error::Native { remedy, .. } => remedy.map(str::to_owned),
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

/// Whether this process finds all programs that `mode` needs. `auto` and `native` need none.
pub fn has_programs(mode: IptablesMode, families: &[Family]) -> bool {
    let has_all = |backend| families.iter().all(|&family| iptables::has_programs(backend, family));
    matches!(mode, IptablesMode::Auto | IptablesMode::Only(Backend::Native))
        || mode.backends().iter().copied().all(has_all)
}

/// Writes the rules of `redirect`. Returns the backend that wrote them. If the host lacks the
/// programs of the mode, another variant writes the rules, see [`iptables::apply`]. Idempotent;
/// foreign rules stay.
/// Fails if no backend of the mode is usable. The chains that a failed backend created are removed;
/// chains that existed before keep the rules that the failed backend wrote.
pub fn apply(Origin { redirect, families }: &Origin, mode: IptablesMode) -> Result<Backend, Error> {
    let deadline = Deadline::after(DEADLINE);
    run_for(*families, |families| apply_all(redirect, families, mode, deadline))
}

fn apply_all(
    redirect: &Redirect,
    families: &[Family],
    mode: IptablesMode,
    deadline: Deadline,
) -> Result<Backend, Error> {
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
    Err(combined(errors))
}

/// Corrects what [`survey`] reported as missing, without programs of the host: writes the rules to the
/// plugin's tables and deletes those of `iptables-nft`, which would decide first, and those of IPv6 if
/// the pod has IPv4 rules only.
/// Fails if nf_tables is not usable in this kernel.
pub fn install_native(Origin { redirect, families }: &Origin) -> Result<(), Error> {
    run_for(*families, |families| {
        native::apply(redirect, families)?;
        native::flush_others(families)
    })
}

fn combined(mut errors: Vec<Error>) -> Error {
    // Backends look for the same programs.
    errors.dedup_by_key(|error| error.to_string());
    match errors.len() {
        1 => errors.remove(0),
        _ => Error::NoBackend { errors },
    }
}

/// Renders the rules as text instead of applying them, for the setting `simulate`.
pub fn simulate(Origin { redirect, families }: &Origin) -> String {
    let mut text = String::new();
    for &family in families.wanted() {
        for rule in rules::marked_rules(redirect, family, families.wanted()) {
            let verb = match rule.verdict {
                Verdict::Jump(_) => "jump",
                _ => "rule",
            };
            text.push_str(&format!("{family:?} {verb} {}\n", rules::rule_line(&rule)));
        }
    }
    text
}
