//! Checks that the redirect rules are in the kernel, for CHECK and for the repair controller.
//!
//! A pod keeps the rules that it started with, so rules are compared with the redirect of their marker,
//! see [`rules::marker`]. Rules without a readable marker are from another version of the plugin or from
//! upstream: they are missing only if they are neither today's nor redirect.

use super::native::listing::Listing;
use super::unsupported::{is_unsupported, run_for};
use super::{DEADLINE, Error, iptables};
use crate::deadline::Deadline;
use crate::redirect::rules::{self, Chain, ListedRules, Rule};
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

/// Returns the pod's rules that are missing in the netns, as lines of `iptables-save`, whichever backend wrote
/// them. `today` counts for rules without a readable marker. `None`: it is unknown which rules the pod needs.
/// Runs the host's programs only where rules may be in a table of `iptables-legacy`.
/// Fails if rules cannot be listed, as they are not proven to be missing then.
pub fn missing(today: Option<&Origin>) -> Result<Option<Vec<String>>, Error> {
    let deadline = Deadline::after(DEADLINE);
    let legacy = |family| iptables::legacy_comments(family, deadline);
    let mut listing = Listing::default();
    let mut marker = match listing.marker() {
        Err(error) if is_unsupported(&error) => {
            listing = Listing::of_no_rules();
            None
        }
        marker => marker?,
    };
    if marker.is_none() && has_legacy_nat() {
        let comments = legacy(Family::Ipv4)?;
        let mut markers = comments.iter().flatten().filter_map(|text| rules::split_comment(text).1);
        marker = markers.next().map(str::to_owned);
    }
    let (_, marked) = read_marker(marker.as_deref(), today);
    let Some(origin) = marked.as_ref().or(today) else {
        return Ok(None);
    };
    let missing = missing_of(&listing, origin, Some(&legacy))?;
    let is_proven = missing.as_ref().is_none_or(Vec::is_empty) || marked.is_some();
    let redirects = !is_proven
        && (is_redirecting(&|family| listing.comments(family))?
            || has_legacy_nat() && is_redirecting(&legacy)?);
    Ok(if redirects { Some(Vec::new()) } else { missing })
}

type ListComments<'f> = dyn Fn(Family) -> Result<ListedRules<String>, Error> + 'f;

/// Returns the rules that are missing. `None`: they may be in a table of `iptables-legacy`, which `legacy`
/// lists.
fn missing_of(
    listing: &Listing,
    Origin { redirect, families }: &Origin,
    legacy: Option<&ListComments<'_>>,
) -> Result<Option<Vec<String>>, Error> {
    run_for(*families, |families| {
        let of_iptables = |comments: &ListComments<'_>| by_comments(redirect, families, comments);
        // The chains of iptables run before the plugin's, so incomplete rules there matter even if the
        // plugin's rules are complete.
        if let Some(missing) = of_iptables(&|family| listing.nat_comments(family))? {
            return Ok(Some(missing));
        }
        let missing = listing.missing(redirect, families)?;
        if missing.is_empty() || !has_legacy_nat() {
            return Ok(Some(missing));
        }
        legacy.map(|legacy| Ok(of_iptables(legacy)?.unwrap_or(missing))).transpose()
    })
}

/// Compares rules of iptables by their comments, which name skipped ports and subnets. A change of the
/// proxy's UID, GID or ports is not detected. Returns `None` if the `PROXY_INIT_*` chains are empty.
fn by_comments(
    redirect: &Redirect,
    families: &[Family],
    comments: &ListComments<'_>,
) -> Result<Option<Vec<String>>, Error> {
    let mut missing = Vec::new();
    let mut has_rules = false;
    for &family in families {
        let found = comments(family)?;
        has_rules |= Chain::LINKERD.iter().any(|&chain| !found[chain as usize].is_empty());
        let rules = rules::rules(redirect, family);
        let is_same =
            |run: &[Rule], found: &String| Ok(rules::split_comment(found).0 == run[0].comment);
        let found = found.each_ref().map(Vec::as_slice);
        let runs = &mut rules.chunks(1);
        missing.extend(rules::missing_in_order(runs, found, &Chain::LINKERD, &is_same)?);
    }
    Ok(has_rules.then_some(missing))
}

/// Whether rules of IPv4 redirect, and those of IPv6 unless there are none.
fn is_redirecting(comments: &ListComments<'_>) -> Result<bool, Error> {
    if !rules::is_redirecting(&comments(Family::Ipv4)?) {
        return Ok(false);
    }
    let ipv6 = match comments(Family::Ipv6) {
        Err(error) if is_unsupported(&error) => ListedRules::default(),
        ipv6 => ipv6?,
    };
    let mut linkerds = Chain::LINKERD.iter().map(|&chain| &ipv6[chain as usize]);
    Ok(linkerds.all(Vec::is_empty) || rules::is_redirecting(&ipv6))
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
    let Some(missing) = missing_of(&listing, origin, None)? else {
        return Ok(Survey::Unreadable);
    };
    Ok(match today {
        Some(today) if missing.is_empty() && age == Age::Earlier => Survey::Drifted(today.clone()),
        _ if missing.is_empty() => Survey::Complete,
        _ if marked.is_none() && is_redirecting(&|family| listing.comments(family))? => {
            Survey::Drifted(origin.clone())
        }
        _ => Survey::Missing(origin.clone(), missing),
    })
}

/// Returns whether `iptables-legacy` created its table `nat` in the calling thread's netns.
fn has_legacy_nat() -> bool {
    [Family::Ipv4, Family::Ipv6].into_iter().any(iptables::has_legacy_nat)
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
