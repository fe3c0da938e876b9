//! Checks that the redirect rules are in the kernel, for CHECK and for the repair controller.
//!
//! A pod keeps the rules that it started with, so rules are compared with the redirect of their marker,
//! see [`rules::marker`]. Rules without a readable marker are from another version of the plugin or from
//! upstream: they are missing only if they are neither today's nor redirect.

use std::convert::Infallible;

use super::native::listing::Listing;
use super::{DEADLINE, Error, iptables};
use crate::deadline::Deadline;
use crate::redirect::rules::{self, Chain, ListedRules, Rule};
use crate::redirect::{Family, Redirect, RuleSpec};

/// Number of missing rules that [`describe_missing`] names. A pod without port lists and subnets has
/// at most eight rules for each address family.
const MISSING_NAMED: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulesState {
    /// All rules are present. They are today's rules, or today's rules are unknown.
    Complete,
    /// The pod has the rules that it started with, not today's rules, which have this spec.
    Drifted(RuleSpec),
    /// These rules of this spec, as lines of `iptables-save`, are missing or changed.
    Missing(RuleSpec, Vec<String>),
    /// Rules may exist in a table that only the host's `iptables-legacy` can read, or in a table
    /// with too many rules. Or both the rules of the pod's start and today's rules are unknown.
    Unreadable,
}

/// Returns the pod's rules that are missing in the netns, as lines of `iptables-save`, whichever
/// backend wrote them. `today` applies to rules without a readable marker. `None`: it is unknown
/// which rules the pod needs. Runs the host's programs only if `iptables-legacy` may have a table.
/// Fails if rules cannot be listed: that does not prove them missing.
pub fn missing_rules(today: Option<&RuleSpec>) -> Result<Option<Vec<String>>, Error> {
    Ok(match compared(today, true)? {
        RulesState::Complete | RulesState::Drifted(_) => Some(Vec::new()),
        RulesState::Missing(_, missing) => Some(missing),
        RulesState::Unreadable => None,
    })
}

/// Checks the rules of a pod without programs of the host, whichever backend wrote them. `today` is
/// what the plugin would install now, if that is known. A wrong guess counts as missing rules.
///
/// Reads the plugin's tables and the tables of `iptables-nft`, which are nf_tables tables too. For
/// `iptables-legacy`, only detects that a table exists.
pub fn rules_state(today: Option<&RuleSpec>) -> Result<RulesState, Error> {
    match compared(today, false) {
        Err(Error::TooLong { .. }) => Ok(RulesState::Unreadable),
        state => state,
    }
}

/// Compares the rules in the netns with those of their marker, or else with today's.
fn compared(today: Option<&RuleSpec>, is_check: bool) -> Result<RulesState, Error> {
    let mut listing = Listing::read()?;
    let has_rules = |family: &Family| {
        has_linkerds(&listing.iptables[*family as usize])
            || has_linkerds(&listing.plugin_comments(*family))
    };
    if listing.marker.is_none()
        && !Family::ALL.iter().any(has_rules)
        && Family::ALL.iter().copied().any(iptables::has_legacy_nat)
    {
        if !is_check {
            return Ok(RulesState::Unreadable);
        }
        let deadline = Deadline::after(DEADLINE);
        let [ipv4, ipv6] =
            [Family::Ipv4, Family::Ipv6].map(|family| iptables::legacy_comments(family, deadline));
        listing.iptables = [ipv4?, ipv6?];
        let mut comments = listing.iptables.iter().flatten().flatten();
        let marker = comments.find_map(|comment| rules::split_comment(comment).1);
        listing.marker = marker.map(str::to_owned);
    }
    let marker = listing.marker.as_deref();
    let is_guessed = marker.is_some_and(rules::is_guessed);
    let is_marked = |today: &&RuleSpec| {
        let redirect = Redirect { is_guessed, ..today.redirect.clone() };
        marker == Some(&rules::marker(&redirect, today.families))
    };
    let marked_today = today.filter(is_marked);
    let earlier = marker.filter(|_| marked_today.is_none()).and_then(rules::parse_marker);
    let known = marked_today.or(earlier.as_ref());
    let Some(spec) = known.or(today) else {
        return Ok(RulesState::Unreadable);
    };
    if let Some(today) = today
        && is_guessed
        && !is_check
        && marked_today.is_none()
    {
        return Ok(RulesState::Missing(today.clone(), by_comments(today, &Default::default())));
    }
    // The chains of iptables run before the plugin's, so incomplete rules there matter even if the
    // plugin's rules are complete.
    let mut of_iptables = spec.families.iter().map(|&family| &listing.iptables[family as usize]);
    let missing = match of_iptables.any(has_linkerds) {
        true => by_comments(spec, &listing.iptables),
        false => listing.missing(&spec.redirect, spec.families)?,
    };
    Ok(match today {
        Some(today) if missing.is_empty() && earlier.is_some() && !is_guessed => {
            RulesState::Drifted(today.clone())
        }
        _ if missing.is_empty() => RulesState::Complete,
        _ if known.is_none() && is_redirecting(&listing) => RulesState::Drifted(spec.clone()),
        _ => RulesState::Missing(spec.clone(), missing),
    })
}

/// Compares rules of iptables by their comments, which name skipped ports and subnets. A change of the
/// proxy's UID, GID or ports is not detected.
fn by_comments(
    RuleSpec { redirect, families }: &RuleSpec,
    comments: &[ListedRules<String>; 2],
) -> Vec<String> {
    let is_same = |run: &[Rule], found: &String| {
        Ok::<_, Infallible>(rules::split_comment(found).0 == run[0].comment)
    };
    let missing = |&family: &Family| {
        let rules = rules::rules(redirect, family);
        let found = &comments[family as usize];
        let Ok(missing) = rules::missing_in_order(rules.chunks(1), found, &Chain::LINKERD, is_same);
        missing
    };
    families.iter().flat_map(missing).collect()
}

fn has_linkerds(comments: &ListedRules<String>) -> bool {
    Chain::LINKERD.iter().any(|&chain| !comments[chain as usize].is_empty())
}

/// Whether the rules that decide redirect: rules of IPv4, and those of IPv6 unless there are none.
fn is_redirecting(listing: &Listing) -> bool {
    let [ipv4, ipv6] = [Family::Ipv4, Family::Ipv6].map(|family| {
        let of_iptables = &listing.iptables[family as usize];
        match has_linkerds(of_iptables) {
            true => of_iptables.clone(),
            false => listing.plugin_comments(family),
        }
    });
    rules::is_redirecting(&ipv4) && (!has_linkerds(&ipv6) || rules::is_redirecting(&ipv6))
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
