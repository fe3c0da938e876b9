//! Opens the TCP connections of a self-test, which the scratch pod's rules must redirect.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use nix::unistd::{getegid, geteuid};

use super::scratch_pod::{ScratchPod, inside};
use crate::redirect::ports::PortRange;
use crate::redirect::{Redirect, Subnet};

/// Ports of which one that is redirected is used for a connection. If the plugin entry skips all of
/// them, the direction is not tested. Such an entry redirects hardly any port.
const CANDIDATE_PORTS: [u16; 8] = [80, 443, 8080, 9090, 3000, 5000, 50051, 1];
/// Time-out of one connection. Its first SYN may be lost while the link comes up, and the kernel
/// resends it after a second.
const TIMEOUT: Duration = Duration::from_millis(2500);

/// A connection that the scratch pod's rules must redirect to a port of the proxy.
struct RedirectedConnection<'s> {
    direction: &'static str,
    from_netns: &'s File,
    to: SocketAddr,
    proxy_port: u16,
}

/// Opens a connection in each direction and address family that has to be redirected. Returns their
/// names for the log, or describes the first connection that does not reach the proxy's port.
pub fn test_connections(scratch: &ScratchPod, redirect: &Redirect) -> Result<Vec<String>, String> {
    let uid = geteuid().as_raw();
    let gid = getegid().as_raw();
    let mut redirected = Vec::new();
    for &[pod, neighbour] in scratch.addresses {
        let family = if pod.is_ipv6() { "IPv6" } else { "IPv4" };
        if let Some(port) = outbound_port(redirect, uid, gid, neighbour) {
            let outbound = RedirectedConnection {
                direction: "outbound",
                from_netns: &scratch.pod,
                to: SocketAddr::new(neighbour, port),
                proxy_port: redirect.outbound_port,
            };
            outbound.test(scratch)?;
            redirected.push(format!("{family} outbound"));
        }
        if let Some(port) = inbound_port(redirect, neighbour) {
            let inbound = RedirectedConnection {
                direction: "inbound",
                from_netns: &scratch.neighbour,
                to: SocketAddr::new(pod, port),
                proxy_port: redirect.inbound_port,
            };
            inbound.test(scratch)?;
            redirected.push(format!("{family} inbound"));
        }
    }
    Ok(redirected)
}

impl RedirectedConnection<'_> {
    /// Opens the connection while the proxy's port listens in the scratch pod. No other port listens
    /// in the two netns, so a connection that is accepted has reached that port.
    fn test(&self, scratch: &ScratchPod) -> Result<(), String> {
        let RedirectedConnection { direction, from_netns, to, proxy_port } = *self;
        let _listener = inside(&scratch.pod, move || listen(proxy_port))
            .map_err(|error| format!("cannot listen on port {proxy_port}: {error}"))?;
        inside(from_netns, move || TcpStream::connect_timeout(&to, TIMEOUT)).map_err(|error| {
            format!("{direction} TCP to {to} does not reach the proxy's port {proxy_port}: {error}")
        })?;
        Ok(())
    }
}

/// Listens on all addresses. If the kernel has no IPv6, listens on all IPv4 addresses.
fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}

/// Returns a port of `to` for which outbound connections of this UID and GID are redirected. `None`
/// if there is no such port, for example because the UID or GID is that of the proxy.
fn outbound_port(redirect: &Redirect, uid: u32, gid: u32, to: IpAddr) -> Option<u16> {
    if redirect.proxy_uid == Some(uid)
        || redirect.proxy_gid == Some(gid)
        || subnets_contain(&redirect.skip_outbound_subnets, to)
    {
        return None;
    }
    CANDIDATE_PORTS.into_iter().find(|port| !ranges_contain(&redirect.skip_outbound, *port))
}

/// Returns a port for which inbound connections from this address are redirected. `None` if there
/// is no such port.
fn inbound_port(redirect: &Redirect, from: IpAddr) -> Option<u16> {
    if subnets_contain(&redirect.skip_subnets, from) {
        return None;
    }
    let mut candidates = redirect.ports_to_redirect.as_slice();
    if candidates.is_empty() {
        candidates = &CANDIDATE_PORTS;
    }
    let proxy_ports = [redirect.inbound_port, redirect.outbound_port];
    let is_redirected =
        |port: &u16| !proxy_ports.contains(port) && !ranges_contain(&redirect.skip_inbound, *port);
    candidates.iter().copied().find(is_redirected)
}

fn subnets_contain(subnets: &[Subnet], address: IpAddr) -> bool {
    subnets.iter().any(|subnet| subnet.net.contains(&address))
}

fn ranges_contain(ranges: &[PortRange], port: u16) -> bool {
    ranges.iter().any(|range| (range.first..=range.last).contains(&port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_opened_only_to_ports_that_are_redirected() {
        let range = |first, last| vec![PortRange { first, last }];
        let skips_ports = Redirect {
            skip_inbound: range(1, 443),
            skip_outbound: range(0, 65535),
            ..Redirect::example()
        };
        let redirects_listed_ports = Redirect {
            ports_to_redirect: vec![4143, 7000, 7001],
            skip_inbound: range(7000, 7000),
            proxy_gid: Some(0),
            ..Redirect::example()
        };
        let net = "192.0.2.0/24".parse().unwrap();
        let skips_neighbour_inbound = Redirect {
            skip_subnets: vec![Subnet { net, text: String::new() }],
            proxy_uid: Some(0),
            ..Redirect::example()
        };
        let skips_neighbour_outbound = Redirect {
            skip_outbound_subnets: skips_neighbour_inbound.skip_subnets.clone(),
            ..Redirect::example()
        };
        // The ports that are expected for an outbound and an inbound connection.
        for (redirect, outbound, inbound) in [
            (Redirect::example(), Some(80), Some(80)),
            (skips_ports, None, Some(8080)),
            (redirects_listed_ports, None, Some(7001)),
            (skips_neighbour_inbound, None, None),
            (skips_neighbour_outbound, None, Some(80)),
        ] {
            let neighbour = "192.0.2.2".parse().unwrap();
            let (uid, gid) = (0, 0);
            assert_eq!(outbound_port(&redirect, uid, gid, neighbour), outbound, "{redirect:?}");
            assert_eq!(inbound_port(&redirect, neighbour), inbound, "{redirect:?}");
        }
    }
}
