//! Turns a [`Redirect`] into ordered rules. Pure: [`crate::firewall`] applies and checks the rules.
//!
//! Chains, order and comments are the same as upstream's. With an iptables backend, `iptables-save`
//! therefore shows the same rules, except that the comments of the jumps end with the
//! [marker](marker()). The backend `native` writes the rules to its own table, which
//! `nft list ruleset` shows.

mod iptables;
mod marker;
pub mod nft;

pub use iptables::{NAT_TABLE, install_script, rule_line, split_words, undo_script};
pub use marker::{
    digest, is_guessed, is_redirecting, marked_rules, marker, parse_marker, split_comment,
};

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};

use super::interfaces::Interface;
use super::ports::{self, PortRange};
use super::{Family, Redirect, Subnet};

/// A chain that contains Linkerd's rules. The variants are in the order in which the backend
/// `native` creates the chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    ProxyInitRedirect,
    ProxyInitOutput,
    Prerouting,
    Output,
}

impl Chain {
    /// All chains, each at the index of its discriminant.
    pub const ALL: [Chain; 4] =
        [Chain::ProxyInitRedirect, Chain::ProxyInitOutput, Chain::Prerouting, Chain::Output];

    /// Linkerd's own chains. The other chains are built into table `nat` and may contain foreign
    /// rules.
    pub const LINKERD: [Chain; 2] = [Chain::ProxyInitRedirect, Chain::ProxyInitOutput];

    /// Returns the name of the chain in iptables' table `nat`. The plugin recognizes its rules in
    /// running pods, and the rules of upstream's plugin, by these names.
    pub fn name(self) -> &'static str {
        match self {
            Chain::Prerouting => "PREROUTING",
            Chain::Output => "OUTPUT",
            Chain::ProxyInitRedirect => "PROXY_INIT_REDIRECT",
            Chain::ProxyInitOutput => "PROXY_INIT_OUTPUT",
        }
    }
}

/// A condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    Tcp,
    /// The destination port is in one of these ranges. At most 15 ports are allowed, where a range
    /// counts as two.
    Ports(Vec<PortRange>),
    /// The destination port is this port.
    Port(u16),
    Source(IpNet),
    Destination(IpNet),
    Uid(u32),
    Gid(u32),
    /// The packet leaves through the interface `lo`.
    Loopback,
    /// The packet arrives through this interface.
    Arrival(Interface),
}

/// What happens to a packet that matches all conditions of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Return to the calling chain, so that the packet is not redirected.
    Return,
    /// Redirect to this port. The new address is that of the interface through which the packet
    /// arrives, or the loopback address if a process in the pod sends the packet.
    Redirect(u16),
    /// Redirect to this port of 127.0.0.1.
    RedirectToLoopback(u16),
    /// Drop the packet.
    Discard,
    /// Continue in this chain.
    Jump(Chain),
}

/// One rule: a packet that matches all `matches` gets the `verdict`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub chain: Chain,
    pub matches: Vec<Match>,
    pub verdict: Verdict,
    pub comment: String,
}

/// Rules that the kernel lists, grouped by chain in the order of [`Chain::ALL`].
pub type ListedRules<T> = [Vec<T>; Chain::ALL.len()];

/// Returns the rules of `redirect` for one address family, in the order in which they are written.
/// The jumps to Linkerd's chains come last, as in upstream. [`marked_rules`] adds the marker.
pub fn rules(redirect: &Redirect, family: Family) -> Vec<Rule> {
    let mut rules = inbound_rules(redirect, family);
    rules.extend(outbound_rules(redirect, family));
    rules.extend(jump_rules());
    rules
}

/// Returns the rules that are missing from `listed`, as lines of `iptables-save`. One listed rule
/// can stand for a whole run of rules: see [`nft::runs`].
///
/// The rules of each chain must be listed in order. In the chains `own`, no foreign rule may
/// precede them, because it could take effect first. In other chains, foreign rules may be
/// anywhere.
pub fn missing_in_order<'r, T, E>(
    runs: impl Iterator<Item = &'r [Rule]>,
    listed: &ListedRules<T>,
    own: &[Chain],
    is_same: impl Fn(&[Rule], &T) -> Result<bool, E>,
) -> Result<Vec<String>, E> {
    let mut unmatched = listed.each_ref().map(Vec::as_slice);
    let mut missing = Vec::new();
    for run in runs {
        let chain = run[0].chain;
        let unmatched = &mut unmatched[chain as usize];
        let candidates =
            if own.contains(&chain) { unmatched.len().min(1) } else { unmatched.len() };
        let mut index = 0;
        while index < candidates && !is_same(run, &unmatched[index])? {
            index += 1;
        }
        if index < candidates {
            *unmatched = &unmatched[index + 1..];
        } else {
            missing.extend(run.iter().map(rule_line));
        }
    }
    Ok(missing)
}

