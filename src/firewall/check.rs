//! Checks that the redirect rules are in the kernel, for CHECK and for the repair controller.
//!
//! A pod keeps the rules that it started with, so rules are compared with the redirect of their
//! marker, see [`rules::marker`]. Rules without a readable marker are from another version of the
//! plugin or from upstream: they are missing only if they are neither today's nor redirect.

use std::convert::Infallible;

use super::error::Error;
use super::iptables::{self, PROGRAMS_BUDGET};
use super::loopback_routing;
use super::native::listing::{FamilyListing, Listing, Tables, has_linkerds};
use crate::deadline::Deadline;
use crate::redirect::rules::{self, Chain, ListedRules};
use crate::redirect::{Family, Redirect, RuleSpec};

/// Number of missing rules that [`describe_missing`] names. A pod without port lists and subnets
/// has at most eight rules for each address family.
const MISSING_NAMED: usize = 10;

/// State of the redirect rules in a netns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulesState {
    /// All rules are present. They are today's rules, or today's rules are unknown.
    Complete,
    /// The pod has the rules that it started with. Today's rules have this spec, and differ: by
    /// other values, or by the hook priority of an earlier version of the plugin.
    Drifted(RuleSpec),
    /// These rules of this spec, as lines of `iptables-save`, are missing or changed.
    Missing(RuleSpec, Vec<String>),
    /// Rules may exist in a table that only the host's `iptables-legacy` can read, or in a table
    /// with too many rules. Or both the rules of the pod's start and today's rules are unknown.
    Unreadable,
}

/// What the state of the rules is for. Only CHECK runs in a container that has the host's programs.
#[derive(Clone, Copy)]
enum Purpose {
    Check,
    Repair,
}

/// Returns the pod's rules that are missing in the netns, as lines of `iptables-save`, whichever
/// backend wrote them. `today` applies to rules without a readable marker. Returns `None` if the
/// rules that the pod needs are unknown. Runs the host's programs only if `iptables-legacy` may
/// have a table. Fails if rules cannot be listed: such rules may be present.
pub fn missing_rules(today: Option<&RuleSpec>) -> Result<Option<Vec<String>>, Error> {
    match compare(today, Purpose::Check)? {
        RulesState::Complete | RulesState::Drifted(_) => Ok(Some(Vec::new())),
        RulesState::Missing(_, missing) => Ok(Some(missing)),
        RulesState::Unreadable => Ok(None),
    }
}

/// Checks the rules of a pod without programs of the host, whichever backend wrote them. `today` is
/// what the plugin would install now, if that is known. A wrong guess counts as missing rules.
///
/// Reads the plugin's tables and the tables of `iptables-nft`, which are nf_tables tables too. For
/// `iptables-legacy`, only detects that a table exists. Reads each family by itself.
pub fn rules_state(today: Option<&RuleSpec>) -> Result<RulesState, Error> {
    match compare(today, Purpose::Repair) {
        Err(Error::TooLong { .. }) => Ok(RulesState::Unreadable),
        state => state,
    }
}

/// Compares the rules in the netns with those of their marker, or else with today's.
fn compare(today: Option<&RuleSpec>, purpose: Purpose) -> Result<RulesState, Error> {
    let mut listing = Listing::read()?;
    let deadline = Deadline::after(PROGRAMS_BUDGET);
    for &family in Family::ALL {
        // Reading the legacy table of IPv4 may have found the marker, which tells the families.
        if !may_be_in_legacy_table(family, &listing, today, purpose) {
            continue;
        }
        match purpose {
            Purpose::Check => {
                listing.set_iptables(family, iptables::legacy_comments(family, deadline)?);
            }
            Purpose::Repair => return Ok(RulesState::Unreadable),
        }
    }
    let is_guessed = listing.marker().is_some_and(rules::is_guessed);
    let is_todays = today.is_some_and(|today| has_marker_of(&listing, today));
    let earlier = if is_todays { None } else { listing.marked_spec() };
    if let Some(today) = today
        && let Purpose::Repair = purpose
        && is_guessed
        && !is_todays
    {
        // The rules were guessed and are wrong, so all rules of today count as missing.
        return Ok(RulesState::Missing(today.clone(), all_rules(today)));
    }
    let Some(spec) = earlier.as_ref().or(today) else {
        return Ok(RulesState::Unreadable);
    };
    let missing = missing_of(spec, &listing, purpose)?;
    if missing.is_empty() {
        let is_of_start = earlier.is_some() && !is_guessed;
        return Ok(match today {
            Some(today) if is_of_start || is_outdated(spec, &listing) => {
                RulesState::Drifted(today.clone())
            }
            _ => RulesState::Complete,
        });
    }
    let is_spec_known = is_todays || earlier.is_some();
    if !is_spec_known && is_redirecting(&listing) {
        return Ok(RulesState::Drifted(spec.clone()));
    }
    Ok(RulesState::Missing(spec.clone(), missing))
}

