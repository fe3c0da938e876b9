//! Which connections must end at the proxy, by what the pod is to have. Pure.

use std::net::{IpAddr, SocketAddr};

use crate::rules::Redirect;

/// Ports to try; a setting that skips all of them skips about everything.
const PORTS: [u16; 8] = [80, 443, 8080, 9090, 3000, 5000, 50051, 1];

/// One connection: from where, where to, and where it has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub way: Way,
    pub to: SocketAddr,
    /// The proxy's port in the pod.
    pub proxy: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the pod to its neighbour.
    Out,
    /// From the neighbour to the pod.
    In,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Out => "outbound",
            Way::In => "inbound",
        }
    }
}

/// The connections between `pod` and `neighbour` that `redirect` sends to the proxy.
/// The pod's are made by `user`, a UID and a GID, who may be the proxy's own.
pub fn targets(
    redirect: &Redirect,
    user: (u32, u32),
    pod: IpAddr,
    neighbour: IpAddr,
) -> Vec<Target> {
    let out = outbound(redirect, user).map(|port| Target {
        way: Way::Out,
        to: SocketAddr::new(neighbour, port),
        proxy: redirect.outbound_port,
    });
    let inward = inbound(redirect, neighbour).map(|port| Target {
        way: Way::In,
        to: SocketAddr::new(pod, port),
        proxy: redirect.inbound_port,
    });
    out.into_iter().chain(inward).collect()
}

fn outbound(redirect: &Redirect, (uid, gid): (u32, u32)) -> Option<u16> {
    if redirect.proxy_uid == Some(uid) || redirect.proxy_gid == Some(gid) {
        return None;
    }
    PORTS
        .into_iter()
        .find(|&port| !is_in(&redirect.skip_outbound, port))
}

fn inbound(redirect: &Redirect, from: IpAddr) -> Option<u16> {
    let skipped = |subnet: &crate::rules::Subnet| subnet.net.contains(&from);
    if redirect.skip_subnets.iter().any(skipped) {
        return None;
    }
    let ours = [redirect.inbound_port, redirect.outbound_port];
    let wanted = match redirect.ports_to_redirect.as_slice() {
        [] => &PORTS[..],
        ports => ports,
    };
    wanted
        .iter()
        .copied()
        .find(|port| !ours.contains(port) && !is_in(&redirect.skip_inbound, *port))
}

fn is_in(ranges: &[crate::ports::PortRange], port: u16) -> bool {
    ranges
        .iter()
        .any(|range| (range.first..=range.last).contains(&port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::PortRange;
    use crate::rules::Subnet;

    fn redirect() -> Redirect {
        Redirect {
            inbound_port: 4143,
            outbound_port: 4140,
            proxy_uid: Some(2102),
            proxy_gid: None,
            ports_to_redirect: Vec::new(),
            skip_inbound: Vec::new(),
            skip_outbound: Vec::new(),
            skip_subnets: Vec::new(),
        }
    }

    fn found(redirect: &Redirect) -> Vec<(&'static str, u16)> {
        let [pod, neighbour] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        let targets = targets(redirect, (0, 0), pod, neighbour);
        let seen = targets.iter().map(|t| (t.way.name(), t.to.port()));
        seen.collect()
    }

    #[test]
    fn only_what_is_to_be_redirected_is_tried() {
        let range = |first, last| vec![PortRange { first, last }];
        assert_eq!(found(&redirect()), [("outbound", 80), ("inbound", 80)]);
        let skipped = Redirect {
            skip_inbound: range(1, 443),
            skip_outbound: range(0, 65535),
            ..redirect()
        };
        assert_eq!(found(&skipped), [("inbound", 8080)]);
        let chosen = Redirect {
            ports_to_redirect: vec![4143, 7000, 7001],
            skip_inbound: range(7000, 7000),
            proxy_gid: Some(0),
            ..redirect()
        };
        assert_eq!(found(&chosen), [("inbound", 7001)]);
        let near = Redirect {
            skip_subnets: vec![Subnet {
                net: "192.0.2.0/24".parse().unwrap(),
                text: String::new(),
            }],
            proxy_uid: Some(0),
            ..redirect()
        };
        assert_eq!(found(&near), []);
    }
}
