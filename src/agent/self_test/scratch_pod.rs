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
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{getsockopt, sockopt};

use super::INTERFACE;
use crate::deadline::Deadline;
use crate::netns::{self, link};

/// Addresses of pod and neighbour in one subnet.
pub struct Addresses {
    pub pod: IpAddr,
    pub neighbour: IpAddr,
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

/// The netns of the scratch pod and of its neighbour.
pub struct ScratchPod {
    pub pod: File,
    pub neighbour: File,
    /// In each address family that connects them.
    pub addresses: &'static [Addresses],
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
    pub fn listen(&self, port: u16) -> Result<TcpListener, String> {
        let bound = inside(&self.pod, move || {
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        });
        bound
            .map_err(|error| error.to_string())?
            .map_err(|error| format!("cannot listen on port {port}: {error}"))
    }
}

/// Opens a connection from the netns `from` to the address `to`. It has to reach `proxy`, the listener
/// on `proxy_port`, and the kernel has to know its original destination (`SO_ORIGINAL_DST`). The error
/// says what went wrong.
pub fn expect_redirect(
    direction: &str,
    from: &File,
    to: SocketAddr,
    proxy: &TcpListener,
    proxy_port: u16,
) -> Result<(), String> {
    let connected = inside(from, move || TcpStream::connect_timeout(&to, CONNECT_TIMEOUT));
    let connected = connected.map_err(|error| error.to_string())?;
    let missed = |error| {
        format!("{direction} TCP to {to} does not reach the proxy's port {proxy_port}: {error}")
    };
    let _client = connected.map_err(missed)?;
    let accepted = accept(proxy).map_err(missed)?;
    let why = match original_destination(&accepted) {
        Ok(original) if original == to => return Ok(()),
        Ok(original) => format!("the wrong original destination {original}"),
        Err(errno) => format!("no original destination: {}", errno.desc()),
    };
    Err(format!("{direction} TCP to {to} has {why}"))
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

fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    match Deadline::after(CONNECT_TIMEOUT).poll(&mut fds) {
        Ok(()) => Ok(listener.accept()?.0),
        Err(Errno::ETIMEDOUT) => Err(io::Error::other("the connection reached another port")),
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
