//! The paths on which traffic of a meshed pod bypasses its proxy, or may bypass it, each with a
//! stable reason. Pure.

use super::container_paths::{container_paths, independent_container_paths};
use super::reason::Reason;
use super::refusal::Refusal;
use super::{NotCalled, Verdict};
use crate::config::ignored_ports::{INBOUND_KEY, INNER_KEY, OUTBOUND_KEY};
use crate::config::resolve::SubnetList;
use crate::config::{Config, ResolvedRedirect};
use crate::pod::annotation;
use crate::pod::facts::{CONTROL_PLANE_LABEL, ObjectFacts, PodFacts};
use crate::pod::mesh::Proxy;
use crate::pod::observed::Observed;
use crate::pod::skip::SkipReason;
use crate::quote;
use crate::redirect::Ipv6;
use crate::redirect::ports::PortRange;

/// Values of the chart that become keys of the plugin entry.
const CHART_VALUES: [(&str, &str); 6] = [
    (INBOUND_KEY, "ignoreInboundPorts"),
    (OUTBOUND_KEY, "ignoreOutboundPorts"),
    (SubnetList::Any.key(), "skipSubnets"),
    (SubnetList::Inbound.key(), "skipInboundSubnets"),
    (SubnetList::Outbound.key(), "skipOutboundSubnets"),
    (INNER_KEY, "innerInterfaces"),
];

/// The lists of subnets, each with the reason of its path.
const SUBNET_REASONS: [(SubnetList, Reason); SubnetList::ALL.len()] = [
    (SubnetList::Any, Reason::SkipInboundSubnets),
    (SubnetList::Inbound, Reason::SkipInboundSubnets),
    (SubnetList::Outbound, Reason::SkipOutboundSubnets),
];
/// Linkerd's ports of the proxy's admin and control server.
const DEFAULT_ADMIN_PORT: u16 = 4191;
const DEFAULT_CONTROL_PORT: u16 = 4190;

/// A path on which traffic of a meshed pod bypasses its proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BypassPath {
    pub reason: Reason,
    /// The containers, ports or subnets. May be empty.
    pub detail: String,
    /// What causes the path, unless the pod's spec does: `pod` or `namespace` and an annotation, or
    /// `value` and a value of the chart.
    pub cause: Option<(&'static str, &'static str)>,
}

impl BypassPath {
    pub fn new(reason: Reason, detail: impl AsRef<str>) -> BypassPath {
        let detail = quote::cut(&quote::one_line(detail.as_ref()));
        BypassPath { reason, detail, cause: None }
    }

    fn caused_by(self, kind: &'static str, key: &'static str) -> BypassPath {
        BypassPath { cause: Some((kind, key)), ..self }
    }

    /// `key`: the control plane's label, an annotation, or a key of the plugin entry.
    fn caused_by_key(self, key: &'static str, known: &ObjectFacts) -> BypassPath {
        if let Some((_, value)) = CHART_VALUES.iter().find(|(entry, _)| *entry == key) {
            return self.caused_by("value", value);
        }
        if key == CONTROL_PLANE_LABEL || known.facts.annotations.contains_key(key) {
            return self.caused_by("pod", key);
        }
        self.caused_by("namespace", key)
    }
}

/// Returns the paths around the proxy of a meshed pod with this verdict: those that its object, its
/// namespace and the plugin entry cause today, and those of which that is unknown. `facts`
/// completes `known`. If ADD would fail today, the pod runs with earlier rules: the paths are those
/// that need no rules, and an unknown one.
pub fn bypass_paths(
    config: &Config,
    verdict: &Verdict,
    known: &ObjectFacts,
    facts: &PodFacts,
    observed: &Observed,
) -> Vec<BypassPath> {
    match verdict {
        Verdict::NotCalled(why) => vec![not_called_path(*why)],
        Verdict::Skipped(reason) => vec![skipped_path(*reason)],
        Verdict::Refused(Refusal::Sandbox { runtime_class }, _) => {
            vec![BypassPath::new(Reason::Sandbox, runtime_class)]
        }
        // A pod that may use the proxy's user may have started before ADD refused such pods.
        Verdict::Redirected(resolved)
        | Verdict::Refused(Refusal::SharedProxyUser { .. }, resolved) => {
            let mut paths = Vec::from_iter(ipv6_path(config, resolved, observed));
            let names = container_paths(&resolved.redirect, known, observed);
            paths.extend(paths_of_containers(names));
            paths.extend(redirected_ports_path(resolved));
            paths.extend(skip_list_paths(config, known, facts));
            paths
        }
        Verdict::Failed(error) => {
            let mut paths = paths_of_containers(independent_container_paths(known));
            paths.extend(skip_list_paths(config, known, facts));
            paths.push(unknown_path(&error.msg));
            paths
        }
        Verdict::Undecided(why) => {
            let mut paths = paths_of_containers(independent_container_paths(known));
            paths.push(unknown_path(why));
            paths
        }
    }
}

fn paths_of_containers(names_by_reason: Vec<(Reason, Vec<String>)>) -> Vec<BypassPath> {
    let mut paths = Vec::new();
    for (reason, names) in names_by_reason {
        paths.push(BypassPath::new(reason, names.join(", ")));
    }
    paths
}

