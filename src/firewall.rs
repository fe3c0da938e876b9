//! Writes redirect rules into the kernel and checks them, in the calling thread's netns.
//!
//! All backends write rules of the same meaning: `native` sends them to nf_tables over netlink; `nft`,
//! `legacy` and `plain` run the host's iptables programs.

mod check;
mod iptables;
pub mod native;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::redirect::backend::Backend;
use crate::redirect::{Family, Ipv6, Redirect, RuleSpec};
pub use check::{RulesState, describe_missing, missing_rules, rules_state};

/// Time allowed for the programs of all backends of one call together. The plugin's deadline for a netns
/// is longer, so that an error names the program.
const DEADLINE: Duration = Duration::from_secs(15);

const NO_IPV6: &str = "if the node cannot redirect IPv6, set the chart's disableIPv6 to true";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kernel rejected {subject}: {source}")]
    Native { subject: String, remedy: String, source: nix::Error },
    #[error(
        "none of {wanted}, together with its -restore program, is in PATH, /usr/sbin, /sbin, /usr/bin or /bin of the node"
    )]
    NoPrograms { wanted: String },
    #[error("{} failed: {stderr}", program.display())]
    Restore { program: PathBuf, stderr: String },
    #[error("{} did not get the xtables lock in time: {lock}", program.display())]
    Locked { program: PathBuf, lock: String },
    #[error(
        "{subject} in the pod's network namespace is too long to read: a process of the pod with CAP_NET_ADMIN may have added rules"
    )]
    TooLong { subject: String },
    #[error("no backend is usable: {}", errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; "))]
    NoBackend { errors: Vec<Error> },
    #[error("{problem}")]
    Other { problem: String, remedy: Option<&'static str> },
}

impl Error {
    pub fn remedy(&self) -> Option<String> {
        match self {
            Error::Locked { .. } => Some(
                "end what the process that holds the lock is doing, or set the chart's iptablesMode to native, which needs no lock".to_owned(),
            ),
            Error::Other { remedy, .. } => remedy.map(str::to_owned),
            Error::Restore { program, .. } if program.to_string_lossy().contains("ip6tables") => {
                Some(NO_IPV6.to_owned())
            }
            Error::Native { remedy, .. } => Some(remedy.clone()).filter(|text| !text.is_empty()),
            Error::NoBackend { errors } => {
                let remedies: Vec<String> = errors.iter().filter_map(Error::remedy).collect();
                (!remedies.is_empty()).then(|| remedies.join("; "))
            }
            _ => None,
        }
    }
}

fn other(problem: impl Into<String>) -> Error {
    Error::Other { problem: problem.into(), remedy: None }
}

/// Chooses the address families. With [`Ipv6::Auto`], those of the kernel, not of the pod's addresses: a
/// pod may get an IPv6 address after its ADD, by router advertisement, from Multus, or because it sets
/// the sysctl `disable_ipv6` of an interface to 0.
pub fn rule_spec(redirect: Redirect, ipv6: Ipv6) -> RuleSpec {
    let is_redirected = match ipv6 {
        Ipv6::Yes => true,
        Ipv6::No => false,
        // The file is missing if the kernel has no IPv6.
        Ipv6::Auto => fs::exists("/proc/thread-self/net/if_inet6").unwrap_or(true),
    };
    RuleSpec { redirect, families: if is_redirected { Family::ALL } else { Family::IPV4 } }
}

/// Writes the rules of `redirect` with the first usable backend, and returns the backend that wrote
/// them. If the host lacks the programs of a backend, another variant writes the rules, see
/// [`iptables::apply`]. Idempotent. Keeps foreign rules. Removes the chains that a failed backend
/// created; chains that existed before keep the rules that it wrote.
pub fn apply(
    RuleSpec { redirect, families }: &RuleSpec,
    backends: &[Backend],
) -> Result<Backend, Error> {
    let deadline = Deadline::after(DEADLINE);
    let mut errors = Vec::new();
    for &backend in backends {
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

/// Corrects what [`rules_state`] reported as missing, without programs of the host: writes the rules to the
/// plugin's tables and deletes those of `iptables-nft`, which would decide first, and those of IPv6 if
/// the pod has IPv4 rules only.
/// Fails if nf_tables is not usable in this kernel.
pub fn install_native(RuleSpec { redirect, families }: &RuleSpec) -> Result<(), Error> {
    native::apply(redirect, families)?;
    native::flush_others(families)
}
