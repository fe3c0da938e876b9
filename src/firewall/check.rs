//! Checks that the redirect rules are in the kernel, for CHECK and for the repair controller.
//!
//! A pod keeps the rules that it started with, so rules are compared with the redirect of their marker,
//! see [`rules::marker`]. Rules without a readable marker are from another version of the plugin or from
//! upstream: they are missing only if they are neither today's nor redirect.

use super::iptables;
use super::unsupported::{is_unsupported, run_for};
use super::{DEADLINE, Error, combined, has_own_programs, is_locked, native};
use crate::deadline::Deadline;
use crate::redirect::backend::{Backend, IptablesMode, Variant};
use crate::redirect::rules::{self, Chain, ListedRules};
use crate::redirect::{Families, Family, Redirect};

/// Number of missing rules that [`describe_missing`] names. A pod without port lists and subnets has
/// at most eight rules for each address family.
const MISSING_NAMED: usize = 10;

/// What the rules of a pod are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub redirect: Redirect,
    pub families: Families,
}

/// What a marker says.
enum Marked {
    /// The pod started with today's redirect, and with these families.
    Today(Origin),
    /// The pod started with this redirect.
    Earlier(Origin),
    /// The pod started with another redirect than today's, computed without its object. `None` if only
    /// the digest of that is known.
    Guessed(Option<Origin>),
    /// No marker can be read.
    Unknown,
}

impl Marked {
    fn new(marker: Option<&str>, today: Option<&Origin>) -> Self {
        let Some(marker) = marker else {
            return Marked::Unknown;
        };
        today.and_then(|today| Self::of_today(marker, today)).unwrap_or_else(|| {
            let origin = rules::marked_redirect(marker).map(|(redirect, families)| {
                let has_ipv6 = families.contains(&Family::Ipv6);
                let families = if has_ipv6 { Families::Both } else { Families::Ipv4 };
                Origin { redirect, families }
            });
            match rules::is_guessed(marker) {
                true => Marked::Guessed(origin),
                false => origin.map_or(Marked::Unknown, Marked::Earlier),
            }
        })
    }

    /// Returns [`Marked::Today`] if the marker is that of today's redirect.
    fn of_today(marker: &str, today: &Origin) -> Option<Self> {
        let of_today: &[Families] = match today.families {
            Families::OptionalIpv6 => &[Families::Both, Families::Ipv4],
            Families::Both => &[Families::Both],
            Families::Ipv4 => &[Families::Ipv4],
        };
        let is_guessed = rules::is_guessed(marker);
        let redirect = Redirect { is_guessed, ..today.redirect.clone() };
        let is_of = |families: Families| marker == rules::marker(&redirect, families.wanted());
        let families = *of_today.iter().find(|&&families| is_of(families))?;
        Some(Marked::Today(Origin { families, redirect: today.redirect.clone() }))
    }

    /// Returns what the pod started with, if that is known.
    fn origin(&self) -> Option<&Origin> {
        match self {
            Marked::Today(origin) | Marked::Earlier(origin) => Some(origin),
            Marked::Guessed(origin) => origin.as_ref(),
            Marked::Unknown => None,
        }
    }
}

/// Returns the pod's rules that are missing in the netns, as lines of `iptables-save`. The list is empty
/// if any backend finds all rules in order: the mode may have changed since the pod started. Otherwise
/// it is the shortest of the lists of the mode's backends. `today` counts for rules without a marker.
///
/// # Errors
/// Fails if no backend of the mode can list rules, or if one that may have the rules cannot, as rules
/// are not proven to be missing then.
pub fn missing(today: &Origin, mode: IptablesMode) -> Result<Vec<String>, Error> {
    let deadline = Deadline::after(DEADLINE);
    let marker = match native::marker() {
        Ok(Some(marker)) => Some(marker),
        native => match legacy_marker(deadline)? {
            None => unless_unsupported(native)?,
            legacy => legacy,
        },
    };
    let marked = Marked::new(marker.as_deref(), Some(today));
    let Origin { redirect, families } = marked.origin().unwrap_or(today);
    let missing = run_for(*families, |families| missing_of(redirect, families, mode, deadline))?;
    if missing.is_empty() || marked.origin().is_some() {
        return Ok(missing);
    }
    let of_legacy = |family| legacy_comments(family, deadline);
    let native = is_redirecting(&native::comments);
    if matches!(native, Ok(true)) || is_redirecting(&of_legacy)? {
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
    let variants = [Variant::Legacy, Variant::Plain].into_iter();
    let mut variants = variants.filter(|&variant| iptables::has_programs(variant, family));
    match variants.next().filter(|_| has_legacy_nat()) {
        Some(variant) => iptables::comments(variant, family, deadline),
        None => Ok(ListedRules::default()),
    }
}

fn missing_of(
    redirect: &Redirect,
    families: &[Family],
    mode: IptablesMode,
    deadline: Deadline,
) -> Result<Vec<String>, Error> {
    let of_mode = mode.backends();
    let missing = fewest_missing(redirect, families, of_mode, deadline);
    if missing.as_ref().is_ok_and(Vec::is_empty) {
        return missing;
    }
    // Listing creates a missing legacy table, which would hide from `survey` that rules are missing.
    let has_legacy = has_legacy_nat();
    let others: Vec<Backend> = Backend::ALL
        .into_iter()
        .filter(|backend| !of_mode.contains(backend) && has_own_programs(*backend, families))
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
///
/// # Errors
/// Fails if the kernel cannot list rules.
pub fn survey(today: Option<&Origin>) -> Result<Survey, Error> {
    match survey_readable(today) {
        Err(Error::TooLong { .. }) => Ok(Survey::Unreadable),
        survey => survey,
    }
}

fn survey_readable(today: Option<&Origin>) -> Result<Survey, Error> {
    let marked = Marked::new(native::marker()?.as_deref(), today);
    if let (Marked::Guessed(_), Some(today)) = (&marked, today) {
        let families = today.families.wanted().iter();
        let wanted = families.flat_map(|&family| rules::rules(&today.redirect, family));
        let wanted = wanted.map(|rule| rules::rule_line(&rule)).collect();
        return Ok(Survey::Missing(today.clone(), wanted));
    }
    let Some(origin) = marked.origin().or(today) else {
        return Ok(Survey::Unreadable);
    };
    let missing = run_for(origin.families, |families| survey_of(&origin.redirect, families))?;
    Ok(match missing {
        None => Survey::Unreadable,
        Some(missing) if missing.is_empty() => match (&marked, today) {
            (Marked::Earlier(_), Some(today)) => Survey::Drifted(today.clone()),
            _ => Survey::Complete,
        },
        Some(_) if marked.origin().is_none() && is_redirecting(&native::comments)? => {
            Survey::Drifted(origin.clone())
        }
        Some(missing) => Survey::Missing(origin.clone(), missing),
    })
}

/// Returns the missing rules; `None` if they may be in a table that cannot be read.
fn survey_of(redirect: &Redirect, families: &[Family]) -> Result<Option<Vec<String>>, Error> {
    let missing = native::missing(redirect, families)?;
    Ok(match native::missing_from_iptables(redirect, families)? {
        // The chains of iptables run before the plugin's, so incomplete rules there matter even if
        // the plugin's rules are complete.
        Some(missing) => Some(missing),
        None if !missing.is_empty() && has_legacy_nat() => None,
        None => Some(missing),
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
