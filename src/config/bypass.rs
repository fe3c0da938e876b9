//! The paths on which traffic of a meshed pod bypasses its proxy, each with a stable reason. Docs,
//! `linkerd cni` and the agent's metric take reasons and their meaning from here. Pure.

use super::Config;
use super::ignored_ports::{INBOUND_KEY, OUTBOUND_KEY};
use super::resolve::SUBNETS;
use crate::cni::Error;
use crate::cni::args::PodRef;
use crate::kube::types::Pod;
use crate::pod::containers::{exempt, has_ipv6_address};
use crate::pod::facts::{CONTROL_PLANE_LABEL, ClusterLookup, OwnFacts, PodFacts, own_facts};
use crate::pod::skip::SkipReason;
use crate::pod::{Decision, annotation, reasons};
use crate::quote;
use crate::redirect::Ipv6;
use crate::redirect::ports::PortRange;

/// Values of the chart that become keys of the plugin entry.
const VALUES: [(&str, &str); 5] = [
    (INBOUND_KEY, "ignoreInboundPorts"),
    (OUTBOUND_KEY, "ignoreOutboundPorts"),
    (SUBNETS[0].1, "skipSubnets"),
    (SUBNETS[1].1, "skipInboundSubnets"),
    (SUBNETS[2].1, "skipOutboundSubnets"),
];

