//! Installs and checks redirect rules in the calling thread's netns.
//!
//! All backends install rules with the same effect. `native` sends them to nf_tables over netlink.
//! `nft`, `legacy` and `plain` run the host's iptables programs.

mod check;
mod error;
mod iptables;
mod loopback_routing;
pub mod native;

use std::fs;

use crate::deadline::Deadline;
use crate::redirect::backend_order::Backend;
use crate::redirect::{Family, Ipv6, Redirect, RuleSpec};
pub use check::{RulesState, describe_missing, missing_rules, rules_state};
pub use error::Error;

/// Chooses the address families that get rules.
///
/// [`Ipv6::Auto`] includes IPv6 if the kernel supports it, even if the pod has no IPv6 address. The
/// pod may get one after ADD: by router advertisement, from Multus, or by setting the sysctl
/// `disable_ipv6` of an interface to 0.
pub fn rule_spec(redirect: Redirect, ipv6: Ipv6) -> RuleSpec {
    let redirects_ipv6 = match ipv6 {
        Ipv6::Yes => true,
        Ipv6::No => false,
        // The file is missing if the kernel has no IPv6.
        Ipv6::Auto => fs::exists("/proc/thread-self/net/if_inet6").unwrap_or(true),
    };
    RuleSpec { redirect, families: if redirects_ipv6 { Family::ALL } else { Family::IPV4 } }
}

/// Installs the rules with the first of `backends` that works, and returns the backend used. This
/// backend may not be one of `backends`: see [`iptables::apply`].
///
/// The call is idempotent and keeps the rules of other programs. If a backend fails, the chains it
/// created are removed. Chains that existed before may keep the rules it wrote.
pub fn apply(spec: &RuleSpec, backends: &[Backend]) -> Result<Backend, Error> {
    let backend = apply_with_first_usable(spec, backends)?;
    // Must come after the rules. They protect the loopback addresses, which the sysctl exposes.
    loopback_routing::enable_if_needed(spec)?;
    Ok(backend)
}

fn apply_with_first_usable(spec: &RuleSpec, backends: &[Backend]) -> Result<Backend, Error> {
    let deadline = Deadline::after(iptables::PROGRAMS_BUDGET);
    let mut errors = Vec::new();
    for &backend in backends {
        match apply_with(backend, spec, deadline) {
            Ok(backend) => return Ok(backend),
            Err(error) => {
                let is_locked = matches!(error, Error::Locked { .. });
                errors.push(error);
                if is_locked {
                    // Another backend may run the same program, or wait for the same lock.
                    break;
                }
            }
        }
    }
    // All iptables backends fail with the same error if the host has no iptables programs.
    errors.dedup_by_key(|error| error.to_string());
    if errors.len() == 1 {
        return Err(errors.remove(0));
    }
    Err(Error::NoBackend { errors })
}

/// Installs the rules with `backend`, and returns the backend whose programs were used.
fn apply_with(backend: Backend, spec: &RuleSpec, deadline: Deadline) -> Result<Backend, Error> {
    let RuleSpec { redirect, families } = spec;
    match backend {
        Backend::Native => {
            native::apply(redirect, families)?;
            Ok(Backend::Native)
        }
        Backend::Nft | Backend::Legacy | Backend::Plain => {
            iptables::apply(redirect, families, backend, deadline)
        }
    }
}

/// Installs the rules over netlink in a pod that is being repaired. Runs no programs of the host.
/// Fails if nf_tables is not usable in this kernel.
///
/// Also deletes old rules that could redirect connections that the new rules skip: those of
/// `iptables-nft`, and the IPv6 rules if `spec` has IPv4 only.
///
/// The work takes several transactions. If it is interrupted, [`rules_state`] must still report
/// missing rules, so that the repair is retried. The rules of an unwanted family are therefore
/// deleted first, while rules of the other family are still missing.
pub fn install_native(spec: &RuleSpec) -> Result<(), Error> {
    // Set the sysctl first. This step fails in a container that may not write sysctls, and the pod
    // must not start with rules but without the sysctl.
    loopback_routing::enable_if_needed(spec)?;
    native::flush_other_families(spec.families)?;
    native::apply(&spec.redirect, spec.families)?;
    native::flush_iptables(spec.families)
}
