//! The paths on which traffic of a meshed pod bypasses its proxy, each with a stable reason. Docs,
//! `linkerd cni` and the agent's metric take reasons and their meaning from here. Pure.

use super::Verdict;
use super::refusal::Refusal;
use crate::config::ignored_ports::{INBOUND_KEY, OUTBOUND_KEY};
use crate::config::resolve::SubnetList;
use crate::config::{Config, ResolvedRedirect};
use crate::pod::containers::{Exposure, exempt_names};
use crate::pod::facts::{CONTROL_PLANE_LABEL, ObjectFacts, PodFacts};
use crate::pod::mesh::Proxy;
use crate::pod::skip::SkipReason;
use crate::pod::{annotation, reasons};
use crate::quote;
use crate::redirect::Ipv6;
use crate::redirect::ports::PortRange;

/// Values of the chart that become keys of the plugin entry.
const CHART_VALUES: [(&str, &str); 5] = [
    (INBOUND_KEY, "ignoreInboundPorts"),
    (OUTBOUND_KEY, "ignoreOutboundPorts"),
    (SubnetList::Any.key(), "skipSubnets"),
    (SubnetList::Inbound.key(), "skipInboundSubnets"),
    (SubnetList::Outbound.key(), "skipOutboundSubnets"),
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

reasons! {
    /// Why traffic of a meshed pod bypasses the proxy. The text says which traffic.
    pub enum Reason {
        HostNetwork "host-network"
            "Everything: the pod uses the node's network namespace"
        NotRedirected "not-redirected"
            "Everything: the plugin skips the pod"
        Sandbox "sandbox"
            "Everything: the sandbox of the pod's RuntimeClass ignores the rules"
        RulesMissing "rules-missing"
            "What the missing or changed rules redirect: the repair controller reported and did \
             not repair them"
        Ipv6 "ipv6"
            "IPv6, which is not redirected although the pod has an address"
        ProxyUser "proxy-user"
            "Outbound connections of containers that run as the proxy's user"
        InitProxyUser "init-proxy-user"
            "Outbound connections of init containers that run as the proxy's user"
        NetAdmin "net-admin"
            "Everything: containers with `NET_ADMIN` can change the rules"
        NetRaw "net-raw"
            "Packets of containers with `NET_RAW`, which can send them past the rules"
        RootContainer "root-container"
            "Outbound connections of containers that may run as root and do not drop all \
             capabilities: they can become the proxy's user, or send packets past the rules under \
             a runtime that gives them `NET_RAW`, such as containerd"
        PortsToRedirect "ports-to-redirect"
            "Inbound connections to other ports than these"
        SkipInboundPorts "skip-inbound-ports"
            "Inbound connections to these ports"
        SkipOutboundPorts "skip-outbound-ports"
            "Outbound connections to these ports"
        SkipInboundSubnets "skip-inbound-subnets"
            "Inbound connections from these subnets"
        SkipOutboundSubnets "skip-outbound-subnets"
            "Outbound connections to these subnets"
        Unknown "unknown"
            "Not known: an annotation is invalid, facts about the pod are missing, or they are too \
             many for the agent"
        Udp "udp"
            "UDP and other protocols of every pod: only TCP is redirected"
    }
}

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
/// namespace and the plugin entry cause today. `facts` completes `known`. If ADD would fail today,
/// the pod runs with earlier rules: the paths are those that need no rules, and an unknown one.
pub fn bypass_paths(
    config: &Config,
    verdict: &Verdict,
    known: &ObjectFacts,
    facts: &PodFacts,
    has_ipv6: bool,
) -> Vec<BypassPath> {
    match verdict {
        Verdict::NotCalled => vec![BypassPath::new(Reason::HostNetwork, "")],
        Verdict::Skipped(reason) => vec![skipped_path(*reason)],
        Verdict::Refused(Refusal::Sandbox { runtime_class }, _) => {
            vec![BypassPath::new(Reason::Sandbox, runtime_class)]
        }
        // A pod that shares the proxy's user may have started before ADD refused such pods.
        Verdict::Redirected(resolved)
        | Verdict::Refused(Refusal::SharedProxyUser { .. }, resolved) => {
            let mut paths = container_paths(config, resolved, known, has_ipv6);
            paths.extend(redirected_ports_path(resolved));
            paths.extend(skip_list_paths(config, known, facts));
            paths
        }
        Verdict::Failed(error) => {
            let mut paths = exposure_paths(&known.exposure);
            paths.extend(skip_list_paths(config, known, facts));
            // The text of an error is already cut.
            let detail = quote::one_line(&error.msg);
            paths.push(BypassPath { reason: Reason::Unknown, detail, cause: None });
            paths
        }
        Verdict::Undecided => {
            vec![BypassPath::new(Reason::Unknown, "facts about the pod are missing")]
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

/// Returns the paths of IPv6 and of containers.
fn container_paths(
    config: &Config,
    resolved: &ResolvedRedirect,
    known: &ObjectFacts,
    has_ipv6: bool,
) -> Vec<BypassPath> {
    let mut paths = Vec::new();
    if resolved.ipv6 == Ipv6::No && has_ipv6 {
        paths.push(match config.ipv6 {
            Ipv6::Auto => BypassPath::new(Reason::Ipv6, "the proxy listens on IPv4 only"),
            _ => BypassPath::new(Reason::Ipv6, "").caused_by("value", "disableIPv6"),
        });
    }
    let exposure = &known.exposure;
    let init_containers = exempt_names(&exposure.init_containers, &resolved.redirect);
    for (reason, names) in [
        (Reason::ProxyUser, &resolved.exempt_containers),
        (Reason::InitProxyUser, &init_containers),
    ] {
        if !names.is_empty() {
            paths.push(BypassPath::new(reason, names.join(", ")));
        }
    }
    paths.extend(exposure_paths(exposure));
    paths
}

/// Returns the paths of containers that no rule closes.
fn exposure_paths(exposure: &Exposure) -> Vec<BypassPath> {
    let mut paths = Vec::new();
    for (reason, names) in [
        (Reason::NetAdmin, &exposure.net_admin),
        (Reason::NetRaw, &exposure.net_raw),
        (Reason::RootContainer, &exposure.root),
    ] {
        if !names.is_empty() {
            paths.push(BypassPath::new(reason, names.join(", ")));
        }
    }
    paths
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

/// Returns one path around the proxy for each skip list that is not empty. Inbound ranges that have
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
