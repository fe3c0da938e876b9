//! Compares by meaning the rules that the kernel has in the calling thread's netns with those that the
//! plugin would install. Runs the host's iptables to list rules of iptables.

use std::net::{IpAddr, Ipv6Addr};

use super::native::PLUGIN_TABLE;
use super::native::listing::{Listing, nat_tables};
use super::{DEADLINE, Error, iptables, other};
use crate::deadline::Deadline;
use crate::netns::link;
use crate::redirect::difference::differences;
use crate::redirect::nat::Nat;
use crate::redirect::rules::{self, Chain};
use crate::redirect::{Family, Origin, Redirect};

/// Describes the packets that go elsewhere than with `today`'s rules. `None`: the plugin would install no
/// rules. Compares IPv6 only in a netns with an IPv6 address.
/// Fails if rules cannot be listed, or have a form that is not known.
pub fn compare(today: Option<&Origin>) -> Result<Vec<String>, Error> {
    let (listing, deadline) = (Listing::read()?, Deadline::after(DEADLINE));
    let mut found = Vec::new();
    for &family in if has_ipv6_address() { Family::ALL } else { Family::IPV4 } {
        let now = tables(&listing, today, family, deadline)?;
        let wanted = match today {
            Some(today) if today.families.contains(&family) => table(&today.redirect, family),
            _ => Ok(Nat::default()),
        };
        let differences = wanted.and_then(|wanted| differences(&now, &wanted, family));
        found.extend(differences.map_err(other)?);
    }
    Ok(found)
}

/// Whether the netns has an IPv6 address that other hosts can reach. True if that is unknown.
fn has_ipv6_address() -> bool {
    let is_global = |ip: &Ipv6Addr| !ip.is_loopback() && !ip.is_unicast_link_local();
    let is_reachable = |address: &IpAddr| matches!(address, IpAddr::V6(ip) if is_global(ip));
    link::addresses().map_or(true, |addresses| addresses.iter().any(is_reachable))
}

fn table(redirect: &Redirect, family: Family) -> Result<Nat, String> {
    let chains = Chain::ALL.map(|chain| format!("-N {}", chain.name())).into_iter();
    let lines: Vec<String> =
        chains.chain(rules::rules(redirect, family).iter().map(rules::rule_line)).collect();
    Nat::read(&lines)
}

/// Returns the tables that the kernel has, in the order in which they decide.
fn tables(
    listing: &Listing,
    today: Option<&Origin>,
    family: Family,
    deadline: Deadline,
) -> Result<Vec<Nat>, Error> {
    let names = nat_tables(family)?;
    let has_legacy = iptables::has_legacy_nat(family);
    let mut found = Vec::new();
    for (is_legacy, exists) in [(true, has_legacy), (false, names.contains(rules::NAT_TABLE))] {
        if exists {
            let lines = iptables::lines_of(is_legacy, family, deadline)?;
            found.push(Nat::read(&lines).map_err(other)?);
        }
    }
    found.retain(|table| !table.is_empty());
    if found.len() > 1 {
        // Their chains have the same priority, so it is unknown which decide first.
        return Err(other("both iptables-nft and iptables-legacy have rules"));
    }
    for name in names.iter().filter(|name| *name != rules::NAT_TABLE) {
        if name != PLUGIN_TABLE {
            return Err(other(format!("the nf_tables table {name} has chains of type nat")));
        }
        found.push(plugin_table(listing, today, family)?);
    }
    Ok(found)
}

/// Returns the rules of the plugin's table: those of its marker, or today's.
fn plugin_table(listing: &Listing, today: Option<&Origin>, family: Family) -> Result<Nat, Error> {
    let marked = listing.marker.as_deref().and_then(rules::marked_origin);
    for Origin { redirect, .. } in marked.iter().chain(today) {
        if listing.is_of(redirect, family)? {
            return table(redirect, family).map_err(other);
        }
    }
    Err(other("the table linkerd-cni has other rules than its marker says"))
}
