//! Checks that the redirect rules are in the kernel, for CHECK and for the repair controller.
//!
//! A pod keeps the rules that it started with, so rules are compared with the redirect of their marker,
//! see [`rules::marker`]. Rules without a readable marker are from another version of the plugin or from
//! upstream: they are missing only if they are neither today's nor redirect.

use super::native::listing::Listing;
use super::unsupported::{is_unsupported, run_for};
use super::{DEADLINE, Error, combined, has_own_programs, iptables, is_locked};
use crate::deadline::Deadline;
use crate::redirect::backend::{Backend, IptablesMode};
use crate::redirect::rules::{self, Chain, ListedRules};
use crate::redirect::{Families, Family, Origin, Redirect};

/// Number of missing rules that [`describe_missing`] names. A pod without port lists and subnets has
/// at most eight rules for each address family.
const MISSING_NAMED: usize = 10;

/// When the redirect of a marker was computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Today,
    Earlier,
    /// Earlier, and without the pod object.
    Guessed,
    /// No marker can be read.
    Unknown,
}

/// Returns what a marker says: the origin of the rules that the pod started with, if that is known.
fn read_marker(marker: Option<&str>, today: Option<&Origin>) -> (Age, Option<Origin>) {
    let Some(marker) = marker else {
        return (Age::Unknown, None);
    };
    let is_guessed = rules::is_guessed(marker);
    if let Some(today) = today {
        let redirect = Redirect { is_guessed, ..today.redirect.clone() };
        let of_today: &[Families] = match today.families {
            Families::OptionalIpv6 => &[Families::Both, Families::Ipv4],
            Families::Both => &[Families::Both],
            Families::Ipv4 => &[Families::Ipv4],
        };
        let is_of = |families: &Families| marker == rules::marker(&redirect, families.wanted());
        if let Some(&families) = of_today.iter().find(|families| is_of(families)) {
            return (Age::Today, Some(Origin { families, redirect: today.redirect.clone() }));
        }
    }
    match rules::marked_origin(marker) {
        origin if is_guessed => (Age::Guessed, origin),
        Some(origin) => (Age::Earlier, Some(origin)),
        None => (Age::Unknown, None),
    }
}

/// Returns the pod's rules that are missing in the netns, as lines of `iptables-save`. The list is empty
/// if any backend finds all rules in order: the mode may have changed since the pod started. Otherwise
/// it is the shortest of the lists of the mode's backends. `today` counts for rules without a marker.
/// Fails if no backend of the mode can list rules, or if one that may have the rules cannot, as rules
/// are not proven to be missing then.
pub fn missing(today: &Origin, mode: IptablesMode) -> Result<Vec<String>, Error> {
    let (listing, deadline) = (Listing::default(), Deadline::after(DEADLINE));
    let marker = match listing.marker() {
        Ok(Some(marker)) => Some(marker),
        listed => match legacy_marker(deadline)? {
            None => unless_unsupported(listed)?,
            legacy => legacy,
        },
    };
    let (_, origin) = read_marker(marker.as_deref(), Some(today));
    let wanted = origin.as_ref().unwrap_or(today);
    let missing = run_for(wanted.families, |families| {
        fewest_missing(&listing, wanted, families, mode, deadline)
    })?;
    if missing.is_empty() || origin.is_some() {
        return Ok(missing);
    }
    let native = is_redirecting(&|family| listing.comments(family));
    if matches!(native, Ok(true)) || is_redirecting(&|family| legacy_comments(family, deadline))? {
        return Ok(Vec::new());
    }
    native.map(|_| missing)
}

/// Returns the default for a list that kernel or node do not support: it has no rules.
fn unless_unsupported<T: Default>(listed: Result<T, Error>) -> Result<T, Error> {
    match listed {
        Err(error) if is_unsupported(&error) => Ok(T::default()),
        listed => listed,
    }
}

/// Whether rules of IPv4 redirect, and those of IPv6 unless there are none. `comments` lists the
/// comments of the rules of a family.
fn is_redirecting(
    comments: &dyn Fn(Family) -> Result<ListedRules<String>, Error>,
) -> Result<bool, Error> {
    if !rules::is_redirecting(&unless_unsupported(comments(Family::Ipv4))?) {
        return Ok(false);
    }
    let ipv6 = unless_unsupported(comments(Family::Ipv6))?;
    let mut linkerds = Chain::LINKERD.iter().map(|&chain| &ipv6[chain as usize]);
    Ok(linkerds.all(Vec::is_empty) || rules::is_redirecting(&ipv6))
}

/// Returns the marker of rules that only programs of the host can list.
fn legacy_marker(deadline: Deadline) -> Result<Option<String>, Error> {
    let comments = unless_unsupported(legacy_comments(Family::Ipv4, deadline))?;
    let mut markers = comments.iter().flatten().filter_map(|text| rules::split_comment(text).1);
    Ok(markers.next().map(str::to_owned))
}

/// Lists the comments of the rules of `iptables-legacy`.
fn legacy_comments(family: Family, deadline: Deadline) -> Result<ListedRules<String>, Error> {
    let mut backends = [Backend::Legacy, Backend::Plain].into_iter();
    match backends.find(|&backend| iptables::has_programs(backend, family)) {
        Some(backend) if has_legacy_nat() => iptables::comments(backend, family, deadline),
        _ => Ok(ListedRules::default()),
    }
}

