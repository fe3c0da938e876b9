//! Sends nf_tables and rtnetlink requests over a netlink socket in the calling thread's netns.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::attribute::{Attributes, padded};

/// Timeout for one response of the kernel, in seconds. It usually takes microseconds; replacing a
/// table waits some 25 ms for an RCU grace period, and creating a link may load a module.
const RESPONSE_SECONDS: i64 = 5;

const SUBSYSTEM: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;
const BATCH_BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
const BATCH_END: u16 = libc::NFNL_MSG_BATCH_END as u16;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const ACK: u16 = libc::NLM_F_ACK as u16;
const DUMP: u16 = libc::NLM_F_DUMP as u16;
/// Flag of a request that creates an object: fail if the object exists.
pub const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
/// Flag of a request that creates an object: create it if it is missing.
pub const CREATE: u16 = libc::NLM_F_CREATE as u16;
/// Flag of a request that creates a rule: add it at the end of its chain.
pub const APPEND: u16 = libc::NLM_F_APPEND as u16;

/// Size of `struct nlmsghdr`, in bytes.
const MESSAGE_HEADER: usize = 16;
/// Size of `struct nfgenmsg`, in bytes.
const FAMILY_HEADER: usize = 4;

/// Sends one rtnetlink request and waits for the kernel's response. `header` is the structure that
/// the message type `kind` has before its attributes.
///
/// # Errors
/// Returns the kernel's error, `ETIMEDOUT` without a response.
pub fn request_rtnetlink(
    kind: u16,
    flags: u16,
    header: &[u8],
    attributes: &Attributes,
) -> Result<(), Errno> {
    let socket = open(SockProtocol::NetlinkRoute)?;
    let mut request = Vec::new();
    append(&mut request, kind, REQUEST | ACK | flags, 1, header, attributes);
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    receive_result(&socket)
}

/// One request of an nf_tables transaction.
#[derive(Clone, Debug)]
pub struct Message {
    /// Message type within nf_tables, such as `NFT_MSG_NEWTABLE`.
    pub kind: u16,
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    pub flags: u16,
    pub attributes: Attributes,
}

/// Applies `messages` as one nf_tables transaction: all of them or none.
///
/// # Errors
/// Returns the kernel's error for the first message that fails, `ETIMEDOUT` without a response.
pub fn transact(messages: &[Message]) -> Result<(), Errno> {
    let socket = open(SockProtocol::NetlinkNetFilter)?;
    let mut batch = Vec::new();
    let none = Attributes::default();
    append(&mut batch, BATCH_BEGIN, REQUEST, 0, &family_header(0, SUBSYSTEM), &none);
    for (index, message) in messages.iter().enumerate() {
        // The kernel reports every error, but success only for messages with ACK.
        let last = index + 1 == messages.len();
        let flags = REQUEST | message.flags | if last { ACK } else { 0 };
        let kind = SUBSYSTEM << 8 | message.kind;
        let sequence = index as u32 + 1;
        let header = family_header(message.family, 0);
        append(&mut batch, kind, flags, sequence, &header, &message.attributes);
    }
    append(&mut batch, BATCH_END, REQUEST, 0, &family_header(0, SUBSYSTEM), &none);
    // The batch must fit the send buffer. The size limit of a pod's annotations bounds the batch.
    setsockopt(&socket, sockopt::SndBufForce, &(batch.len() * 2).max(1 << 18))?;
    send(socket.as_raw_fd(), &batch, MsgFlags::empty())?;
    receive_result(&socket)
}

/// Lists nf_tables objects of type `kind` and passes the attributes of each to `element`.
///
/// # Errors
/// Returns the kernel's error, `ETIMEDOUT` without a response.
pub fn dump(
    kind: u16,
    family: u8,
    attributes: &Attributes,
    element: &mut dyn FnMut(&[u8]),
) -> Result<(), Errno> {
    let socket = open(SockProtocol::NetlinkNetFilter)?;
    let mut request = Vec::new();
    let kind = SUBSYSTEM << 8 | kind;
    append(&mut request, kind, REQUEST | DUMP, 1, &family_header(family, 0), attributes);
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut end = None;
    while end.is_none() {
        receive(&socket, &mut |kind, payload| match kind {
            ERROR => end = Some(error_of(payload)),
            DONE => end = Some(Ok(())),
            _ => element(payload.get(FAMILY_HEADER..).unwrap_or_default()),
        })?;
    }
    end.unwrap_or(Ok(()))
}

/// Opens a netlink socket whose receives time out after [`RESPONSE_SECONDS`].
fn open(protocol: SockProtocol) -> Result<OwnedFd, Errno> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(RESPONSE_SECONDS, 0))?;
    Ok(socket)
}

/// Encodes `struct nfgenmsg`.
fn family_header(family: u8, resource: u16) -> [u8; FAMILY_HEADER] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// Appends a message: `struct nlmsghdr`, the `header` of the message type, attributes.
fn append(
    batch: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    header: &[u8],
    attributes: &Attributes,
) {
    let length = (MESSAGE_HEADER + header.len() + attributes.0.len()) as u32;
    batch.extend_from_slice(&length.to_ne_bytes());
    batch.extend_from_slice(&kind.to_ne_bytes());
    batch.extend_from_slice(&flags.to_ne_bytes());
    batch.extend_from_slice(&sequence.to_ne_bytes());
    // The sender's port ID: 0, the kernel fills it in.
    batch.extend_from_slice(&[0; 4]);
    batch.extend_from_slice(header);
    batch.extend_from_slice(&attributes.0);
}

/// Receives until the kernel acknowledges a request or reports an error.
fn receive_result(socket: &OwnedFd) -> Result<(), Errno> {
    let mut result = None;
    while result.is_none() {
        receive(socket, &mut |kind, payload| {
            if kind == ERROR {
                result = Some(error_of(payload));
            }
        })?;
    }
    result.unwrap_or(Ok(()))
}

/// Receives once and passes type and payload of each message to `each`.
fn receive(socket: &OwnedFd, each: &mut dyn FnMut(u16, &[u8])) -> Result<(), Errno> {
    let mut buffer = vec![0; 1 << 16];
    let length = match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
        Err(Errno::EINTR) => return Ok(()),
        // The receive timed out.
        Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
        length => length?,
    };
    let mut bytes = &buffer[..length];
    while let [l0, l1, l2, l3, k0, k1, ..] = *bytes {
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let Some(payload) = bytes.get(MESSAGE_HEADER..length) else {
            break;
        };
        each(u16::from_ne_bytes([k0, k1]), payload);
        bytes = bytes.get(padded(length)..).unwrap_or_default();
    }
    Ok(())
}

/// Decodes an error message. It starts with the negative errno; 0 means success.
fn error_of(payload: &[u8]) -> Result<(), Errno> {
    match payload {
        [a, b, c, d, ..] => match i32::from_ne_bytes([*a, *b, *c, *d]) {
            0 => Ok(()),
            code => Err(Errno::from_raw(-code)),
        },
        _ => Err(Errno::EBADMSG),
    }
}