/// Returns the rules of the chain for arriving connections. Connections from networks inside the
/// pod come first, because they are outbound. The exemptions and redirects of inbound connections
/// follow.
fn inbound_rules(redirect: &Redirect, family: Family) -> Vec<Rule> {
    let chain = Chain::ProxyInitRedirect;
    let to_proxy = Verdict::Redirect(redirect.inbound_port);
    let mut rules = inner_interface_rules(redirect, family);
    rules.extend(port_exemptions(chain, &redirect.skip_inbound));
    rules.extend(subnet_exemptions(chain, &redirect.skip_subnets, family, Match::Source));
    if redirect.ports_to_redirect.is_empty() {
        rules.push(rule(chain, vec![Match::Tcp], to_proxy, "redirect-all-incoming-to-proxy-port"));
    }
    for &port in &redirect.ports_to_redirect {
        let comment = format!("redirect-port-{port}-to-proxy-port");
        rules.push(rule(chain, vec![Match::Tcp, Match::Port(port)], to_proxy, &comment));
    }
    rules
}

/// Returns the rules of the chain for outbound connections: first the exemptions, then the
/// redirect.
fn outbound_rules(redirect: &Redirect, family: Family) -> Vec<Rule> {
    let chain = Chain::ProxyInitOutput;
    let mut rules = Vec::new();
    if let Some(uid) = redirect.proxy_uid {
        rules.push(rule(chain, vec![Match::Uid(uid)], Verdict::Return, "ignore-proxy-user-id"));
    }
    if let Some(gid) = redirect.proxy_gid {
        rules.push(rule(chain, vec![Match::Gid(gid)], Verdict::Return, "ignore-proxy-group-id"));
    }
    rules.push(rule(chain, vec![Match::Loopback], Verdict::Return, "ignore-loopback"));
    rules.extend(port_exemptions(chain, &redirect.skip_outbound));
    let subnets = &redirect.skip_outbound_subnets;
    rules.extend(subnet_exemptions(chain, subnets, family, Match::Destination));
    rules.push(rule(
        chain,
        vec![Match::Tcp],
        Verdict::Redirect(redirect.outbound_port),
        "redirect-all-outgoing-to-proxy-port",
    ));
    rules
}

/// Returns the rules for connections from networks inside the pod, which are outbound. Each
/// interface gets the exemptions of outbound connections, then the redirect.
///
/// The proxy accepts outbound connections only at the loopback addresses, so that no other pod can
/// use it as a relay ([linkerd2-proxy#1442](https://github.com/linkerd/linkerd2-proxy/pull/1442)).
/// [`Verdict::Redirect`] would send an arriving packet to the address of its interface, where the
/// proxy does not listen. IPv4 packets are therefore sent to 127.0.0.1. IPv6 packets cannot be sent
/// to `::1`, because the kernel has no sysctl `route_localnet` for IPv6. Connections over IPv6 are
/// refused unless the proxy listens on all addresses.
fn inner_interface_rules(redirect: &Redirect, family: Family) -> Vec<Rule> {
    if redirect.inner_interfaces.is_empty() {
        return Vec::new();
    }
    let chain = Chain::ProxyInitRedirect;
    let to_proxy = match family {
        Family::Ipv4 => Verdict::RedirectToLoopback(redirect.outbound_port),
        Family::Ipv6 => Verdict::Redirect(redirect.outbound_port),
    };
    let mut rules = Vec::new();
    if family == Family::Ipv4 {
        rules.extend(loopback_protection(chain));
    }
    for interface in &redirect.inner_interfaces {
        let mut exemptions = port_exemptions(chain, &redirect.skip_outbound);
        let subnets = &redirect.skip_outbound_subnets;
        exemptions.extend(subnet_exemptions(chain, subnets, family, Match::Destination));
        rules.extend(exemptions.into_iter().map(|rule| limit_to_interface(rule, interface)));
        let comment = format!("redirect-all-from-{interface}-to-proxy-port");
        let matches = vec![Match::Arrival(interface.clone()), Match::Tcp];
        rules.push(rule(chain, matches, to_proxy, &comment));
    }
    rules
}

