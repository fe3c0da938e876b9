//! Two network namespaces made for one trial, a pod's and its neighbour's, joined as
//! a pod is to its node. They go with this process, whatever becomes of it.

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
use super::target::{Target, Way};
use crate::netns::{self, link};

/// Addresses for documentation, which no cluster has.
const POD: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
const NEIGHBOUR: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
];
const PREFIXES: [u8; 2] = [24, 64];

/// For work inside a namespace that does not wait for the network.
const QUICK: Duration = Duration::from_secs(8);
/// For one connection over a link without delay. Its first packet may be lost while
/// the link comes up, and the next comes after a second.
const CONNECT: Duration = Duration::from_millis(2500);

/// Why there is no such place, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Namespace(#[from] netns::Error),
    #[error("cannot join two network namespaces: {}", .0.desc())]
    Link(#[from] Errno),
}

impl Error {
    /// Whether the agent lacks the right, which its chart may not have given it.
    pub fn is_forbidden(&self) -> bool {
        let forbidden = |errno: Errno| matches!(errno, Errno::EPERM | Errno::EACCES);
        match self {
            Error::Namespace(
                netns::Error::Make { source } | netns::Error::Enter { source, .. },
            ) => forbidden(*source),
            Error::Namespace(_) => false,
            Error::Link(errno) => forbidden(*errno),
        }
    }
}

pub struct Scratch {
    pod: File,
    neighbour: File,
    /// What pod and neighbour are reached by, a pair for each address family.
    addresses: Vec<(IpAddr, IpAddr)>,
}

impl Scratch {
    /// Makes both, with IPv6 if it is wanted and the kernel has it. Without `veth` in
    /// the kernel they have no addresses.
    pub fn make(ipv6: bool) -> Result<Scratch, Error> {
        let mut scratch = Scratch {
            pod: netns::fresh()?,
            neighbour: netns::fresh()?,
            addresses: Vec::new(),
        };
        let other = scratch
            .neighbour
            .try_clone()
            .map_err(|source| netns::Error::Open {
                path: here(&scratch.neighbour),
                source,
            })?;
        let joined = scratch.inside(&scratch.pod, move || {
            link::up("lo")?;
            link::pair(INTERFACE, &other)
        })?;
        match joined {
            Err(Errno::EOPNOTSUPP) => return Ok(scratch),
            joined => joined?,
        }
        let families = if ipv6 { 0..2 } else { 0..1 };
        for family in families {
            let (pod, neighbour) = (POD[family], NEIGHBOUR[family]);
            let mut given = scratch.join(&scratch.pod, pod, PREFIXES[family]);
            if given.is_ok() {
                given = scratch.join(&scratch.neighbour, neighbour, PREFIXES[family]);
            }
            match given {
                Ok(()) => scratch.addresses.push((pod, neighbour)),
                // Off in the kernel or for new namespaces.
                Err(Error::Link(_)) if pod.is_ipv6() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(scratch)
    }

    fn join(&self, namespace: &File, address: IpAddr, prefix: u8) -> Result<(), Error> {
        let given = self.inside(namespace, move || {
            link::up(INTERFACE)?;
            link::address(INTERFACE, address, prefix)
        })?;
        Ok(given?)
    }

    /// The pod's namespace for another process.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.pod.as_raw_fd())
    }

    /// The pod's addresses with their prefixes, as a plugin that gave them would say.
    pub fn pod_addresses(&self) -> Vec<String> {
        let prefix = |address: IpAddr| PREFIXES[usize::from(address.is_ipv6())];
        let pods = self.addresses.iter();
        pods.map(|(pod, _)| format!("{pod}/{}", prefix(*pod)))
            .collect()
    }

    /// What pod and neighbour are reached by.
    pub fn addresses(&self) -> &[(IpAddr, IpAddr)] {
        &self.addresses
    }

    /// Listens where the pod's proxy would.
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

    /// Connects, and has to come out at the proxy, who has to be told where to.
    pub fn prove(&self, target: &Target, proxy: &TcpListener) -> Result<(), String> {
        let what = format!("{} TCP to {}", target.way.name(), target.to);
        let from = match target.way {
            Way::Out => &self.pod,
            Way::In => &self.neighbour,
        };
        let to = target.to;
        let connected = self
            .inside(from, move || TcpStream::connect_timeout(&to, CONNECT))
            .map_err(|error| error.to_string())?;
        let wanted = format!("does not reach the proxy's port {}", target.proxy);
        let _client = connected.map_err(|error| format!("{what} {wanted}: {error}"))?;
        let accepted = accept(proxy).map_err(|error| format!("{what} {wanted}: {error}"))?;
        match original(&accepted) {
            Ok(original) if original == to => Ok(()),
            Ok(original) => Err(format!("{what} is seen as meant for {original}")),
            Err(errno) => Err(format!(
                "{what} does not say where it was meant to go: {}",
                errno.desc()
            )),
        }
    }

    fn inside<T: Send + 'static>(
        &self,
        namespace: &File,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, netns::Error> {
        netns::run(&here(namespace), QUICK, work)
    }
}

/// An open namespace for a thread of this process.
fn here(namespace: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", namespace.as_raw_fd()))
}

fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(CONNECT).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(0) => Err(io::Error::other("somebody else took it")),
        Ok(_) => listener.accept().map(|(stream, _)| stream),
        Err(errno) => Err(errno.into()),
    }
}

/// Where the client meant to go, as the proxy asks for it.
fn original(stream: &TcpStream) -> Result<SocketAddr, Errno> {
    let local = stream
        .local_addr()
        .map(|address| address.ip().to_canonical());
    if local.is_ok_and(|address| address.is_ipv6()) {
        let found = getsockopt(stream, sockopt::Ip6tOriginalDst)?;
        let address = Ipv6Addr::from(found.sin6_addr.s6_addr);
        return Ok((address, u16::from_be(found.sin6_port)).into());
    }
    let found = getsockopt(stream, sockopt::OriginalDst)?;
    let address = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
    Ok((address, u16::from_be(found.sin_port)).into())
}
