//! Interfaces and addresses, in the network namespace of the calling thread, over
//! rtnetlink (`linux/rtnetlink.h`): what `ip` would do, where there is no `ip`.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use crate::netlink::attribute::Attributes;

/// How long the kernel may take, in seconds; it may have to load a module first.
const ANSWER_SECONDS: i64 = 5;

const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const ERROR: u16 = 2;
const HEADER: usize = 16;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// It must not exist yet.
const NEW: u16 = 0x600;

const UP: u32 = 1;
/// An IPv6 address that can be used before anybody was asked whether it is taken.
const NO_DAD: u8 = 2;

mod attribute {
    pub const ADDRESS: u16 = 1;
    pub const LOCAL: u16 = 2;
    pub const NAME: u16 = 3;
    pub const INFO: u16 = 18;
    pub const KIND: u16 = 1;
    pub const DATA: u16 = 2;
    pub const PEER: u16 = 1;
    pub const NAMESPACE: u16 = 28;
}

/// Makes a pair of joined interfaces with this name, one here, one in `other`.
pub fn pair(name: &str, other: impl AsFd) -> Result<(), Errno> {
    let other = other.as_fd().as_raw_fd();
    let mut peer = Attributes(interface(0, 0).to_vec());
    peer = peer
        .text(attribute::NAME, name)
        .bytes(attribute::NAMESPACE, &other.to_ne_bytes());
    let data = Attributes::default().nested(attribute::PEER, peer);
    let info = Attributes::default()
        .text(attribute::KIND, "veth")
        .nested(attribute::DATA, data);
    let attributes = Attributes::default()
        .text(attribute::NAME, name)
        .nested(attribute::INFO, info);
    request(NEW_LINK, NEW, &interface(0, 0), &attributes)
}

/// Brings an interface up.
pub fn up(name: &str) -> Result<(), Errno> {
    let none = Attributes::default();
    request(NEW_LINK, 0, &interface(if_nametoindex(name)?, UP), &none)
}

/// Gives an interface an address; its subnet is then reached through it.
pub fn address(name: &str, address: IpAddr, prefix: u8) -> Result<(), Errno> {
    let (family, bytes, flags) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, address.octets().to_vec(), 0),
        IpAddr::V6(address) => (AddressFamily::Inet6, address.octets().to_vec(), NO_DAD),
    };
    let mut header = vec![family as u8, prefix, flags, 0];
    header.extend_from_slice(&if_nametoindex(name)?.to_ne_bytes());
    let attributes = Attributes::default()
        .bytes(attribute::LOCAL, &bytes)
        .bytes(attribute::ADDRESS, &bytes);
    request(NEW_ADDRESS, NEW, &header, &attributes)
}

/// `struct ifinfomsg`; `flags` are those to set.
fn interface(index: u32, flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn request(kind: u16, flags: u16, header: &[u8], attributes: &Attributes) -> Result<(), Errno> {
    let length = (HEADER + header.len() + attributes.0.len()) as u32;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(REQUEST | ACK | flags).to_ne_bytes());
    // Sequence, and the sender, which the kernel fills in.
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(header);
    message.extend_from_slice(&attributes.0);
    let socket = open()?;
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut answer = [0; 1024];
    let length = loop {
        match recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            // What the receive timeout says.
            Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
            length => break length?,
        }
    };
    match answer[..length] {
        [_, _, _, _, k0, k1, ..] if u16::from_ne_bytes([k0, k1]) != ERROR => Err(Errno::EPROTO),
        _ => match answer.get(HEADER..HEADER + 4) {
            Some(&[a, b, c, d]) if length >= HEADER + 4 => match i32::from_ne_bytes([a, b, c, d]) {
                0 => Ok(()),
                code => Err(Errno::from_raw(-code)),
            },
            _ => Err(Errno::EPROTO),
        },
    }
}

fn open() -> Result<OwnedFd, Errno> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    let patience = TimeVal::new(ANSWER_SECONDS, 0);
    setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
    Ok(socket)
}
