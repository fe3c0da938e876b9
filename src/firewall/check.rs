//! Checks that the redirect rules are in the kernel, for CHECK and for the repair controller.
//!
//! A pod keeps the rules that it started with, so rules are compared with the redirect of their marker,
//! see [`rules::marker`]. Rules without a readable marker are from another version of the plugin or from
//! upstream: they are missing only if they are neither today's nor redirect.

use super::native::listing::Listing;
use super::{DEADLINE, Error, iptables};
use crate::deadline::Deadline;
use crate::redirect::rules::{self, Chain, ListedRules, Rule};
use crate::redirect::{Family, Origin, Redirect};

/// Number of missing rules that [`describe_missing`] names. A pod without port lists and subnets has
/// at most eight rules for each address family.
const MISSING_NAMED: usize = 10;

/// What a marker says of the redirect from which a pod's rules were made.
enum Marked {
    Today,
    Earlier(Origin),
    /// Made earlier and without the pod object. Its digest may be all that is known.
    Guessed(Option<Origin>),
    /// No marker can be read.
    Unknown,
}

impl Marked {
    fn read(marker: Option<&str>, today: Option<&Origin>) -> Marked {
        let Some(marker) = marker else {
            return Marked::Unknown;
        };
        let is_guessed = rules::is_guessed(marker);
        let is_of = |today: &Origin| {
            let redirect = Redirect { is_guessed, ..today.redirect.clone() };
            marker == rules::marker(&redirect, today.families)
        };
        match rules::marked_origin(marker) {
            _ if today.is_some_and(is_of) => Marked::Today,
            origin if is_guessed => Marked::Guessed(origin),
            origin => origin.map_or(Marked::Unknown, Marked::Earlier),
        }
    }
}

/// Returns the pod's rules that are missing in the netns, as lines of `iptables-save`, whichever backend wrote
/// them. `today` counts for rules without a readable marker. `None`: it is unknown which rules the pod needs.
/// Runs the host's programs only where rules may be in a table of `iptables-legacy`.
/// Fails if rules cannot be listed, as they are not proven to be missing then.
pub fn missing(today: Option<&Origin>) -> Result<Option<Vec<String>>, Error> {
    let deadline = Deadline::after(DEADLINE);
    let legacy = |family| iptables::legacy_comments(family, deadline);
    let listing = Listing::default();
    let mut marker = listing.marker()?;
    if marker.is_none() && has_legacy_nat() {
        let comments = legacy(Family::Ipv4)?;
        let mut markers = comments.iter().flatten().filter_map(|text| rules::split_comment(text).1);
        marker = markers.next().map(str::to_owned);
    }
    let marked = Marked::read(marker.as_deref(), today);
    Ok(match compared(&listing, &marked, today, Some(&legacy))? {
        Survey::Complete | Survey::Drifted(_) => Some(Vec::new()),
        Survey::Missing(_, missing) => Some(missing),
        Survey::Unreadable => None,
    })
}

type ListComments<'f> = dyn Fn(Family) -> Result<ListedRules<String>, Error> + 'f;

/// Compares the rules in the netns with those of the marker, or else with today's. `legacy` lists the
/// rules of `iptables-legacy`, where that is possible.
fn compared(
    listing: &Listing,
    marked: &Marked,
    today: Option<&Origin>,
    legacy: Option<&ListComments<'_>>,
) -> Result<Survey, Error> {
    let known = match marked {
        Marked::Today => today,
        Marked::Earlier(origin) => Some(origin),
        Marked::Guessed(origin) => origin.as_ref(),
        Marked::Unknown => None,
    };
    let Some(origin) = known.or(today) else {
        return Ok(Survey::Unreadable);
    };
    let Some(missing) = missing_of(listing, origin, legacy)? else {
        return Ok(Survey::Unreadable);
    };
    if missing.is_empty() {
        return Ok(match (marked, today) {
            (Marked::Earlier(_), Some(today)) => Survey::Drifted(today.clone()),
            _ => Survey::Complete,
        });
    }
    let is_other = known.is_none()
        && (is_redirecting(&|family| listing.comments(family))?
            || has_legacy_nat() && legacy.map_or(Ok(false), is_redirecting)?);
    let origin = origin.clone();
    Ok(if is_other { Survey::Drifted(origin) } else { Survey::Missing(origin, missing) })
}

