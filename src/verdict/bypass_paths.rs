//! Lists the paths on which traffic of a meshed pod bypasses or may bypass its proxy. Each path has
//! a stable reason. Pure.

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

/// Keys of the plugin entry, each with the chart value that sets it.
const CHART_VALUES: [(&str, &str); 6] = [
    (INBOUND_KEY, "ignoreInboundPorts"),
    (OUTBOUND_KEY, "ignoreOutboundPorts"),
    (SubnetList::Any.key(), "skipSubnets"),
    (SubnetList::Inbound.key(), "skipInboundSubnets"),
    (SubnetList::Outbound.key(), "skipOutboundSubnets"),
    (INNER_KEY, "innerInterfaces"),
];

/// Lists of subnets, each with the reason that its path has.
const SUBNET_REASONS: [(SubnetList, Reason); SubnetList::ALL.len()] = [
    (SubnetList::Any, Reason::SkipInboundSubnets),
    (SubnetList::Inbound, Reason::SkipInboundSubnets),
    (SubnetList::Outbound, Reason::SkipOutboundSubnets),
];

/// Linkerd's default port of the proxy's admin server.
const DEFAULT_ADMIN_PORT: u16 = 4191;

/// Linkerd's default port of the proxy's control server.
const DEFAULT_CONTROL_PORT: u16 = 4190;

/// A path on which traffic of a meshed pod bypasses or may bypass its proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BypassPath {
    pub reason: Reason,
    /// The containers, ports, subnets or interfaces of the path. May be empty.
    pub detail: String,
    /// The setting that causes the path: `pod` or `namespace` with an annotation, or `value` with a
    /// chart value. `None`: the pod's spec causes the path.
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

    /// Sets the cause from `key`: a key of the plugin entry, an annotation, or the control plane's
    /// label.
    fn caused_by_key(self, key: &'static str, object_facts: &ObjectFacts) -> BypassPath {
        if let Some((_, value)) = CHART_VALUES.iter().find(|(entry_key, _)| *entry_key == key) {
            return self.caused_by("value", value);
        }
        if key == CONTROL_PLANE_LABEL || object_facts.facts.annotations.contains_key(key) {
            return self.caused_by("pod", key);
        }
        self.caused_by("namespace", key)
    }
}

