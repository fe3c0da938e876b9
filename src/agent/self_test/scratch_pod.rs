//! Creates the scratch pod of a self-test: two netns that a veth pair connects, one for the pod
//! and one for a neighbour that it talks to.
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
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

use super::INTERFACE;
use super::connections::{Direction, TestConnection};
use crate::netns::{self, link};

/// The pod's addresses, IPv4 and IPv6. They are reserved for documentation (RFC 5737, RFC 3849),
/// so no cluster uses them.
const POD: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
/// The neighbour's addresses, from the same subnets.
const NEIGHBOUR: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
];
/// Prefix lengths of these addresses, for IPv4 and IPv6.
const PREFIXES: [u8; 2] = [24, 64];

/// Time-out of work inside a netns.
const NETNS_TIMEOUT: Duration = Duration::from_secs(8);
/// Time-out of one connection. Its first SYN may be lost while the link comes up, and the kernel
/// resends it after a second.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(2500);

/// Why the scratch pod cannot be created.
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
        let forbidden = |errno: Errno| matches!(errno, Errno::EPERM | Errno::EACCES);
        match self {
            Error::Netns(netns::Error::Create { source } | netns::Error::Enter { source, .. }) => {
                forbidden(*source)
            }
            Error::Netns(_) => false,
            Error::Link(errno) => forbidden(*errno),
        }
    }
}

/// The netns of the scratch pod and of its neighbour.
pub struct ScratchPod {
    pod: File,
    neighbour: File,
    /// Addresses of pod and neighbour, a pair for each address family.
    addresses: Vec<(IpAddr, IpAddr)>,
}

impl ScratchPod {
    /// Creates both netns, and connects them with IPv4, and with `ipv6` if the kernel supports
    /// it. Without `veth` support in the kernel they stay unconnected and have no addresses.
    pub fn create(ipv6: bool) -> Result<ScratchPod, Error> {
        let mut scratch =
            ScratchPod { pod: netns::fresh()?, neighbour: netns::fresh()?, addresses: Vec::new() };
        let other = scratch
            .neighbour
            .try_clone()
            .map_err(|source| netns::Error::Open { path: path_here(&scratch.neighbour), source })?;
        let joined = scratch.inside(&scratch.pod, move || {
            link::set_up("lo")?;
            link::create_veth_pair(INTERFACE, &other)
        })?;
        match joined {
            Err(Errno::EOPNOTSUPP) => return Ok(scratch),
            joined => joined?,
        }
        let families = if ipv6 { 0..2 } else { 0..1 };
        for family in families {
            let (pod, neighbour) = (POD[family], NEIGHBOUR[family]);
            let mut added = scratch.add_address(&scratch.pod, pod, PREFIXES[family]);
            if added.is_ok() {
                added = scratch.add_address(&scratch.neighbour, neighbour, PREFIXES[family]);
            }
            match added {
                Ok(()) => scratch.addresses.push((pod, neighbour)),
                // IPv6 is disabled in the kernel or in new netns.
                Err(Error::Link(_)) if pod.is_ipv6() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(scratch)
    }

    /// Adds an address to the veth interface in `netns`.
    fn add_address(&self, netns: &File, address: IpAddr, prefix: u8) -> Result<(), Error> {
        let added = self.inside(netns, move || {
            link::set_up(INTERFACE)?;
            link::add_address(INTERFACE, address, prefix)
        })?;
        Ok(added?)
    }

    /// Path of the pod's netns for another process.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.pod.as_raw_fd())
    }

    /// The pod's addresses with their prefix lengths, as in a CNI result.
    pub fn pod_addresses(&self) -> Vec<String> {
        let prefix = |address: IpAddr| PREFIXES[usize::from(address.is_ipv6())];
        let pods = self.addresses.iter();
        pods.map(|(pod, _)| format!("{pod}/{}", prefix(*pod))).collect()
    }

    /// Addresses of pod and neighbour, a pair for each address family.
    pub fn addresses(&self) -> &[(IpAddr, IpAddr)] {
        &self.addresses
    }

    /// Listens on `port` of the pod, in place of the proxy.
    pub fn listen(&self, port: u16) -> Result<TcpListener, String> {
        let bound = self.inside(&self.pod, move || {
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        });
        match bound {
            Ok(Ok(listener)) => Ok(listener),
            Ok(Err(error)) => Err(format!("cannot listen on port {port}: {error}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Opens the connection `connection`. It has to reach `proxy`, and the kernel has to know its
    /// original destination (`SO_ORIGINAL_DST`). The error says what went wrong.
    pub fn expect_redirect(
        &self,
        connection: &TestConnection,
        proxy: &TcpListener,
    ) -> Result<(), String> {
        let what = format!("{} TCP to {}", connection.direction.name(), connection.to);
        let from = match connection.direction {
            Direction::Outbound => &self.pod,
            Direction::Inbound => &self.neighbour,
        };
        let to = connection.to;
        let connected = self
            .inside(from, move || TcpStream::connect_timeout(&to, CONNECT_TIMEOUT))
            .map_err(|error| error.to_string())?;
        let missed = format!("does not reach the proxy's port {}", connection.proxy);
        let _client = connected.map_err(|error| format!("{what} {missed}: {error}"))?;
        let accepted = accept(proxy).map_err(|error| format!("{what} {missed}: {error}"))?;
        match original_destination(&accepted) {
            Ok(original) if original == to => Ok(()),
            Ok(original) => Err(format!("{what} has the wrong original destination {original}")),
            Err(errno) => Err(format!("{what} has no original destination: {}", errno.desc())),
        }
    }

    /// Runs `work` on a thread inside `netns`.
    fn inside<T: Send + 'static>(
        &self,
        netns: &File,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, netns::Error> {
        netns::run(&path_here(netns), NETNS_TIMEOUT, work)
    }
}

/// Path of an open netns for a thread of this process.
fn path_here(netns: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", netns.as_raw_fd()))
}

/// Accepts a connection within [`CONNECT_TIMEOUT`].
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(CONNECT_TIMEOUT).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(0) => Err(io::Error::other("the connection reached another port")),
        Ok(_) => listener.accept().map(|(stream, _)| stream),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads where the client meant to connect to, with the socket option that the proxy uses.
fn original_destination(stream: &TcpStream) -> Result<SocketAddr, Errno> {
    let local = stream.local_addr().map(|address| address.ip().to_canonical());
    if local.is_ok_and(|address| address.is_ipv6()) {
        let found = getsockopt(stream, sockopt::Ip6tOriginalDst)?;
        let address = Ipv6Addr::from(found.sin6_addr.s6_addr);
        return Ok((address, u16::from_be(found.sin6_port)).into());
    }
    let found = getsockopt(stream, sockopt::OriginalDst)?;
    let address = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
    Ok((address, u16::from_be(found.sin_port)).into())
}
