//! Creates the scratch pod of a self-test: two netns that a veth pair connects, one for the pod
//! and one for its neighbour.
//!
//! Only open files keep these netns alive, so the kernel removes them when the agent exits, also
//! if it is killed.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;

use super::INTERFACE;
use crate::netns::{self, link};

/// Addresses of pod and neighbour, IPv4 and IPv6. They are reserved for documentation (RFC 5737,
/// RFC 3849), so no cluster uses them.
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
    /// Whether the agent's container lacks a capability, which its chart may not grant.
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
    /// Creates both netns, and connects them with IPv4, and with `ipv6` if the kernel supports
    /// IPv6. Without `veth` support in the kernel they stay unconnected and have no addresses.
    pub fn create(ipv6: bool) -> Result<ScratchPod, Error> {
        let (pod, neighbour) = (netns::create()?, netns::create()?);
        let mut scratch = ScratchPod { pod, neighbour, addresses: &[] };
        let other = scratch.neighbour.try_clone()?;
        let joined = inside(&scratch.pod, move || {
            link::set_up("lo")?;
            link::create_veth_pair(INTERFACE, &other)
        });
        match joined {
            Err(Error::Link(Errno::EOPNOTSUPP)) => return Ok(scratch),
            joined => joined?,
        }
        let families = if ipv6 { 1..=2 } else { 1..=1 };
        for (count, [pod, neighbour]) in families.zip(ADDRESSES) {
            let added = add_address(&scratch.pod, pod)
                .and_then(|()| add_address(&scratch.neighbour, neighbour));
            match added {
                Ok(()) => scratch.addresses = &ADDRESSES[..count],
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
}

fn add_address(netns: &File, address: IpAddr) -> Result<(), Error> {
    inside(netns, move || {
        link::set_up(INTERFACE)?;
        link::add_address(INTERFACE, address, PREFIX)
    })
}

/// Runs `work` inside an open netns, on a thread of its own.
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
