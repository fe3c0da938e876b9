//! Opens the connections of a self-test, to ports that the pod's redirect rules redirect.

use std::net::{IpAddr, SocketAddr};

use super::scratch_pod::{Addresses, ScratchPod, expect_redirect};
use crate::redirect::ports::PortRange;
use crate::redirect::{Redirect, Subnet};

/// Candidate ports. If the config skips all of them, the direction is not tested: such a config
/// redirects hardly any port.
const PORTS: [u16; 8] = [80, 443, 8080, 9090, 3000, 5000, 50051, 1];

/// Opens a connection in each direction and address family that has to be redirected. Returns their
/// names for the log, or describes the first one that does not reach the proxy's port.
pub fn connect(scratch: &ScratchPod, redirect: &Redirect) -> Result<Vec<String>, String> {
    let user = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let mut redirected = Vec::new();
    for &Addresses { pod, neighbour, .. } in scratch.addresses {
        let outbound = outbound(redirect, user, neighbour);
        let inbound = inbound(redirect, neighbour);
        for (direction, from, to, port, proxy) in [
            ("outbound", &scratch.pod, neighbour, outbound, redirect.outbound_port),
            ("inbound", &scratch.neighbour, pod, inbound, redirect.inbound_port),
        ] {
            let Some(port) = port else { continue };
            let listener = scratch.listen(proxy)?;
            expect_redirect(direction, from, SocketAddr::new(to, port), &listener, proxy)?;
            let family = if pod.is_ipv6() { "IPv6" } else { "IPv4" };
            redirected.push(format!("{family} {direction}"));
        }
    }
    Ok(redirected)
}

/// Returns a port of `to` to which outbound connections of this UID and GID are redirected: the proxy's
/// own connections are not.
fn outbound(redirect: &Redirect, (uid, gid): (u32, u32), to: IpAddr) -> Option<u16> {
    let is_skipped = has(&redirect.skip_outbound_subnets, to);
    if is_skipped || redirect.proxy_uid == Some(uid) || redirect.proxy_gid == Some(gid) {
        return None;
    }
    PORTS.into_iter().find(|&port| !is_in(&redirect.skip_outbound, port))
}

/// Returns a port on which inbound connections from this address are redirected.
fn inbound(redirect: &Redirect, from: IpAddr) -> Option<u16> {
    if has(&redirect.skip_subnets, from) {
        return None;
    }
    let proxy_ports = [redirect.inbound_port, redirect.outbound_port];
    let candidates = match redirect.ports_to_redirect.as_slice() {
        [] => &PORTS[..],
        ports => ports,
    };
    let mut candidates = candidates.iter().copied();
    candidates.find(|port| !proxy_ports.contains(port) && !is_in(&redirect.skip_inbound, *port))
}

fn has(subnets: &[Subnet], address: IpAddr) -> bool {
    subnets.iter().any(|subnet| subnet.net.contains(&address))
}

fn is_in(ranges: &[PortRange], port: u16) -> bool {
    ranges.iter().any(|range| (range.first..=range.last).contains(&port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_opened_only_to_ports_that_are_redirected() {
        let range = |first, last| vec![PortRange { first, last }];
        let skipped = Redirect {
            skip_inbound: range(1, 443),
            skip_outbound: range(0, 65535),
            ..Redirect::example()
        };
        let listed = Redirect {
            ports_to_redirect: vec![4143, 7000, 7001],
            skip_inbound: range(7000, 7000),
            proxy_gid: Some(0),
            ..Redirect::example()
        };
        let net = "192.0.2.0/24".parse().unwrap();
        let near = Redirect {
            skip_subnets: vec![Subnet { net, text: String::new() }],
            proxy_uid: Some(0),
            ..Redirect::example()
        };
        let to_near =
            Redirect { skip_outbound_subnets: near.skip_subnets.clone(), ..Redirect::example() };
        for (redirect, expected) in [
            (Redirect::example(), (Some(80), Some(80))),
            (skipped, (None, Some(8080))),
            (listed, (None, Some(7001))),
            (near, (None, None)),
            (to_near, (None, Some(80))),
        ] {
            let neighbour = "192.0.2.2".parse().unwrap();
            let outbound = outbound(&redirect, (0, 0), neighbour);
            let found = (outbound, inbound(&redirect, neighbour));
            assert_eq!(found, expected, "{redirect:?}");
        }
    }
}
