//! Creates interfaces, and adds and lists addresses, in the calling thread's netns. Uses rtnetlink
//! (`linux/rtnetlink.h`), because the agent's image does not contain the program `ip`.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;
use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::AddressFamily;

use crate::netlink::attribute::{Attributes, find};
use crate::netlink::socket::{ACK, CREATE, DUMP, EXCLUSIVE, request_rtnetlink};

/// Flags of a request that creates an object and fails if the object exists.
const NEW: u16 = ACK | CREATE | EXCLUSIVE;
const UP: u32 = libc::IFF_UP as u32;
/// Flag of an address: skip duplicate address detection, so that an IPv6 address is usable
/// immediately.
const NO_DAD: u8 = libc::IFA_F_NODAD as u8;

/// `VETH_INFO_PEER` of `linux/veth.h`.
const VETH_INFO_PEER: u16 = 1;

/// Creates a veth pair: two connected interfaces, one in this netns and one in `peer_netns`. Both
/// are called `name`. Fails with the kernel's error, such as `EEXIST`.
pub fn create_veth_pair(name: &str, peer_netns: impl AsFd) -> Result<(), Errno> {
    let peer_netns = peer_netns.as_fd().as_raw_fd();
    // The value starts with the peer's `struct ifinfomsg`. The peer's attributes follow.
    let peer = Attributes(interface_header(0, 0).to_vec())
        .text(libc::IFLA_IFNAME, name)
        .bytes(libc::IFLA_NET_NS_FD, &peer_netns.to_ne_bytes());
    let data = Attributes::default().nested(VETH_INFO_PEER, peer);
    let info =
        Attributes::default().text(libc::IFLA_INFO_KIND, "veth").nested(libc::IFLA_INFO_DATA, data);
    let attributes =
        Attributes::default().text(libc::IFLA_IFNAME, name).nested(libc::IFLA_LINKINFO, info);
    change(libc::RTM_NEWLINK, NEW, &interface_header(0, 0), &attributes)
}

/// Brings the interface `name` up.
pub fn set_up(name: &str) -> Result<(), Errno> {
    let header = interface_header(if_nametoindex(name)?, UP);
    change(libc::RTM_NEWLINK, ACK, &header, &Attributes::default())
}

/// Adds an address to the interface `name`. The kernel also adds a route for its subnet.
pub fn add_address(name: &str, address: IpAddr, prefix: u8) -> Result<(), Errno> {
    let (family, bytes, flags) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, address.octets().to_vec(), 0),
        IpAddr::V6(address) => (AddressFamily::Inet6, address.octets().to_vec(), NO_DAD),
    };
    let mut header = vec![family as u8, prefix, flags, 0];
    header.extend_from_slice(&if_nametoindex(name)?.to_ne_bytes());
    let attributes =
        Attributes::default().bytes(libc::IFA_LOCAL, &bytes).bytes(libc::IFA_ADDRESS, &bytes);
    change(libc::RTM_NEWADDR, NEW, &header, &attributes)
}

/// Lists all addresses. Fails with the kernel's error, or with `EFBIG` if there are too many.
pub fn addresses() -> Result<Vec<IpAddr>, Errno> {
    let mut addresses = Vec::new();
    // A zeroed `struct ifaddrmsg` selects the addresses of all families and interfaces.
    let header = [0; 8];
    let none = Attributes::default();
    request_rtnetlink(libc::RTM_GETADDR, DUMP, &header, &none, &mut |payload| {
        // Prefer IFA_LOCAL, because IFA_ADDRESS is the address of the peer if there is one.
        let bytes = find(payload, libc::IFA_LOCAL).or_else(|| find(payload, libc::IFA_ADDRESS));
        if let Some(address) = bytes.and_then(decode_address) {
            addresses.push(address);
        }
    })?;
    Ok(addresses)
}

fn decode_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(bytes.into());
    }
    let bytes = <[u8; 16]>::try_from(bytes).ok()?;
    Some(bytes.into())
}

/// Sends a request whose response contains no objects.
fn change(kind: u16, flags: u16, header: &[u8], attributes: &Attributes) -> Result<(), Errno> {
    request_rtnetlink(kind, flags, header, attributes, &mut |_| {})
}

/// Encodes a `struct ifinfomsg` that sets `flags` on the interface `index`.
fn interface_header(index: u32, flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}
