//! A [`Redirect`] as ordered rules: data that [`crate::firewall`] puts in place, that
//! CHECK compares with, and that tests read. No effects.
//!
//! Chains, order and comments are upstream's (contract 5), so that what an operator
//! sees in `iptables-save` stays the same.

mod iptables;
pub mod nft;

pub use iptables::{TABLE, install_script, rule_line, undo_script};

use ipnet::IpNet;

use crate::ports::{self, PortRange};

/// What a meshed pod's traffic is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Port on which the proxy takes inbound connections, usually 4143.
    pub inbound_port: u16,
    /// Port on which the proxy takes outbound connections, usually 4140.
    pub outbound_port: u16,
    /// Connections of this user are the proxy's own and stay as they are.
    pub proxy_uid: Option<u32>,
    /// The same for this group.
    pub proxy_gid: Option<u32>,
    /// Inbound ports that go to the proxy; empty means all.
    pub ports_to_redirect: Vec<u16>,
    /// Inbound ports that go past the proxy.
    pub skip_inbound: Vec<PortRange>,
    /// Outbound ports that go past the proxy.
    pub skip_outbound: Vec<PortRange>,
    /// Inbound connections from here go past the proxy.
    pub skip_subnets: Vec<Subnet>,
}

/// A subnet, and how its author wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    pub net: IpNet,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

/// The chains of table `nat` that rules stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    Prerouting,
    Output,
    /// Ours, for inbound connections.
    ProxyInitRedirect,
    /// Ours, for outbound connections.
    ProxyInitOutput,
}

impl Chain {
    /// Our own chains; the others are the kernel's.
    pub const OURS: [Chain; 2] = [Chain::ProxyInitRedirect, Chain::ProxyInitOutput];

    pub fn name(self) -> &'static str {
        match self {
            Chain::Prerouting => "PREROUTING",
            Chain::Output => "OUTPUT",
            Chain::ProxyInitRedirect => "PROXY_INIT_REDIRECT",
            Chain::ProxyInitOutput => "PROXY_INIT_OUTPUT",
        }
    }
}

/// A condition on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    Tcp,
    /// One of at most fifteen destination ports.
    Ports(Vec<PortRange>),
    /// Exactly this destination port.
    Port(u16),
    Source(IpNet),
    Uid(u32),
    Gid(u32),
    /// Leaves through `lo`.
    Loopback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Return,
    /// To this port of the pod itself.
    Redirect(u16),
    Jump(Chain),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub chain: Chain,
    pub matches: Vec<Match>,
    pub verdict: Verdict,
    pub comment: String,
}

/// The rules of `redirect` for one address family, in the order they are applied in.
/// The jumps into our chains come last, so that nothing is redirected before all is.
pub fn rules(redirect: &Redirect, family: Family) -> Vec<Rule> {
    let mut rules = inbound(redirect, family);
    rules.extend(outbound(redirect));
    rules.push(jump(
        Chain::Prerouting,
        Chain::ProxyInitRedirect,
        "install-proxy-init-prerouting",
    ));
    rules.push(jump(
        Chain::Output,
        Chain::ProxyInitOutput,
        "install-proxy-init-output",
    ));
    rules
}

fn inbound(redirect: &Redirect, family: Family) -> Vec<Rule> {
    let chain = Chain::ProxyInitRedirect;
    let to_proxy = Verdict::Redirect(redirect.inbound_port);
    let mut rules = skipped_ports(chain, &redirect.skip_inbound);
    for subnet in &redirect.skip_subnets {
        let of_family = matches!(
            (subnet.net, family),
            (IpNet::V4(_), Family::Ipv4) | (IpNet::V6(_), Family::Ipv6)
        );
        if of_family {
            let comment = format!("ignore-subnet-{}", subnet.text);
            // iptables does not print a condition that everything meets.
            let from = (subnet.net.prefix_len() > 0).then_some(Match::Source(subnet.net));
            rules.push(rule(
                chain,
                from.into_iter().collect(),
                Verdict::Return,
                &comment,
            ));
        }
    }
    if redirect.ports_to_redirect.is_empty() {
        rules.push(rule(
            chain,
            vec![Match::Tcp],
            to_proxy,
            "redirect-all-incoming-to-proxy-port",
        ));
    }
    for &port in &redirect.ports_to_redirect {
        let comment = format!("redirect-port-{port}-to-proxy-port");
        rules.push(rule(
            chain,
            vec![Match::Tcp, Match::Port(port)],
            to_proxy,
            &comment,
        ));
    }
    rules
}

fn outbound(redirect: &Redirect) -> Vec<Rule> {
    let chain = Chain::ProxyInitOutput;
    let mut rules = Vec::new();
    if let Some(uid) = redirect.proxy_uid {
        rules.push(rule(
            chain,
            vec![Match::Uid(uid)],
            Verdict::Return,
            "ignore-proxy-user-id",
        ));
    }
    if let Some(gid) = redirect.proxy_gid {
        rules.push(rule(
            chain,
            vec![Match::Gid(gid)],
            Verdict::Return,
            "ignore-proxy-group-id",
        ));
    }
    rules.push(rule(
        chain,
        vec![Match::Loopback],
        Verdict::Return,
        "ignore-loopback",
    ));
    rules.extend(skipped_ports(chain, &redirect.skip_outbound));
    rules.push(rule(
        chain,
        vec![Match::Tcp],
        Verdict::Redirect(redirect.outbound_port),
        "redirect-all-outgoing-to-proxy-port",
    ));
    rules
}

fn skipped_ports(chain: Chain, ranges: &[PortRange]) -> Vec<Rule> {
    ports::groups(ranges)
        .into_iter()
        .map(|group| {
            let comment = format!("ignore-port-{}", ports::joined(&group));
            rule(
                chain,
                vec![Match::Tcp, Match::Ports(group)],
                Verdict::Return,
                &comment,
            )
        })
        .collect()
}

fn jump(from: Chain, to: Chain, comment: &str) -> Rule {
    rule(from, Vec::new(), Verdict::Jump(to), comment)
}

fn rule(chain: Chain, matches: Vec<Match>, verdict: Verdict, comment: &str) -> Rule {
    Rule {
        chain,
        matches,
        verdict,
        comment: format!("proxy-init/{comment}"),
    }
}

#[cfg(test)]
mod tests;
