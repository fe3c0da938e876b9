//! Turns a [`Redirect`] into ordered rules. Pure: [`crate::firewall`] applies and checks the rules.
//!
//! Chains, order and comments are upstream's. With an iptables backend, `iptables-save` therefore
//! shows the same rules as with upstream, except that the comments of the jumps end with the
//! [marker](marker()). The backend `native` writes them to a table of its own, which
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

/// A chain that holds rules of Linkerd, in the order in which nf_tables chains are created.
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

    /// Linkerd's chains. The other chains are built into table `nat` and can hold foreign rules.
    pub const LINKERD: [Chain; 2] = [Chain::ProxyInitRedirect, Chain::ProxyInitOutput];

    /// The name in table `nat` of iptables. By it the plugin also recognizes the rules of pods that
    /// run already, and those of upstream's plugin.
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
    /// Destination port in one of these ranges, at most 15 ports, where a range counts as two.
    Ports(Vec<PortRange>),
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

/// What happens to a packet that meets all conditions of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Continues in the calling chain, so that the packet is not redirected.
    Return,
    /// Goes to this port of the first address of the interface through which the packet arrives,
    /// or of the loopback address if a process of the pod sent the packet.
    Redirect(u16),
    /// Goes to this port of 127.0.0.1.
    RedirectToLoopback(u16),
    Discard,
    Jump(Chain),
}

/// One rule: a packet that meets all `matches` gets the `verdict`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub chain: Chain,
    pub matches: Vec<Match>,
    pub verdict: Verdict,
    pub comment: String,
}

/// Rules that the kernel lists, by chain, in the order of [`Chain::ALL`].
pub type ListedRules<T> = [Vec<T>; Chain::ALL.len()];

/// Returns the rules of `redirect` for one address family, in the order in which they are written.
/// The jumps to Linkerd's chains come last, as in upstream. [`marked_rules`] adds the marker.
pub fn rules(redirect: &Redirect, family: Family) -> Vec<Rule> {
    let mut rules = inbound(redirect, family);
    rules.extend(outbound(redirect, family));
    rules.extend(jumps());
    rules
}

/// Returns the rules that `listed` lacks, as lines of `iptables-save`. A listed rule can stand for
/// a run of rules, see [`nft::runs`].
///
/// The rules of each chain must be listed in order. In the chains `own` no other rule may precede
/// them, as it could decide instead. Other chains may have foreign rules anywhere.
pub fn missing_in_order<'r, T, E>(
    runs: impl Iterator<Item = &'r [Rule]>,
    listed: &ListedRules<T>,
    own: &[Chain],
    is_same: impl Fn(&[Rule], &T) -> Result<bool, E>,
) -> Result<Vec<String>, E> {
    let mut listed = listed.each_ref().map(Vec::as_slice);
    let mut missing = Vec::new();
    for run in runs {
        let chain = run[0].chain;
        let left = &mut listed[chain as usize];
        let candidates = if own.contains(&chain) { left.len().min(1) } else { left.len() };
        let mut others = 0;
        while others < candidates && !is_same(run, &left[others])? {
            others += 1;
        }
        if others < candidates {
            *left = &left[others + 1..];
        } else {
            missing.extend(run.iter().map(rule_line));
        }
    }
    Ok(missing)
}

