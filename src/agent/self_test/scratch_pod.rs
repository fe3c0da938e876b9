//! Creates the scratch pod of a self-test: two netns that a veth pair connects, one for the pod
//! and one for a neighbour that it talks to. Opens connections between them that the pod's rules redirect.
//!
//! Only open files keep these netns alive, so the kernel removes them when the agent exits, also
//! if it is killed.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};

use super::INTERFACE;
use crate::deadline::Deadline;
use crate::netns::{self, link};
use crate::redirect::ports::PortRange;
use crate::redirect::{Redirect, Subnet};

/// Addresses of pod and neighbour in one subnet.
struct Addresses {
    pod: IpAddr,
    neighbour: IpAddr,
    prefix: u8,
}

/// The addresses, IPv4 and IPv6. They are reserved for documentation (RFC 5737, RFC 3849), so no
/// cluster uses them.
const ADDRESSES: [Addresses; 2] = [
    Addresses {
        pod: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        neighbour: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
        prefix: 24,
    },
    Addresses {
        pod: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        neighbour: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
        prefix: 64,
    },
];
/// Candidate ports. If the config skips all of them, the direction is not tested: such a config
/// redirects hardly any port.
const PORTS: [u16; 8] = [80, 443, 8080, 9090, 3000, 5000, 50051, 1];
/// Time-out of work inside a netns.
const NETNS_TIMEOUT: Duration = Duration::from_secs(8);
/// Time-out of one connection. Its first SYN may be lost while the link comes up, and the kernel
/// resends it after a second.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(2500);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Netns(#[from] netns::Error),
    #[error("cannot connect the self-test's network namespaces: {}", .0.desc())]
    Link(#[from] Errno),
}

impl Error {
    /// Whether the agent's container lacks a capability, which its chart may not grant.
    pub fn is_forbidden(&self) -> bool {
        let (Error::Netns(netns::Error::Create { source } | netns::Error::Enter { source, .. })
        | Error::Link(source)) = self
        else {
            return false;
        };
        matches!(source, Errno::EPERM | Errno::EACCES)
    }
}

pub struct ScratchPod {
    pod: File,
    neighbour: File,
    /// In each address family that connects them.
    addresses: &'static [Addresses],
}

impl ScratchPod {
    /// Creates both netns, and connects them with IPv4, and with `ipv6` if the kernel supports
    /// it. Without `veth` support in the kernel they stay unconnected and have no addresses.
    pub fn create(ipv6: bool) -> Result<ScratchPod, Error> {
        let (pod, neighbour) = (netns::fresh()?, netns::fresh()?);
        let mut scratch = ScratchPod { pod, neighbour, addresses: &[] };
        let other = scratch
            .neighbour
            .try_clone()
            .map_err(|source| netns::Error::Open { path: path_here(&scratch.neighbour), source })?;
        let joined = inside(&scratch.pod, move || {
            link::set_up("lo")?;
            link::create_veth_pair(INTERFACE, &other)
        })?;
        match joined {
            Err(Errno::EOPNOTSUPP) => return Ok(scratch),
            joined => joined?,
        }
        for (index, Addresses { pod, neighbour, prefix }) in ADDRESSES.iter().enumerate() {
            if pod.is_ipv6() && !ipv6 {
                break;
            }
            let added = add_address(&scratch.pod, *pod, *prefix)
                .and_then(|()| add_address(&scratch.neighbour, *neighbour, *prefix));
            match added {
                Ok(()) => scratch.addresses = &ADDRESSES[..=index],
                // IPv6 is disabled in the kernel or in new netns.
                Err(Error::Link(_)) if pod.is_ipv6() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(scratch)
    }

    /// Path of the pod's netns for another process.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.pod.as_raw_fd())
    }

    /// Listens on `port` of the pod, in place of the proxy.
    fn listen(&self, port: u16) -> Result<TcpListener, String> {
        let bound = inside(&self.pod, move || {
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        });
        bound
            .map_err(|error| error.to_string())?
            .map_err(|error| format!("cannot listen on port {port}: {error}"))
    }
}

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

/// Opens a connection from the netns `from` to the address `to`. It has to reach `proxy`, the listener
/// on `proxy_port`. The error says what went wrong.
fn expect_redirect(
    direction: &str,
    from: &File,
    to: SocketAddr,
    proxy: &TcpListener,
    proxy_port: u16,
) -> Result<(), String> {
    let connected = inside(from, move || TcpStream::connect_timeout(&to, CONNECT_TIMEOUT));
    let missed = |error| {
        format!("{direction} TCP to {to} does not reach the proxy's port {proxy_port}: {error}")
    };
    let _client = connected.map_err(|error| error.to_string())?.map_err(missed)?;
    accept(proxy).map_err(missed)
}

fn add_address(netns: &File, address: IpAddr, prefix: u8) -> Result<(), Error> {
    let added = inside(netns, move || {
        link::set_up(INTERFACE)?;
        link::add_address(INTERFACE, address, prefix)
    })?;
    Ok(added?)
}

fn inside<T: Send + 'static>(
    netns: &File,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, netns::Error> {
    netns::run(&path_here(netns), NETNS_TIMEOUT, work)
}

/// Path of an open netns for a thread of this process.
fn path_here(netns: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", netns.as_raw_fd()))
}

fn accept(listener: &TcpListener) -> io::Result<()> {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    match Deadline::after(CONNECT_TIMEOUT).poll(&mut fds) {
        Ok(()) => listener.accept().map(drop),
        Err(Errno::ETIMEDOUT) => Err(io::Error::other("the connection reached another port")),
        Err(errno) => Err(errno.into()),
    }
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