/// Returns the shortest list of missing rules of the mode's backends, or an empty one if any backend
/// has all rules. Otherwise fails if a backend cannot be read, unless the node lacks it.
fn fewest_missing(
    listing: &Listing,
    Origin { redirect, .. }: &Origin,
    families: &[Family],
    mode: IptablesMode,
    deadline: Deadline,
) -> Result<Vec<String>, Error> {
    let of_mode = mode.backends();
    // Listing creates a missing legacy table, which would hide from `survey` that rules are missing.
    let has_legacy = has_legacy_nat();
    let is_other = |backend: &Backend| {
        !of_mode.contains(backend)
            && (has_legacy || [Backend::Native, Backend::Nft].contains(backend))
            && has_own_programs(*backend, families)
    };
    let others = Backend::ALL.into_iter().filter(is_other);
    let mut fewest: Option<Vec<String>> = None;
    let mut errors = Vec::new();
    for backend in of_mode.iter().copied().chain(others) {
        let missing = match backend {
            Backend::Native => listing.missing(redirect, families),
            _ if is_locked(&errors) => continue,
            backend => iptables::missing(redirect, families, backend, deadline),
        };
        match missing {
            Ok(missing) if missing.is_empty() => return Ok(missing),
            Ok(missing) => {
                let is_fewer = |fewest: &Vec<String>| missing.len() < fewest.len();
                if of_mode.contains(&backend) && fewest.as_ref().is_none_or(is_fewer) {
                    fewest = Some(missing);
                }
            }
            Err(error) => errors.push(error),
        }
    }
    match fewest {
        Some(fewest) if errors.iter().all(is_unsupported) => Ok(fewest),
        _ => Err(combined(errors)),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Survey {
    /// All rules are present, and are today's, or it is unknown which are today's.
    Complete,
    /// The pod has the rules that it started with. Today's are made from this.
    Drifted(Origin),
    /// These rules, made from this, are missing or changed. As lines of `iptables-save`.
    Missing(Origin, Vec<String>),
    /// Rules may exist in a table that only the host's `iptables-legacy` can read, or in one with too
    /// many rules. Or it is unknown both what the pod started with and what today's rules are.
    Unreadable,
}

/// Checks the rules of a pod without programs of the host, whichever backend wrote them. `today` is
/// what the plugin would install now, if that is known.
///
/// Reads the plugin's tables and the tables of `iptables-nft`, which are nf_tables tables too. For
/// `iptables-legacy`, only detects that a table exists.
pub fn survey(today: Option<&Origin>) -> Result<Survey, Error> {
    match survey_readable(today) {
        Err(Error::TooLong { .. }) => Ok(Survey::Unreadable),
        survey => survey,
    }
}

fn survey_readable(today: Option<&Origin>) -> Result<Survey, Error> {
    let listing = Listing::default();
    let (age, marked) = read_marker(listing.marker()?.as_deref(), today);
    if let (Age::Guessed, Some(today)) = (age, today) {
        let families = today.families.wanted().iter();
        let wanted = families.flat_map(|&family| rules::rules(&today.redirect, family));
        let wanted = wanted.map(|rule| rules::rule_line(&rule)).collect();
        return Ok(Survey::Missing(today.clone(), wanted));
    }
    let Some(origin) = marked.as_ref().or(today) else {
        return Ok(Survey::Unreadable);
    };
    let missing = run_for(origin.families, |families| {
        let missing = listing.missing(&origin.redirect, families)?;
        Ok(match listing.missing_from_iptables(&origin.redirect, families)? {
            // The chains of iptables run before the plugin's, so incomplete rules there matter even if
            // the plugin's rules are complete.
            Some(missing) => Some(missing),
            None if !missing.is_empty() && has_legacy_nat() => None,
            None => Some(missing),
        })
    })?;
    Ok(match (missing, today) {
        (None, _) => Survey::Unreadable,
        (Some(missing), Some(today)) if missing.is_empty() && age == Age::Earlier => {
            Survey::Drifted(today.clone())
        }
        (Some(missing), _) if missing.is_empty() => Survey::Complete,
        _ if marked.is_none() && is_redirecting(&|family| listing.comments(family))? => {
            Survey::Drifted(origin.clone())
        }
        (Some(missing), _) => Survey::Missing(origin.clone(), missing),
    })
}

/// Returns whether `iptables-legacy` created its table `nat` in the calling thread's netns.
fn has_legacy_nat() -> bool {
    [Family::Ipv4, Family::Ipv6].into_iter().any(has_legacy_nat_of)
}

pub(super) fn has_legacy_nat_of(family: Family) -> bool {
    let names = match family {
        Family::Ipv4 => "ip_tables_names",
        Family::Ipv6 => "ip6_tables_names",
    };
    // The file is missing if the kernel lacks legacy iptables.
    std::fs::read_to_string(format!("/proc/thread-self/net/{names}"))
        .is_ok_and(|names| names.lines().any(|name| name == rules::NAT_TABLE))
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
