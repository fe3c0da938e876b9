//! The reasons why traffic of a meshed pod bypasses or may bypass its proxy. Pure.
//!
//! The docs, `linkerd cni`, the plugin's errors and the agent's metric all use these reasons.

use super::outcome::Outcome;
use crate::pod::reasons;

reasons! {
    /// Why traffic of a meshed pod bypasses or may bypass the proxy. The text says which traffic.
    pub enum Reason {
        HostNetwork "host-network"
            "Everything: the pod uses the node's network namespace"
        NotRedirected "not-redirected"
            "Everything: the plugin skips the pod, or is not called for it"
        Sandbox "sandbox"
            "Everything: the sandbox of the pod's RuntimeClass ignores the rules"
        RulesMissing "rules-missing"
            "What the missing or changed rules redirect: the pod's validator fails, or the repair \
             controller reported and did not repair them"
        RulesUnknown "rules-unknown"
            "Unknown: no repair controller compares the rules that the pod has now, or it cannot"
        Ipv6 "ipv6"
            "IPv6, which is not redirected although the pod has an address"
        Ipv6LinkLocal "ipv6-link-local"
            "Unknown: IPv6 is not redirected, and pods on one bridge may reach each other by their \
             link-local addresses"
        ProxyUser "proxy-user"
            "Outbound connections of containers that run as the proxy's user"
        InitProxyUser "init-proxy-user"
            "Outbound connections of init containers that run as the proxy's user"
        ImageUser "image-user"
            "Unknown: only the image names the user of these containers, which may be the proxy's \
             user or root"
        SetUserId "set-user-id"
            "Outbound connections of containers without `allowPrivilegeEscalation: false`: they \
             can run a set-user-ID file of the proxy's user"
        NetAdmin "net-admin"
            "Everything: containers with `NET_ADMIN` can change the rules"
        NetRaw "net-raw"
            "Packets of containers with `NET_RAW`, which can send them past the rules"
        SysAdmin "sys-admin"
            "Everything: containers with `SYS_ADMIN` can leave their namespaces"
        SysPtrace "sys-ptrace"
            "Outbound connections of containers with `SYS_PTRACE`, which can take over the proxy's \
             process where they see it"
        RootContainer "root-container"
            "Outbound connections of containers that run as root and do not drop all \
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
        InnerInterfaces "inner-interfaces"
            "The proxy's inbound policies, for connections through these interfaces to the pod: they \
             are outbound"
        Unknown "unknown"
            "Unknown: an annotation is invalid, facts about the pod are missing, or they are too \
             many for the agent"
        Udp "udp"
            "UDP and other protocols of every pod: only TCP is redirected"
    }
}

impl Reason {
    /// Returns [`Outcome::Wrong`] for a path that exists, and [`Outcome::Unknown`] for one that may
    /// exist.
    pub fn outcome(self) -> Outcome {
        match self {
            Reason::RulesUnknown | Reason::Ipv6LinkLocal | Reason::ImageUser | Reason::Unknown => {
                Outcome::Unknown
            }
            Reason::HostNetwork
            | Reason::NotRedirected
            | Reason::Sandbox
            | Reason::RulesMissing
            | Reason::Ipv6
            | Reason::ProxyUser
            | Reason::InitProxyUser
            | Reason::SetUserId
            | Reason::NetAdmin
            | Reason::NetRaw
            | Reason::SysAdmin
            | Reason::SysPtrace
            | Reason::RootContainer
            | Reason::PortsToRedirect
            | Reason::SkipInboundPorts
            | Reason::SkipOutboundPorts
            | Reason::SkipInboundSubnets
            | Reason::SkipOutboundSubnets
            | Reason::InnerInterfaces
            | Reason::Udp => Outcome::Wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readers of the metric and of the table in docs/cli.md recognize unknown paths by this word.
    #[test]
    fn text_of_an_unknown_path_starts_with_unknown() {
        for reason in Reason::ALL {
            let is_unknown = reason.outcome() == Outcome::Unknown;
            assert_eq!(reason.text().starts_with("Unknown: "), is_unknown, "{}", reason.label());
        }
    }
}
