//! Checks that the redirect rules are in the kernel, for CHECK and for the repair controller.
//!
//! A pod keeps the rules that it started with, even if its configuration has changed since. So the
//! rules are compared with the spec in their own marker, see [`rules::marker`]. Rules without a
//! readable marker come from another version of the plugin or from upstream. They are compared with
//! the rules that the plugin would install now. If they differ but redirect inbound and outbound
//! connections, they count as drift, not as missing.

use std::convert::Infallible;

use super::error::Error;
use super::iptables::{self, PROGRAMS_BUDGET};
use super::loopback_routing;
use super::native::listing::{FamilyListing, Listing, Tables, has_linkerd_rules};
use crate::deadline::Deadline;
use crate::redirect::rules::{self, Chain, ListedRules};
use crate::redirect::{Family, Redirect, RuleSpec};

/// Largest number of missing rules that [`describe_missing`] lists. A pod without port lists and
/// subnets has at most eight rules for each address family.
const DESCRIBED_LIMIT: usize = 10;

/// State of the redirect rules in a netns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulesState {
    /// All rules are present. The plugin would install the same rules now, or it is unknown what it
    /// would install.
    Complete,
    /// All rules that the pod started with are present, but the plugin would install other rules
    /// now. The new rules have this spec. They differ in values, or only in the hook priority,
    /// which an earlier version of the plugin set.
    Drifted(RuleSpec),
    /// Rules of this spec are missing or changed. The missing rules are lines of `iptables-save`.
    Missing(RuleSpec, Vec<String>),
    /// The rules cannot be read: they may be in a table of `iptables-legacy`, or the table has too
    /// many rules. Or nothing is known to compare them with: they have no readable marker, and the
    /// desired rules are unknown.
    Unreadable,
}

/// Caller of a check. CHECK can run the programs of the host. The repair controller runs in a
/// container without them.
#[derive(Clone, Copy)]
enum Caller {
    Check,
    RepairController,
}

/// Returns the redirect rules that are missing in the netns, as lines of `iptables-save`. Finds
/// rules of all backends. `desired` is what the plugin would install now; only rules without a
/// readable marker are compared with it. Returns `None` if the pod's rules are unknown.
///
/// Runs a program of the host only if a table of `iptables-legacy` exists. Fails if rules cannot be
/// listed, because these rules may be present.
pub fn missing_rules(desired: Option<&RuleSpec>) -> Result<Option<Vec<String>>, Error> {
    match compare(desired, Caller::Check)? {
        RulesState::Complete | RulesState::Drifted(_) => Ok(Some(Vec::new())),
        RulesState::Missing(_, missing) => Ok(Some(missing)),
        RulesState::Unreadable => Ok(None),
    }
}

/// Checks the redirect rules in the netns without running programs of the host. Finds rules of all
/// backends. `desired` is what the plugin would install now, if that is known. Rules that ADD had
/// to guess, because it could not read the pod object, count as missing if the guess was wrong.
///
/// Reads the plugin's tables and those of `iptables-nft`, which are nf_tables tables too. Of
/// `iptables-legacy` only the existence of a table can be detected. Each address family is read
/// separately.
pub fn rules_state(desired: Option<&RuleSpec>) -> Result<RulesState, Error> {
    match compare(desired, Caller::RepairController) {
        Err(Error::TooLong { .. }) => Ok(RulesState::Unreadable),
        state => state,
    }
}

/// Compares the rules in the netns with the spec in their marker. Without a readable marker,
/// compares them with `desired`.
fn compare(desired: Option<&RuleSpec>, caller: Caller) -> Result<RulesState, Error> {
    let Some(listing) = list_rules(desired, caller)? else {
        return Ok(RulesState::Unreadable);
    };
    let is_guessed = listing.marker().is_some_and(rules::is_guessed);
    let has_desired_marker = desired.is_some_and(|desired| has_marker_of(&listing, desired));
    // The spec in the marker, if it differs from the desired one.
    let earlier = if has_desired_marker { None } else { listing.marked_spec() };
    if let Some(desired) = desired
        && let Caller::RepairController = caller
        && is_guessed
        && !has_desired_marker
    {
        // ADD guessed, and the guess was wrong. Report all desired rules, so that a repair replaces
        // the guessed ones.
        return Ok(RulesState::Missing(desired.clone(), all_rules(desired)));
    }
    let Some(spec) = earlier.as_ref().or(desired) else {
        return Ok(RulesState::Unreadable);
    };
    let missing = missing_from_listing(spec, &listing, caller)?;
    if missing.is_empty() {
        let has_earlier_values = earlier.is_some() && !is_guessed;
        return Ok(match desired {
            Some(desired) if has_earlier_values || has_outdated_priority(spec, &listing) => {
                RulesState::Drifted(desired.clone())
            }
            _ => RulesState::Complete,
        });
    }
    let is_spec_known = has_desired_marker || earlier.is_some();
    if !is_spec_known && is_redirecting(&listing) {
        return Ok(RulesState::Drifted(spec.clone()));
    }
    Ok(RulesState::Missing(spec.clone(), missing))
}