/// Returns the paths around the proxy of a meshed pod with this verdict. They follow from the pod
/// object, its namespace and the plugin entry as they are now, and include paths that only may
/// exist. `facts` are the completed `object_facts`.
///
/// For [`Verdict::Failed`] and [`Verdict::Undecided`], the rules of the running pod are unknown.
/// The result then has the paths that do not depend on the rules, and a path with
/// [`Reason::Unknown`].
pub fn bypass_paths(
    config: &Config,
    verdict: &Verdict,
    object_facts: &ObjectFacts,
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
            let mut paths = Vec::new();
            paths.extend(ipv6_path(config, resolved, observed));
            let names = container_paths(&resolved.redirect, object_facts, observed);
            paths.extend(paths_of_containers(names));
            paths.extend(redirected_ports_path(resolved));
            paths.extend(exemption_paths(config, object_facts, facts));
            paths
        }
        Verdict::Failed(error) => {
            let mut paths = paths_of_containers(independent_container_paths(object_facts));
            paths.extend(exemption_paths(config, object_facts, facts));
            paths.push(unknown_path(&error.msg));
            paths
        }
        Verdict::Undecided(why) => {
            let mut paths = paths_of_containers(independent_container_paths(object_facts));
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

/// Returns the path of a pod for which the plugin's verdict is unknown.
pub fn unknown_path(why: &str) -> BypassPath {
    // Error texts are already shortened.
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

/// Returns the path over IPv6, or `None` if IPv6 is redirected.
///
/// A pod without an IPv6 address usually has a link-local address: the kernel assigns it unless the
/// network disables IPv6. Through this address, the pod can reach other pods on the same bridge.
fn ipv6_path(
    config: &Config,
    resolved: &ResolvedRedirect,
    observed: &Observed,
) -> Option<BypassPath> {
    if resolved.ipv6 != Ipv6::No {
        return None;
    }
    let reason = if observed.has_ipv6 { Reason::Ipv6 } else { Reason::Ipv6LinkLocal };
    if config.ipv6 == Ipv6::Auto {
        return Some(BypassPath::new(reason, "the proxy listens on IPv4 only"));
    }
    Some(BypassPath::new(reason, "").caused_by("value", "disableIPv6"))
}

/// Returns the path of the other inbound ports, if only some inbound ports are redirected.
fn redirected_ports_path(resolved: &ResolvedRedirect) -> Option<BypassPath> {
    let ports = &resolved.redirect.ports_to_redirect;
    if ports.is_empty() {
        return None;
    }
    let ports = range_texts(ports.iter().map(|&port| port.into()));
    let path = BypassPath::new(Reason::PortsToRedirect, ports.join(", "));
    Some(path.caused_by("value", "portsToRedirect"))
}

/// A list of ports, subnets or interfaces that are exempt from the redirect.
struct Exemptions {
    reason: Reason,
    elements: Vec<String>,
    /// Key of the plugin entry, annotation or label that sets the list.
    key: &'static str,
}

/// Returns one path for each nonempty list of exemptions.
fn exemption_paths(
    config: &Config,
    object_facts: &ObjectFacts,
    facts: &PodFacts,
) -> Vec<BypassPath> {
    let mut lists = inbound_port_exemptions(config, facts);
    lists.extend(outbound_port_exemptions(config, facts));
    lists.extend(subnet_exemptions(config, facts));
    lists.push(interface_exemptions(config, facts));
    let mut paths = Vec::new();
    for Exemptions { reason, elements, key } in lists {
        if !elements.is_empty() {
            let path = BypassPath::new(reason, elements.join(", "));
            paths.push(path.caused_by_key(key, object_facts));
        }
    }
    paths
}

/// Returns the valid inbound ports, without ranges that contain only the proxy's own control and
/// admin ports.
fn inbound_port_exemptions(config: &Config, facts: &PodFacts) -> Vec<Exemptions> {
    let server_ports = proxy_server_ports(facts);
    let mut lists = Vec::new();
    for list in config.inbound_ports(facts) {
        let ranges = list.ports().flatten();
        let app_ranges = ranges.filter(|range| !contains_only(range, &server_ports));
        lists.push(Exemptions {
            reason: Reason::SkipInboundPorts,
            elements: range_texts(app_ranges),
            key: list.key,
        });
    }
    lists
}

/// Returns the valid outbound ports, and the API server's ports.
fn outbound_port_exemptions(config: &Config, facts: &PodFacts) -> [Exemptions; 2] {
    let list = config.outbound_ports(facts);
    let ports = Exemptions {
        reason: Reason::SkipOutboundPorts,
        elements: range_texts(list.ports().flatten()),
        key: list.key,
    };
    let api_ports = Exemptions {
        reason: Reason::SkipOutboundPorts,
        elements: range_texts(facts.api_ports.iter().copied()),
        key: CONTROL_PLANE_LABEL,
    };
    [ports, api_ports]
}

/// Returns the valid subnets.
fn subnet_exemptions(config: &Config, facts: &PodFacts) -> Vec<Exemptions> {
    let mut lists = Vec::new();
    for (list, reason) in SUBNET_REASONS {
        let (key, subnets) = config.valid_subnets(facts, list);
        let elements = subnets.into_iter().map(|subnet| subnet.text).collect();
        lists.push(Exemptions { reason, elements, key });
    }
    lists
}

/// Returns the valid names of interfaces inside the pod.
fn interface_exemptions(config: &Config, facts: &PodFacts) -> Exemptions {
    let list = config.inner_interface_list(facts);
    let (interfaces, _invalid) = list.interfaces();
    let elements = interfaces.into_iter().map(|interface| interface.to_string()).collect();
    Exemptions { reason: Reason::InnerInterfaces, elements, key: list.key }
}

/// Returns the ports of the proxy's admin and control servers. Connections to them do not reach the
/// app.
fn proxy_server_ports(facts: &PodFacts) -> [u16; 2] {
    let Proxy { admin_port, control_port, .. } = facts.proxy;
    [
        server_port(facts, admin_port, annotation::ADMIN_PORT, DEFAULT_ADMIN_PORT),
        server_port(facts, control_port, annotation::CONTROL_PORT, DEFAULT_CONTROL_PORT),
    ]
}

/// Returns the port that the proxy container sets. Falls back to the annotation, then to the
/// default.
fn server_port(
    facts: &PodFacts,
    container_port: Option<u16>,
    annotation: &str,
    default: u16,
) -> u16 {
    if let Some(port) = container_port {
        return port;
    }
    let Some(text) = facts.annotations.get(annotation) else { return default };
    text.parse().unwrap_or(default)
}

/// Returns true if every port of the range is one of `ports`.
fn contains_only(range: &PortRange, ports: &[u16]) -> bool {
    (range.first..=range.last).all(|port| ports.contains(&port))
}

fn range_texts(ranges: impl Iterator<Item = PortRange>) -> Vec<String> {
    ranges.map(|range| range.annotation_text()).collect()
}