/// Returns whether the rules of `family` may be in a legacy table, which only the host's
/// `iptables-legacy` can list. One family can be in nf_tables and the other one in a legacy table,
/// if the host's programs for IPv4 and IPv6 are of different variants. No family is in legacy
/// tables if the plugin's tables have rules: only `native` writes to them, and it writes all
/// families there.
fn may_be_in_legacy_table(
    family: Family,
    listing: &Listing,
    today: Option<&RuleSpec>,
    purpose: Purpose,
) -> bool {
    if Family::ALL.iter().any(|&family| listing.of(family).has_traces_of_plugin()) {
        return false;
    }
    let families = match (listing.marked_spec(), purpose, today) {
        (Some(spec), _, _) => spec.families,
        (None, Purpose::Repair, Some(today)) => today.families,
        // The pod may have started with other families than today's.
        (None, _, _) => Family::ALL,
    };
    families.contains(&family)
        && !listing.of(family).has_traces_of_iptables()
        && iptables::has_legacy_nat(family)
}

/// Returns whether the rules have the marker of `today`, whether or not the pod object was read.
fn has_marker_of(listing: &Listing, today: &RuleSpec) -> bool {
    let Some(marker) = listing.marker() else {
        return false;
    };
    let is_guessed = rules::is_guessed(marker);
    let redirect = Redirect { is_guessed, ..today.redirect.clone() };
    marker == rules::marker(&redirect, today.families)
}

/// Returns the rules of `spec` that are missing in the tables that decide first, as lines of
/// `iptables-save`, and the sysctl that they need. For a repair also the rules that are missing
/// behind the plugin's tables.
fn missing_of(spec: &RuleSpec, listing: &Listing, purpose: Purpose) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    for &family in spec.families {
        let listed = listing.of(family);
        let deciding = listed.deciding();
        let mut of_family = match deciding {
            Tables::Plugin => listed.missing(&spec.redirect, family)?,
            Tables::Iptables => missing_by_comments(spec, family, listed.iptables()),
        };
        if let (Purpose::Repair, Tables::Plugin) = (purpose, deciding)
            && of_family.is_empty()
        {
            of_family = missing_behind_plugin(spec, family, listed);
        }
        missing.extend(of_family);
    }
    missing.extend(loopback_routing::missing_line(spec));
    Ok(missing)
}

/// Returns the rules that are missing or have other values in the tables of iptables, if these have
/// rules besides those of the plugin's tables, which decide first. A repair that ended early leaves
/// both, and the rules of iptables may redirect what the plugin's rules skip.
fn missing_behind_plugin(spec: &RuleSpec, family: Family, listed: &FamilyListing) -> Vec<String> {
    if !has_linkerds(listed.iptables()) {
        return Vec::new();
    }
    if listed.has_two_markers() {
        return rules_of_family(spec, family);
    }
    missing_by_comments(spec, family, listed.iptables())
}

/// Returns whether the rules that decide are the plugin's, and run after those of iptables as in an
/// earlier version of the plugin.
fn is_outdated(spec: &RuleSpec, listing: &Listing) -> bool {
    spec.families.iter().any(|&family| listing.of(family).is_outdated())
}

/// Returns all rules of `spec`, as lines of `iptables-save`.
fn all_rules(spec: &RuleSpec) -> Vec<String> {
    spec.families.iter().flat_map(|&family| rules_of_family(spec, family)).collect()
}

fn rules_of_family(spec: &RuleSpec, family: Family) -> Vec<String> {
    rules::rules(&spec.redirect, family).iter().map(rules::rule_line).collect()
}

/// Compares rules of iptables by their comments, which name skipped ports and subnets. A change of
/// the proxy's UID, GID or ports is not detected.
fn missing_by_comments(
    spec: &RuleSpec,
    family: Family,
    comments: &ListedRules<String>,
) -> Vec<String> {
    let rules = rules::rules(&spec.redirect, family);
    let Ok(missing) =
        rules::missing_in_order(rules.chunks(1), comments, &Chain::LINKERD, |run, comment| {
            Ok::<_, Infallible>(rules::split_comment(comment).0 == run[0].comment)
        });
    missing
}

/// Returns whether the deciding rules redirect: those of IPv4, and those of IPv6 unless there are
/// none.
fn is_redirecting(listing: &Listing) -> bool {
    let [ipv4, ipv6] =
        [Family::Ipv4, Family::Ipv6].map(|family| listing.of(family).deciding_comments());
    rules::is_redirecting(&ipv4) && (!has_linkerds(&ipv6) || rules::is_redirecting(&ipv6))
}

/// Describes missing rules in an error or a log line: the first ones, and the number of the others.
/// A pod's annotations may need thousands of rules.
pub fn describe_missing(missing: &[String]) -> String {
    let (named, others) = missing.split_at(missing.len().min(MISSING_NAMED));
    let named = named.join("; ");
    if others.is_empty() { named } else { format!("{named}; and {} more", others.len()) }
}