/// Returns the rules of the chain for inbound connections: first the connections that are not
/// inbound although they arrive, then the exemptions, then the redirects.
fn inbound(redirect: &Redirect, family: Family) -> Vec<Rule> {
    let chain = Chain::ProxyInitRedirect;
    let to_proxy = Verdict::Redirect(redirect.inbound_port);
    let mut rules = from_inner_side(redirect, family);
    rules.extend(skipped_ports(chain, &redirect.skip_inbound));
    rules.extend(skipped_subnets(chain, &redirect.skip_subnets, family, Match::Source));
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
fn outbound(redirect: &Redirect, family: Family) -> Vec<Rule> {
    let chain = Chain::ProxyInitOutput;
    let mut rules = Vec::new();
    if let Some(uid) = redirect.proxy_uid {
        rules.push(rule(chain, vec![Match::Uid(uid)], Verdict::Return, "ignore-proxy-user-id"));
    }
    if let Some(gid) = redirect.proxy_gid {
        rules.push(rule(chain, vec![Match::Gid(gid)], Verdict::Return, "ignore-proxy-group-id"));
    }
    rules.push(rule(chain, vec![Match::Loopback], Verdict::Return, "ignore-loopback"));
    rules.extend(skipped_ports(chain, &redirect.skip_outbound));
    let subnets = &redirect.skip_outbound_subnets;
    rules.extend(skipped_subnets(chain, subnets, family, Match::Destination));
    rules.push(rule(
        chain,
        vec![Match::Tcp],
        Verdict::Redirect(redirect.outbound_port),
        "redirect-all-outgoing-to-proxy-port",
    ));
    rules
}

/// Returns the rules for connections from networks inside the pod, which are outbound: for each
/// interface the exemptions of outbound connections, then the redirect.
///
/// The proxy accepts outbound connections only at the loopback addresses, so that no other pod can
/// use it as a relay ([linkerd2-proxy#1442](https://github.com/linkerd/linkerd2-proxy/pull/1442)).
/// [`Verdict::Redirect`] would send an arriving packet to the address of its interface, where the
/// proxy does not listen. IPv6 has no way to `::1`: the kernel has no sysctl `route_localnet` for
/// it. Such connections are refused unless the proxy listens on all addresses.
fn from_inner_side(redirect: &Redirect, family: Family) -> Vec<Rule> {
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
        rules.extend(closed_loopback(chain));
    }
    for interface in &redirect.inner_interfaces {
        let mut exemptions = skipped_ports(chain, &redirect.skip_outbound);
        let subnets = &redirect.skip_outbound_subnets;
        exemptions.extend(skipped_subnets(chain, subnets, family, Match::Destination));
        rules.extend(exemptions.into_iter().map(|rule| arriving_at(interface, rule)));
        let comment = format!("redirect-all-from-{interface}-to-proxy-port");
        let matches = vec![Match::Arrival(interface.clone()), Match::Tcp];
        rules.push(rule(chain, matches, to_proxy, &comment));
    }
    rules
}

/// Returns the rules that keep the pod's loopback addresses out of reach from its networks, as the
/// kernel does while the sysctl `route_localnet` is 0. [`Verdict::RedirectToLoopback`] needs it to
/// be 1.
fn closed_loopback(chain: Chain) -> [Rule; 2] {
    let loopback = IpNet::from(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));
    [
        rule(chain, vec![Match::Source(loopback)], Verdict::Discard, "discard-from-loopback"),
        rule(chain, vec![Match::Destination(loopback)], Verdict::Discard, "discard-to-loopback"),
    ]
}

/// Limits a rule to packets that arrive through the interface.
fn arriving_at(interface: &Interface, mut rule: Rule) -> Rule {
    // iptables-save lists the interface behind the addresses.
    let is_address =
        |condition: &&Match| matches!(condition, Match::Source(_) | Match::Destination(_));
    let place = rule.matches.iter().take_while(is_address).count();
    rule.matches.insert(place, Match::Arrival(interface.clone()));
    rule.comment = format!("{}-from-{interface}", rule.comment);
    rule
}

/// Returns the subnets of the family that no other one contains, each once, in order.
fn outermost(subnets: &[Subnet], family: Family) -> Vec<&Subnet> {
    let mut sorted: Vec<(usize, &Subnet)> = subnets.iter().enumerate().collect();
    sorted.retain(|(_, subnet)| family_of(subnet) == family);
    // A subnet precedes those that it contains.
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

/// Returns a rule for each subnet of the family that exempts packets with this `condition`.
fn skipped_subnets(
    chain: Chain,
    subnets: &[Subnet],
    family: Family,
    condition: fn(IpNet) -> Match,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    for subnet in outermost(subnets, family) {
        // iptables omits the conditions `-s 0.0.0.0/0` and `-d 0.0.0.0/0`, which every packet
        // meets.
        let is_every_address = subnet.net.prefix_len() == 0;
        let matches = if is_every_address { vec![] } else { vec![condition(subnet.net)] };
        let comment = format!("ignore-subnet-{}", subnet.text);
        rules.push(rule(chain, matches, Verdict::Return, &comment));
    }
    rules
}

/// Returns the rules that exempt these ports, one for each group that fits one match.
fn skipped_ports(chain: Chain, ranges: &[PortRange]) -> Vec<Rule> {
    let mut rules = Vec::new();
    for group in ports::groups(ranges) {
        let comment = format!("ignore-port-{}", ports::joined(&group));
        let matches = vec![Match::Tcp, Match::Ports(group)];
        rules.push(rule(chain, matches, Verdict::Return, &comment));
    }
    rules
}

/// Returns the rules in the built-in chains that jump to Linkerd's chains.
fn jumps() -> [Rule; 2] {
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