/// Returns the path of a pod of which it is unknown what the plugin does with it.
pub fn unknown_path(why: &str) -> BypassPath {
    // The text of an error is already cut.
    BypassPath { reason: Reason::Unknown, detail: quote::one_line(why), cause: None }
}

/// Returns the path of a meshed pod for which the plugin is not called.
fn not_called_path(why: NotCalled) -> BypassPath {
    match why {
        NotCalled::HostNetwork => BypassPath::new(Reason::HostNetwork, ""),
        NotCalled::NotAttached => {
            BypassPath::new(Reason::NotRedirected, why.text()).caused_by("value", "chained")
        }
    }
}

/// Returns the path of a meshed pod that the plugin skips.
fn skipped_path(reason: SkipReason) -> BypassPath {
    let path = BypassPath::new(Reason::NotRedirected, reason.text());
    if reason == SkipReason::ExcludedNamespace {
        return path.caused_by("value", "excludeNamespaces");
    }
    path
}

/// Returns the path of IPv6, if that is not redirected. Without an IPv6 address of its own, the pod
/// has a link-local address wherever the node's kernel has IPv6 and the network does not disable
/// it. With this address, it reaches pods on the same bridge.
fn ipv6_path(
    config: &Config,
    resolved: &ResolvedRedirect,
    observed: &Observed,
) -> Option<BypassPath> {
    if resolved.ipv6 != Ipv6::No {
        return None;
    }
    let reason = if observed.has_ipv6 { Reason::Ipv6 } else { Reason::Ipv6LinkLocal };
    Some(match config.ipv6 {
        Ipv6::Auto => BypassPath::new(reason, "the proxy listens on IPv4 only"),
        _ => BypassPath::new(reason, "").caused_by("value", "disableIPv6"),
    })
}

/// Returns the path of the inbound ports that are not redirected, if only some are.
fn redirected_ports_path(resolved: &ResolvedRedirect) -> Option<BypassPath> {
    let ports = &resolved.redirect.ports_to_redirect;
    if ports.is_empty() {
        return None;
    }
    let ports = dashed(ports.iter().map(|&port| port.into()));
    let path = BypassPath::new(Reason::PortsToRedirect, ports.join(", "));
    Some(path.caused_by("value", "portsToRedirect"))
}

/// Returns one path around the proxy for each list that is not empty. Inbound ranges that have
/// only the proxy's own control and admin ports are left out, and invalid elements.
fn skip_list_paths(config: &Config, known: &ObjectFacts, facts: &PodFacts) -> Vec<BypassPath> {
    let servers = proxy_servers(facts);
    // Reason, elements and key of each list.
    let mut lists: Vec<(Reason, Vec<String>, &'static str)> = Vec::new();
    for list in config.inbound_ports(facts) {
        let ranges = list.ports().flatten();
        let ranges = ranges.filter(|range| !has_only_ports_of(range, &servers));
        lists.push((Reason::SkipInboundPorts, dashed(ranges), list.key));
    }
    let list = config.outbound_ports(facts);
    lists.push((Reason::SkipOutboundPorts, dashed(list.ports().flatten()), list.key));
    let api_ports = dashed(facts.api_ports.iter().copied());
    lists.push((Reason::SkipOutboundPorts, api_ports, CONTROL_PLANE_LABEL));
    for (list, reason) in SUBNET_REASONS {
        let (key, subnets) = config.valid_subnets(facts, list);
        lists.push((reason, subnets.into_iter().map(|subnet| subnet.text).collect(), key));
    }
    let list = config.inner_interface_list(facts);
    let (interfaces, _) = list.interfaces();
    let names = interfaces.into_iter().map(|interface| interface.to_string()).collect();
    lists.push((Reason::InnerInterfaces, names, list.key));
    let mut paths = Vec::new();
    for (reason, elements, key) in lists {
        if !elements.is_empty() {
            paths.push(BypassPath::new(reason, elements.join(", ")).caused_by_key(key, known));
        }
    }
    paths
}

/// Returns the ports of the proxy's admin and control server, which are no path to the app.
fn proxy_servers(facts: &PodFacts) -> [u16; 2] {
    let Proxy { admin_port, control_port, .. } = facts.proxy;
    [
        server_port(facts, admin_port, annotation::ADMIN_PORT, DEFAULT_ADMIN_PORT),
        server_port(facts, control_port, annotation::CONTROL_PORT, DEFAULT_CONTROL_PORT),
    ]
}

/// Returns the port that the proxy container states, or else the annotated one, or the default.
fn server_port(facts: &PodFacts, stated: Option<u16>, annotation: &str, default: u16) -> u16 {
    if let Some(port) = stated {
        return port;
    }
    let annotated = facts.annotations.get(annotation).and_then(|text| text.parse().ok());
    annotated.unwrap_or(default)
}

fn has_only_ports_of(range: &PortRange, ports: &[u16]) -> bool {
    (range.first..=range.last).all(|port| ports.contains(&port))
}

fn dashed(ranges: impl Iterator<Item = PortRange>) -> Vec<String> {
    ranges.map(|range| range.dashed()).collect()
}