/// Lists the rules in the netns. Returns `None` if they may be in a table of `iptables-legacy` and
/// the caller cannot run that program.
fn list_rules(desired: Option<&RuleSpec>, caller: Caller) -> Result<Option<Listing>, Error> {
    let mut listing = Listing::read()?;
    let deadline = Deadline::after(PROGRAMS_BUDGET);
    for &family in Family::ALL {
        // Ask again for each family: the IPv4 rules may have a marker, which names the families of
        // the rules.
        if !may_be_in_legacy_table(family, &listing, desired, caller) {
            continue;
        }
        match caller {
            Caller::Check => {
                listing.set_iptables(family, iptables::legacy_comments(family, deadline)?);
            }
            Caller::RepairController => return Ok(None),
        }
    }
    Ok(Some(listing))
}

/// Returns whether the rules of `family` may be in a table of `iptables-legacy`, which only that
/// program can list.
///
/// One family can have its rules in nf_tables and the other in a legacy table, if the host's
/// `iptables` and `ip6tables` are of different variants. If the plugin's own tables have rules, the
/// backend `native` wrote them. It writes the rules of all families, so no legacy table is needed.
fn may_be_in_legacy_table(
    family: Family,
    listing: &Listing,
    desired: Option<&RuleSpec>,
    caller: Caller,
) -> bool {
    if Family::ALL.iter().any(|&family| listing.family(family).has_traces_of_plugin()) {
        return false;
    }
    let families = match (listing.marked_spec(), caller, desired) {
        (Some(spec), _, _) => spec.families,
        (None, Caller::RepairController, Some(desired)) => desired.families,
        // The pod may have started with more families than are configured now.
        (None, _, _) => Family::ALL,
    };
    families.contains(&family)
        && !listing.family(family).has_traces_of_iptables()
        && iptables::has_legacy_nat(family)
}

/// Returns whether the marker of the rules is the one that `spec` gets. The suffix `guessed` makes
/// no difference.
fn has_marker_of(listing: &Listing, spec: &RuleSpec) -> bool {
    let Some(marker) = listing.marker() else {
        return false;
    };
    let is_guessed = rules::is_guessed(marker);
    let redirect = Redirect { is_guessed, ..spec.redirect.clone() };
    marker == rules::marker(&redirect, spec.families)
}

/// Returns the rules of `spec` that `listing` lacks, as lines of `iptables-save`, and a line for a
/// missing sysctl.
fn missing_from_listing(
    spec: &RuleSpec,
    listing: &Listing,
    caller: Caller,
) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    for &family in spec.families {
        missing.extend(missing_from_family(spec, family, listing.family(family), caller)?);
    }
    missing.extend(loopback_routing::missing_line(spec));
    Ok(missing)
}

/// Compares the rules in the tables that take effect first. For the repair controller, also
/// compares the iptables rules that run after complete rules in the plugin's tables.
fn missing_from_family(
    spec: &RuleSpec,
    family: Family,
    listed: &FamilyListing,
    caller: Caller,
) -> Result<Vec<String>, Error> {
    match listed.effective_tables() {
        Tables::Iptables => Ok(missing_by_comments(spec, family, listed.iptables())),
        Tables::Plugin => {
            let missing = listed.missing_from_plugin_table(&spec.redirect, family)?;
            if let Caller::RepairController = caller
                && missing.is_empty()
            {
                return Ok(stale_iptables_rules(spec, family, listed));
            }
            Ok(missing)
        }
    }
}

/// Returns rules of `spec` if iptables rules with other values run after those of the plugin's
/// tables. An interrupted repair leaves both. The iptables rules may then redirect connections that
/// the plugin's rules skip.
fn stale_iptables_rules(spec: &RuleSpec, family: Family, listed: &FamilyListing) -> Vec<String> {
    if !has_linkerd_rules(listed.iptables()) {
        return Vec::new();
    }
    if listed.has_conflicting_markers() {
        return rules_of_family(spec, family);
    }
    missing_by_comments(spec, family, listed.iptables())
}

/// Returns whether the plugin's rules of a family have the hook priority of an earlier version of
/// the plugin, so that iptables rules of other programs run first.
fn has_outdated_priority(spec: &RuleSpec, listing: &Listing) -> bool {
    spec.families.iter().any(|&family| listing.family(family).has_outdated_priority())
}

/// Returns all rules of `spec`, as lines of `iptables-save`.
fn all_rules(spec: &RuleSpec) -> Vec<String> {
    spec.families.iter().flat_map(|&family| rules_of_family(spec, family)).collect()
}

fn rules_of_family(spec: &RuleSpec, family: Family) -> Vec<String> {
    rules::rules(&spec.redirect, family).iter().map(rules::rule_line).collect()
}

/// Compares iptables rules by their comments, which contain the skipped ports and subnets. Does not
/// detect a changed UID, GID or port of the proxy.
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

/// Returns whether the rules redirect inbound and outbound connections: those of IPv4, and those of
/// IPv6 if there are any.
fn is_redirecting(listing: &Listing) -> bool {
    let ipv4 = listing.family(Family::Ipv4).effective_comments();
    let ipv6 = listing.family(Family::Ipv6).effective_comments();
    rules::is_redirecting(&ipv4) && (!has_linkerd_rules(&ipv6) || rules::is_redirecting(&ipv6))
}

/// Describes missing rules in an error or a log line: lists the first ones and counts the others,
/// because the annotations of a pod may require thousands of rules.
pub fn describe_missing(missing: &[String]) -> String {
    let (first, others) = missing.split_at(missing.len().min(DESCRIBED_LIMIT));
    let first = first.join("; ");
    if others.is_empty() { first } else { format!("{first}; and {} more", others.len()) }
}