/// Returns the rules that make the pod's loopback addresses unreachable from its networks. The
/// kernel does the same while the sysctl `route_localnet` is 0, but [`Verdict::RedirectToLoopback`]
/// requires the value 1.
fn loopback_protection(chain: Chain) -> [Rule; 2] {
    let loopback = IpNet::from(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));
    [
        rule(chain, vec![Match::Source(loopback)], Verdict::Discard, "discard-from-loopback"),
        rule(chain, vec![Match::Destination(loopback)], Verdict::Discard, "discard-to-loopback"),
    ]
}

/// Limits a rule to packets that arrive through the interface.
fn limit_to_interface(mut rule: Rule, interface: &Interface) -> Rule {
    // iptables-save lists the interface after the addresses.
    let is_address =
        |condition: &&Match| matches!(condition, Match::Source(_) | Match::Destination(_));
    let position = rule.matches.iter().take_while(is_address).count();
    rule.matches.insert(position, Match::Arrival(interface.clone()));
    rule.comment = format!("{}-from-{interface}", rule.comment);
    rule
}

/// Returns the family's subnets in order, without duplicates and without subnets that are part of
/// another subnet.
fn outermost_subnets(subnets: &[Subnet], family: Family) -> Vec<&Subnet> {
    let mut sorted: Vec<(usize, &Subnet)> = subnets.iter().enumerate().collect();
    sorted.retain(|(_, subnet)| family_of(subnet) == family);
    // Sorts each subnet before the subnets that it contains.
    sorted.sort_by_key(|(_, subnet)| subnet.net);
    sorted.dedup_by(|(_, inner), (_, outer)| outer.net.contains(&inner.net));
    sorted.sort_by_key(|(index, _)| *index);
    sorted.into_iter().map(|(_, subnet)| subnet).collect()
}

fn family_of(subnet: &Subnet) -> Family {
    match subnet.net {
        IpNet::V4(_) => Family::Ipv4,
        IpNet::V6(_) => Family::Ipv6,
    }
}

/// Returns one exemption for each subnet of the family. `condition` is the match on the subnet.
fn subnet_exemptions(
    chain: Chain,
    subnets: &[Subnet],
    family: Family,
    condition: fn(IpNet) -> Match,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    for subnet in outermost_subnets(subnets, family) {
        // iptables omits the conditions `-s 0.0.0.0/0` and `-d 0.0.0.0/0`, which match every
        // packet.
        let is_every_address = subnet.net.prefix_len() == 0;
        let matches = if is_every_address { vec![] } else { vec![condition(subnet.net)] };
        let comment = format!("ignore-subnet-{}", subnet.text);
        rules.push(rule(chain, matches, Verdict::Return, &comment));
    }
    rules
}

/// Returns the rules that exempt these ports, one for each group that fits into one match.
fn port_exemptions(chain: Chain, ranges: &[PortRange]) -> Vec<Rule> {
    let mut rules = Vec::new();
    for group in ports::groups(ranges) {
        let comment = format!("ignore-port-{}", ports::joined(&group));
        let matches = vec![Match::Tcp, Match::Ports(group)];
        rules.push(rule(chain, matches, Verdict::Return, &comment));
    }
    rules
}

/// Returns the rules in the built-in chains that jump to Linkerd's chains.
fn jump_rules() -> [Rule; 2] {
    let inbound = Verdict::Jump(Chain::ProxyInitRedirect);
    let outbound = Verdict::Jump(Chain::ProxyInitOutput);
    [
        rule(Chain::Prerouting, Vec::new(), inbound, "install-proxy-init-prerouting"),
        rule(Chain::Output, Vec::new(), outbound, "install-proxy-init-output"),
    ]
}

fn rule(chain: Chain, matches: Vec<Match>, verdict: Verdict, comment: &str) -> Rule {
    Rule { chain, matches, verdict, comment: format!("proxy-init/{comment}") }
}

#[cfg(test)]
mod tests;