/// Returns the rules that are missing. `None`: they may be in a table of `iptables-legacy`, which `legacy`
/// lists.
fn missing_of(
    listing: &Listing,
    origin: &Origin,
    legacy: Option<&ListComments<'_>>,
) -> Result<Option<Vec<String>>, Error> {
    // The chains of iptables run before the plugin's, so incomplete rules there matter even if the
    // plugin's rules are complete.
    if let Some(missing) = by_comments(origin, &|family| listing.nat_comments(family))? {
        return Ok(Some(missing));
    }
    let missing = listing.missing(&origin.redirect, origin.families)?;
    if missing.is_empty() || !has_legacy_nat() {
        return Ok(Some(missing));
    }
    legacy.map(|legacy| Ok(by_comments(origin, legacy)?.unwrap_or(missing))).transpose()
}

/// Compares rules of iptables by their comments, which name skipped ports and subnets. A change of the
/// proxy's UID, GID or ports is not detected. Returns `None` if the `PROXY_INIT_*` chains are empty.
fn by_comments(
    Origin { redirect, families }: &Origin,
    comments: &ListComments<'_>,
) -> Result<Option<Vec<String>>, Error> {
    let mut missing = Vec::new();
    let mut has_rules = false;
    for &family in *families {
        let found = comments(family)?;
        has_rules |= has_linkerds(&found);
        let rules = rules::rules(redirect, family);
        let is_same =
            |run: &[Rule], found: &String| Ok(rules::split_comment(found).0 == run[0].comment);
        let found = found.each_ref().map(Vec::as_slice);
        let runs = &mut rules.chunks(1);
        missing.extend(rules::missing_in_order(runs, found, &Chain::LINKERD, &is_same)?);
    }
    Ok(has_rules.then_some(missing))
}

fn has_linkerds(comments: &ListedRules<String>) -> bool {
    Chain::LINKERD.iter().any(|&chain| !comments[chain as usize].is_empty())
}

/// Whether rules of IPv4 redirect, and those of IPv6 unless there are none.
fn is_redirecting(comments: &ListComments<'_>) -> Result<bool, Error> {
    let ipv6 = comments(Family::Ipv6)?;
    Ok(rules::is_redirecting(&comments(Family::Ipv4)?)
        && (!has_linkerds(&ipv6) || rules::is_redirecting(&ipv6)))
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
/// what the plugin would install now, if that is known. A wrong guess counts as missing rules.
///
/// Reads the plugin's tables and the tables of `iptables-nft`, which are nf_tables tables too. For
/// `iptables-legacy`, only detects that a table exists.
pub fn survey(today: Option<&Origin>) -> Result<Survey, Error> {
    let listing = Listing::default();
    let compare = |marker: Option<String>| match (Marked::read(marker.as_deref(), today), today) {
        (Marked::Guessed(_), Some(today)) => {
            let families = today.families.iter();
            let wanted = families.flat_map(|&family| rules::rules(&today.redirect, family));
            let wanted = wanted.map(|rule| rules::rule_line(&rule)).collect();
            Ok(Survey::Missing(today.clone(), wanted))
        }
        (marked, _) => compared(&listing, &marked, today, None),
    };
    match listing.marker().and_then(compare) {
        Err(Error::TooLong { .. }) => Ok(Survey::Unreadable),
        survey => survey,
    }
}

/// Returns whether `iptables-legacy` created its table `nat` in the calling thread's netns.
fn has_legacy_nat() -> bool {
    Family::ALL.iter().copied().any(iptables::has_legacy_nat)
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