reasons! {
    /// Why traffic of a meshed pod bypasses the proxy. The text says which traffic.
    pub enum Reason {
        HostNetwork "host-network"
            "Everything: the pod uses the node's network namespace"
        NotRedirected "not-redirected"
            "Everything: the plugin skips the pod, or only logs its rules"
        Sandbox "sandbox"
            "Everything: the sandbox of the pod's RuntimeClass ignores the rules"
        RulesMissing "rules-missing"
            "What the missing or changed rules redirect: the repair controller reported and did not repair them"
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
            "Outbound connections of containers that may run as root and do not drop all capabilities: they can become the proxy's user, or send packets past the rules under a runtime that gives them `NET_RAW`, such as containerd"
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
        Udp "udp"
            "UDP and other protocols of every pod: only TCP is redirected"
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    pub reason: Reason,
    /// The containers, ports or subnets. May be empty.
    pub detail: String,
    /// What causes the path, unless the pod's spec does: `pod` or `namespace` and an annotation, or
    /// `value` and a value of the chart.
    pub cause: Option<(&'static str, &'static str)>,
}

impl Bypass {
    pub fn new(reason: Reason, detail: impl AsRef<str>) -> Bypass {
        let detail = quote::cut(&quote::one_line(detail.as_ref()));
        Bypass { reason, detail, cause: None }
    }

    fn by(self, kind: &'static str, key: &'static str) -> Bypass {
        Bypass { cause: Some((kind, key)), ..self }
    }

    /// `key`: the control plane's label, an annotation, or a key of the plugin entry.
    fn by_key(self, key: &'static str, own: &OwnFacts) -> Bypass {
        if let Some((_, value)) = VALUES.iter().find(|(entry, _)| *entry == key) {
            return self.by("value", value);
        }
        if key == CONTROL_PLANE_LABEL || own.facts.annotations.contains_key(key) {
            return self.by("pod", key);
        }
        self.by("namespace", key)
    }
}

impl Config {
    /// Returns the paths of [`Config::bypasses`] for a pod that its containers say to redirect, or why
    /// they say not to.
    pub fn bypasses_of(
        &self,
        pod: Pod,
        lookup: &mut impl ClusterLookup,
    ) -> Result<Decision<Vec<Bypass>>, Error> {
        let pod_ref = PodRef::from(&pod.metadata);
        let has_ipv6 = has_ipv6_address(&pod);
        let own = match own_facts(pod).map_err(|problem| problem.of(&pod_ref))? {
            Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
            Decision::Redirect(own) => own,
        };
        let facts = own.complete(&pod_ref.namespace, lookup)?;
        Ok(Decision::Redirect(self.bypasses(&pod_ref, &own, &facts, has_ipv6)?))
    }

    /// Returns the paths around the proxy of a meshed pod: those that its object, its namespace and the
    /// plugin entry cause today. `facts` completes `own`.
    /// Fails with the error with which the pod would not start today.
    pub fn bypasses(
        &self,
        pod: &PodRef,
        own: &OwnFacts,
        facts: &PodFacts,
        has_ipv6: bool,
    ) -> Result<Vec<Bypass>, Error> {
        let exposure = &own.exposure;
        if exposure.host_network {
            return Ok(vec![Bypass::new(Reason::HostNetwork, "")]);
        }
        if let Some(reason) = self.filter.skip_reason(pod) {
            let skipped = Bypass::new(Reason::NotRedirected, reason.text());
            return Ok(vec![match reason {
                SkipReason::ExcludedNamespace => skipped.by("value", "excludeNamespaces"),
                _ => skipped,
            }]);
        }
        let resolved = self.resolve(facts)?;
        if let Some(class) = &resolved.sandboxed_by {
            return Ok(vec![Bypass::new(Reason::Sandbox, class)]);
        }
        let mut found = Vec::new();
        if resolved.ipv6 == Ipv6::No && has_ipv6 {
            found.push(match self.ipv6 {
                Ipv6::Auto => Bypass::new(Reason::Ipv6, "the proxy listens on IPv4 only"),
                _ => Bypass::new(Reason::Ipv6, "").by("value", "disableIPv6"),
            });
        }
        let init_containers = exempt(&exposure.init_containers, &resolved.redirect);
        for (reason, names) in [
            (Reason::ProxyUser, &resolved.exempt_containers),
            (Reason::InitProxyUser, &init_containers),
            (Reason::NetAdmin, &exposure.net_admin),
            (Reason::NetRaw, &exposure.net_raw),
            (Reason::RootContainer, &exposure.root),
        ] {
            if !names.is_empty() {
                found.push(Bypass::new(reason, names.join(", ")));
            }
        }
        let ports = &resolved.redirect.ports_to_redirect;
        if !ports.is_empty() {
            let ports = dashed(ports.iter().map(|&port| port.into()));
            let bypass = Bypass::new(Reason::PortsToRedirect, ports.join(", "));
            found.push(bypass.by("value", "portsToRedirect"));
        }
        found.extend(self.skipped(own, facts)?);
        Ok(found)
    }

    /// Returns a path for each list of ports or subnets, without the ports of the proxy's own servers.
    fn skipped(&self, own: &OwnFacts, facts: &PodFacts) -> Result<Vec<Bypass>, Error> {
        let servers = [
            (facts.proxy.admin_port, annotation::ADMIN_PORT, 4191),
            (facts.proxy.control_port, annotation::CONTROL_PORT, 4190),
        ]
        .map(|(stated, key, default)| {
            let annotated = || facts.annotations.get(key)?.parse().ok();
            stated.or_else(annotated).unwrap_or(default)
        });
        let is_own =
            |range: &PortRange| (range.first..=range.last).all(|port| servers.contains(&port));
        let mut found = Vec::new();
        let mut push = |reason, texts: Vec<String>, key| {
            if !texts.is_empty() {
                found.push(Bypass::new(reason, texts.join(", ")).by_key(key, own));
            }
        };
        for list in self.inbound_ports(facts) {
            let ranges = list.ports().flatten().filter(|range| !is_own(range));
            push(Reason::SkipInboundPorts, dashed(ranges), list.key);
        }
        let list = self.outbound_ports(facts);
        push(Reason::SkipOutboundPorts, dashed(list.ports().flatten()), list.key);
        push(
            Reason::SkipOutboundPorts,
            dashed(facts.api_ports.iter().copied()),
            CONTROL_PLANE_LABEL,
        );
        let inbound = Reason::SkipInboundSubnets;
        for (index, reason) in
            [inbound, inbound, Reason::SkipOutboundSubnets].into_iter().enumerate()
        {
            let (key, subnets) = self.subnets(facts, index)?;
            push(reason, subnets.into_iter().map(|subnet| subnet.text).collect(), key);
        }
        Ok(found)
    }
}

fn dashed(ranges: impl Iterator<Item = PortRange>) -> Vec<String> {
    ranges.map(|range| range.dashed()).collect()
}
