//! Checks that the redirect rules are in the kernel, for CHECK and for the repair controller.

use super::families::is_unsupported;
use super::iptables::{self, Variant};
use super::{
    Backend, DEADLINE, Error, Families, IptablesMode, backends, combined, is_locked, native,
};
use crate::deadline::Deadline;
use crate::rules::{self, Family, Redirect};

/// Number of missing rules that [`describe_missing`] names. A pod without port lists and subnets has
/// at most eight rules for each address family.
const MISSING_NAMED: usize = 10;

/// Returns the rules of `redirect` that are missing in the netns, as lines of `iptables-save`. The
/// list is empty if any backend finds all rules in order: the mode may have changed since the pod
/// started. Otherwise it is the shortest of the lists of the mode's backends.
///
/// # Errors
/// Fails if no backend of the mode can list rules, or if one that may have the rules cannot, as rules
/// are not proven to be missing then.
pub fn missing(
    redirect: &Redirect,
    families: Families,
    mode: IptablesMode,
) -> Result<Vec<String>, Error> {
    let deadline = Deadline::after(DEADLINE);
    let missing = missing_of(redirect, families.required(), mode, deadline)?;
    if families != Families::OptionalIpv6 || !missing.is_empty() {
        return Ok(missing);
    }
    match missing_of(redirect, &[Family::Ipv6], mode, deadline) {
        Ok(missing) if is_partial(redirect, &missing) => Ok(missing),
        Err(error) if !is_unsupported(&error) => Err(error),
        _ => Ok(Vec::new()),
    }
}

/// Whether IPv6 rules are installed, but not all. Without any, the pod has the rules of an older
/// plugin version or of a node that cannot program IPv6.
fn is_partial(redirect: &Redirect, missing: &[String]) -> bool {
    (1..rules::rules(redirect, Family::Ipv6).len()).contains(&missing.len())
}

fn missing_of(
    redirect: &Redirect,
    families: &[Family],
    mode: IptablesMode,
    deadline: Deadline,
) -> Result<Vec<String>, Error> {
    let of_mode = backends(mode);
    let missing = fewest_missing(redirect, families, of_mode, deadline);
    if missing.as_ref().is_ok_and(Vec::is_empty) {
        return missing;
    }
    // Listing creates a missing legacy table, which would hide from `survey` that rules are missing.
    let has_legacy = has_legacy_nat();
    let others: Vec<Backend> = Backend::ALL
        .into_iter()
        .filter(|backend| !of_mode.contains(backend) && backend.has_programs(families))
        .filter(|backend| {
            has_legacy || matches!(backend, Backend::Native | Backend::Iptables(Variant::Nft))
        })
        .collect();
    match fewest_missing(redirect, families, &others, deadline) {
        Ok(none) if none.is_empty() => Ok(none),
        Err(error) if !is_unsupported(&error) => missing.and(Err(error)),
        _ => missing,
    }
}

/// Returns the shortest of the backends' lists of missing rules. Without a backend that has all, fails if
/// one of them cannot be read, unless the node lacks it.
fn fewest_missing(
    redirect: &Redirect,
    families: &[Family],
    backends: &[Backend],
    deadline: Deadline,
) -> Result<Vec<String>, Error> {
    let mut fewest: Option<Vec<String>> = None;
    let mut errors = Vec::new();
    for &backend in backends {
        let missing = match backend {
            Backend::Native => native::missing(redirect, families),
            Backend::Iptables(variant) => iptables::missing(redirect, families, variant, deadline),
        };
        match missing {
            Ok(missing) if missing.is_empty() => return Ok(missing),
            Ok(missing) if fewest.as_ref().is_none_or(|fewest| missing.len() < fewest.len()) => {
                fewest = Some(missing);
            }
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
        if is_locked(&errors) {
            break;
        }
    }
    match fewest {
        Some(fewest) if errors.iter().all(is_unsupported) => Ok(fewest),
        _ => Err(combined(errors)),
    }
}

/// Result of [`survey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Survey {
    /// All rules are present.
    Complete,
    /// These rules are missing or changed, as lines of `iptables-save`.
    Missing(Vec<String>),
    /// Rules may exist in a table that only the host's `iptables-legacy` can read.
    Unreadable,
}

/// Checks for the rules of `redirect` without programs of the host, whichever backend wrote them.
///
/// Reads the plugin's tables and the tables of `iptables-nft`, which are nf_tables tables too. For
/// `iptables-legacy`, only detects that a table exists.
///
/// # Errors
/// Fails if the kernel cannot list rules.
pub fn survey(redirect: &Redirect, families: Families) -> Result<Survey, Error> {
    let survey = survey_of(redirect, families.required())?;
    if families != Families::OptionalIpv6 || survey != Survey::Complete {
        return Ok(survey);
    }
    match survey_of(redirect, &[Family::Ipv6]) {
        Ok(Survey::Missing(missing)) if is_partial(redirect, &missing) => {
            Ok(Survey::Missing(missing))
        }
        Err(error) if !is_unsupported(&error) => Err(error),
        _ => Ok(Survey::Complete),
    }
}

fn survey_of(redirect: &Redirect, families: &[Family]) -> Result<Survey, Error> {
    let missing = native::missing(redirect, families)?;
    Ok(match native::missing_from_iptables(redirect, families)? {
        // The chains of iptables run before the plugin's, so incomplete rules there matter even if
        // the plugin's rules are complete.
        Some(missing) if !missing.is_empty() => Survey::Missing(missing),
        Some(_) => Survey::Complete,
        None if missing.is_empty() => Survey::Complete,
        None if has_legacy_nat() => Survey::Unreadable,
        None => Survey::Missing(missing),
    })
}

/// Returns whether `iptables-legacy` created its table `nat` in the calling thread's netns.
fn has_legacy_nat() -> bool {
    ["ip_tables_names", "ip6_tables_names"].iter().any(|names| {
        // The file is missing if the kernel lacks legacy iptables.
        std::fs::read_to_string(format!("/proc/thread-self/net/{names}"))
            .is_ok_and(|names| names.lines().any(|name| name == rules::NAT_TABLE))
    })
}

/// Describes missing rules in an error or a log line: the first ones, and the number of the others.
/// A pod's annotations may need thousands of rules.
pub fn describe_missing(missing: &[String]) -> String {
    let (named, others) = missing.split_at(missing.len().min(MISSING_NAMED));
    match others.len() {
        0 => named.join("; "),
        count => format!("{}; and {count} more", named.join("; ")),
    }
}
