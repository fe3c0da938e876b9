//! Chooses the connections that a self-test opens, from the pod's redirect rules. Pure.

use std::net::{IpAddr, SocketAddr};

use crate::redirect::Redirect;

/// Candidate ports. If the config skips all of them, the direction is not tested: such a config
/// redirects hardly any port.
const PORTS: [u16; 8] = [80, 443, 8080, 9090, 3000, 5000, 50051, 1];

/// One connection that has to be redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestConnection {
    pub direction: Direction,
    /// Destination that the client connects to.
    pub to: SocketAddr,
    /// The proxy's port in the pod, where the connection has to arrive.
    pub proxy: u16,
}

/// Direction of a connection, as seen from the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the pod to its neighbour.
    Outbound,
    /// From the neighbour to the pod.
    Inbound,
}

impl Direction {
    pub fn name(self) -> &'static str {
        match self {
            Direction::Outbound => "outbound",
            Direction::Inbound => "inbound",
        }
    }
}

/// Returns connections between `pod` and `neighbour` that `redirect` sends to the proxy, at most
/// one for each direction. `user` is the UID and GID that opens the outbound connection: the
/// proxy's own connections are not redirected.
pub fn connections(
    redirect: &Redirect,
    user: (u32, u32),
    pod: IpAddr,
    neighbour: IpAddr,
) -> Vec<TestConnection> {
    let out = outbound(redirect, user).map(|port| TestConnection {
        direction: Direction::Outbound,
        to: SocketAddr::new(neighbour, port),
        proxy: redirect.outbound_port,
    });
    let inward = inbound(redirect, neighbour).map(|port| TestConnection {
        direction: Direction::Inbound,
        to: SocketAddr::new(pod, port),
        proxy: redirect.inbound_port,
    });
    out.into_iter().chain(inward).collect()
}

/// Returns a port to which outbound connections of this user are redirected.
fn outbound(redirect: &Redirect, (uid, gid): (u32, u32)) -> Option<u16> {
    if redirect.proxy_uid == Some(uid) || redirect.proxy_gid == Some(gid) {
        return None;
    }
    PORTS.into_iter().find(|&port| !is_in(&redirect.skip_outbound, port))
}

/// Returns a port on which inbound connections from this address are redirected.
fn inbound(redirect: &Redirect, from: IpAddr) -> Option<u16> {
    let skipped = |subnet: &crate::redirect::Subnet| subnet.net.contains(&from);
    if redirect.skip_subnets.iter().any(skipped) {
        return None;
    }
    let proxy_ports = [redirect.inbound_port, redirect.outbound_port];
    let candidates = match redirect.ports_to_redirect.as_slice() {
        [] => &PORTS[..],
        ports => ports,
    };
    candidates
        .iter()
        .copied()
        .find(|port| !proxy_ports.contains(port) && !is_in(&redirect.skip_inbound, *port))
}

fn is_in(ranges: &[crate::redirect::ports::PortRange], port: u16) -> bool {
    ranges.iter().any(|range| (range.first..=range.last).contains(&port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redirect::Subnet;
    use crate::redirect::ports::PortRange;

    fn chosen(redirect: &Redirect) -> Vec<(&'static str, u16)> {
        let [pod, neighbour] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        let chosen = connections(redirect, (0, 0), pod, neighbour);
        let ports = chosen.iter().map(|t| (t.direction.name(), t.to.port()));
        ports.collect()
    }

    #[test]
    fn only_connections_that_are_redirected_are_chosen() {
        let range = |first, last| vec![PortRange { first, last }];
        assert_eq!(chosen(&Redirect::example()), [("outbound", 80), ("inbound", 80)]);
        let skipped = Redirect {
            skip_inbound: range(1, 443),
            skip_outbound: range(0, 65535),
            ..Redirect::example()
        };
        assert_eq!(chosen(&skipped), [("inbound", 8080)]);
        let listed = Redirect {
            ports_to_redirect: vec![4143, 7000, 7001],
            skip_inbound: range(7000, 7000),
            proxy_gid: Some(0),
            ..Redirect::example()
        };
        assert_eq!(chosen(&listed), [("inbound", 7001)]);
        let near = Redirect {
            skip_subnets: vec![Subnet {
                net: "192.0.2.0/24".parse().unwrap(),
                text: String::new(),
            }],
            proxy_uid: Some(0),
            ..Redirect::example()
        };
        assert_eq!(chosen(&near), []);
    }
}
