//! Creates the scratch pod of a self-test: two netns that a veth pair connects, one for the pod
//! and one for its neighbour.
//!
//! These netns exist only as long as the agent or a plugin that it calls has them open. So the
//! kernel removes them when the agent exits, even if it is killed.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::INTERFACE;
use crate::netns::{self, link};

/// Addresses of pod and neighbour, first for IPv4, then for IPv6. They are reserved for
/// documentation (RFC 5737, RFC 3849), so no cluster uses them.
const ADDRESSES: [[IpAddr; 2]; 2] = [
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2))],
    [
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
    ],
];
/// Length of the prefix that both addresses of a family have in common.
const PREFIX: u8 = 24;
/// Time-out of work inside a netns.
const NETNS_TIMEOUT: Duration = Duration::from_secs(8);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Netns(#[from] netns::Error),
    #[error("cannot connect the self-test's network namespaces: {}", .0.desc())]
    Link(#[from] Errno),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Error {
    /// Returns whether the agent's container lacks a capability, because its chart does not grant
    /// it.
    pub fn is_forbidden(&self) -> bool {
        match self {
            Error::Netns(netns::Error::Create { source } | netns::Error::Enter { source, .. })
            | Error::Link(source) => matches!(source, Errno::EPERM | Errno::EACCES),
            _ => false,
        }
    }
}

pub struct ScratchPod {
    pub pod: File,
    pub neighbour: File,
    /// Addresses of pod and neighbour in each usable address family.
    pub addresses: &'static [[IpAddr; 2]],
}

impl ScratchPod {
    /// Creates both netns, and connects them with IPv4. If `needs_ipv6` and the kernel supports
    /// IPv6, connects them with IPv6, too. If the kernel does not support `veth`, the netns stay
    /// unconnected and have no addresses.
    pub fn create(needs_ipv6: bool) -> Result<ScratchPod, Error> {
        let pod = netns::create()?;
        pass_to_children(&pod)?;
        let neighbour = netns::create()?;
        let mut scratch = ScratchPod { pod, neighbour, addresses: &[] };
        let neighbour_netns = scratch.neighbour.try_clone()?;
        let connected = inside(&scratch.pod, move || {
            link::set_up("lo")?;
            link::create_veth_pair(INTERFACE, &neighbour_netns)
        });
        match connected {
            Err(Error::Link(Errno::EOPNOTSUPP)) => return Ok(scratch),
            connected => connected?,
        }
        let [ipv4, ipv6] = ADDRESSES;
        scratch.add_addresses(ipv4)?;
        scratch.addresses = &ADDRESSES[..1];
        if needs_ipv6 {
            match scratch.add_addresses(ipv6) {
                Ok(()) => scratch.addresses = &ADDRESSES,
                // IPv6 is disabled in the kernel or in new netns, so only IPv4 is tested.
                Err(Error::Link(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(scratch)
    }

    fn add_addresses(&self, [pod, neighbour]: [IpAddr; 2]) -> Result<(), Error> {
        add_address(&self.pod, pod)?;
        add_address(&self.neighbour, neighbour)
    }

    /// Returns the path under which a child of this process finds the pod's netns: its own
    /// descriptor, see [`pass_to_children`].
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.pod.as_raw_fd())
    }
}

/// Lets the processes that this one starts inherit the descriptor. They could also open
/// `/proc/PID/fd` of this process, but the kernel asks for ptrace rights there. The profile of
/// CRI-O denies these between processes of a container, on a node whose `/etc/apparmor.d` has no
/// `abstractions/base`
/// (<https://github.com/containers/container-libs/blob/main/common/pkg/apparmor/apparmor_linux_template.go>).
fn pass_to_children(file: &File) -> io::Result<()> {
    fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(())
}

fn add_address(netns: &File, address: IpAddr) -> Result<(), Error> {
    inside(netns, move || {
        link::set_up(INTERFACE)?;
        link::add_address(INTERFACE, address, PREFIX)
    })
}

/// Runs `work` on a new thread inside an open netns.
pub fn inside<T: Send + 'static, E: Send + 'static>(
    netns: &File,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Error>
where
    Error: From<E>,
{
    let path = PathBuf::from(format!("/proc/self/fd/{}", netns.as_raw_fd()));
    Ok(netns::run(&path, NETNS_TIMEOUT, work)??)
}
