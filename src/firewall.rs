//! Writes redirect rules into the kernel and checks them, in the calling thread's netns.
//!
//! All backends write rules of the same meaning: `native` sends them to nf_tables over netlink;
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

/// Chooses the address families of the rules. With [`Ipv6::Auto`] these are the families of the
/// kernel, not of the pod's addresses: a pod may get an IPv6 address after its ADD, by router
/// advertisement, from Multus, or because it sets the sysctl `disable_ipv6` of an interface to 0.
pub fn rule_spec(redirect: Redirect, ipv6: Ipv6) -> RuleSpec {
    let redirects_ipv6 = match ipv6 {
        Ipv6::Yes => true,
        Ipv6::No => false,
        // The file is missing if the kernel has no IPv6.
        Ipv6::Auto => fs::exists("/proc/thread-self/net/if_inet6").unwrap_or(true),
    };
    RuleSpec { redirect, families: if redirects_ipv6 { Family::ALL } else { Family::IPV4 } }
}

/// Writes the rules of `redirect` with the first usable backend, and returns the backend that wrote
/// them. If the host lacks the programs of a backend, another variant writes the rules, see
/// [`iptables::apply`]. Idempotent. Keeps foreign rules. Removes the chains that a failed backend
/// created; chains that existed before keep the rules that it wrote.
pub fn apply(spec: &RuleSpec, backends: &[Backend]) -> Result<Backend, Error> {
    let backend = apply_with_first_usable(spec, backends)?;
    // After the rules, which keep the loopback addresses closed.
    loopback_routing::allow(spec)?;
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
                    // The programs of other backends may be the same, or wait for the same lock.
                    break;
                }
            }
        }
    }
    // Backends look for the same programs, so that several may fail with the same error.
    errors.dedup_by_key(|error| error.to_string());
    if errors.len() == 1 {
        return Err(errors.remove(0));
    }
    Err(Error::NoBackend { errors })
}

/// Writes the rules with `backend`. Returns the backend whose programs wrote them.
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

/// Corrects what [`rules_state`] reported as missing, without programs of the host: writes the
/// rules to the plugin's tables and deletes the rules of `iptables-nft`, which might redirect what
/// the new rules skip, and the plugin's IPv6 rules if the pod has IPv4 rules only. Fails if
/// nf_tables is not usable in this kernel.
///
/// Takes several transactions, and may end after any of them: [`rules_state`] then reports missing
/// rules again. Rules of a family that the pod should not have are therefore deleted first, while
/// the other family's rules still show that a repair is needed.
pub fn install_native(spec: &RuleSpec) -> Result<(), Error> {
    // First, as it fails in a container that may not write sysctls, and the pod is not to start
    // without it.
    loopback_routing::allow(spec)?;
    native::flush_other_families(spec.families)?;
    native::apply(&spec.redirect, spec.families)?;
    native::flush_iptables(spec.families)
}
