//! Creates interfaces and adds addresses in the calling thread's netns over rtnetlink
//! (`linux/rtnetlink.h`). The agent's image has no `ip` program.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use crate::netlink::attribute::Attributes;

/// Timeout for the kernel's response, in seconds. It may have to load a module first.
const RESPONSE_SECONDS: i64 = 5;

const NEW_LINK: u16 = libc::RTM_NEWLINK;
const NEW_ADDRESS: u16 = libc::RTM_NEWADDR;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
/// Size of `struct nlmsghdr`, in bytes.
const HEADER: usize = 16;

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const ACK: u16 = libc::NLM_F_ACK as u16;
/// Create the object and fail if it exists.
const NEW: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;

const UP: u32 = libc::IFF_UP as u32;
/// Skip duplicate address detection, so that the IPv6 address is usable at once.
const NO_DAD: u8 = libc::IFA_F_NODAD as u8;

/// Attribute types of `linux/if_link.h` and `linux/veth.h`, which libc lacks, without their prefix
/// `IFLA_`.
mod ifla {
    pub const IFNAME: u16 = 3;
    pub const LINKINFO: u16 = 18;
    pub const NET_NS_FD: u16 = 28;
    pub const INFO_KIND: u16 = 1;
    pub const INFO_DATA: u16 = 2;
    /// `VETH_INFO_PEER`.
    pub const VETH_PEER: u16 = 1;
}

/// Creates a veth pair: two connected interfaces called `name`, one in this netns and one in `other`.
///
/// # Errors
/// Returns the kernel's error, such as `EEXIST`.
pub fn pair(name: &str, other: impl AsFd) -> Result<(), Errno> {
    let other = other.as_fd().as_raw_fd();
    let mut peer = Attributes(interface(0, 0).to_vec());
    peer = peer.text(ifla::IFNAME, name).bytes(ifla::NET_NS_FD, &other.to_ne_bytes());
    let data = Attributes::default().nested(ifla::VETH_PEER, peer);
    let info = Attributes::default().text(ifla::INFO_KIND, "veth").nested(ifla::INFO_DATA, data);
    let attributes = Attributes::default().text(ifla::IFNAME, name).nested(ifla::LINKINFO, info);
    request(NEW_LINK, NEW, &interface(0, 0), &attributes)
}

/// Sets the interface `name` up.
pub fn up(name: &str) -> Result<(), Errno> {
    let none = Attributes::default();
    request(NEW_LINK, 0, &interface(if_nametoindex(name)?, UP), &none)
}

/// Adds an address to the interface `name`. The kernel routes its subnet to the interface.
pub fn address(name: &str, address: IpAddr, prefix: u8) -> Result<(), Errno> {
    let (family, bytes, flags) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, address.octets().to_vec(), 0),
        IpAddr::V6(address) => (AddressFamily::Inet6, address.octets().to_vec(), NO_DAD),
    };
    let mut header = vec![family as u8, prefix, flags, 0];
    header.extend_from_slice(&if_nametoindex(name)?.to_ne_bytes());
    let attributes =
        Attributes::default().bytes(libc::IFA_LOCAL, &bytes).bytes(libc::IFA_ADDRESS, &bytes);
    request(NEW_ADDRESS, NEW, &header, &attributes)
}

/// Encodes `struct ifinfomsg` for the interface `index`, with `flags` to set.
fn interface(index: u32, flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// Sends one request and waits for the kernel's response.
fn request(kind: u16, flags: u16, header: &[u8], attributes: &Attributes) -> Result<(), Errno> {
    let length = (HEADER + header.len() + attributes.0.len()) as u32;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(REQUEST | ACK | flags).to_ne_bytes());
    // Sequence number and the sender's port ID, which the kernel fills in.
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(header);
    message.extend_from_slice(&attributes.0);
    let socket = open()?;
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut response = [0; 1024];
    let length = loop {
        match recv(socket.as_raw_fd(), &mut response, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            // The receive timed out.
            Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
            length => break length?,
        }
    };
    match response[..length] {
        [_, _, _, _, k0, k1, ..] if u16::from_ne_bytes([k0, k1]) != ERROR => Err(Errno::EPROTO),
        _ => match response.get(HEADER..HEADER + 4) {
            Some(&[a, b, c, d]) if length >= HEADER + 4 => match i32::from_ne_bytes([a, b, c, d]) {
                0 => Ok(()),
                code => Err(Errno::from_raw(-code)),
            },
            _ => Err(Errno::EPROTO),
        },
    }
}

/// Opens a netlink socket whose receives time out after [`RESPONSE_SECONDS`].
fn open() -> Result<OwnedFd, Errno> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    let timeout = TimeVal::new(RESPONSE_SECONDS, 0);
    setsockopt(&socket, sockopt::ReceiveTimeout, &timeout)?;
    Ok(socket)
}
