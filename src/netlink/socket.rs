//! A netlink socket to nf_tables in the calling thread's network namespace.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::attribute::{Attributes, padded};

/// How long the kernel may take for one answer, in seconds. It answers in
/// microseconds; replacing a table waits some 25 ms for readers.
const ANSWER_SECONDS: i64 = 5;

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const ERROR: u16 = 2;
const DONE: u16 = 3;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
/// Of a request for something new: it must not exist yet.
pub const EXCLUSIVE: u16 = 0x200;
/// Of a request for something new: make it if it does not exist.
pub const CREATE: u16 = 0x400;
/// Of a request for a new rule: as the last of its chain.
pub const APPEND: u16 = 0x800;

const MESSAGE_HEADER: usize = 16;
const FAMILY_HEADER: usize = 4;

/// One request of a transaction.
pub struct Message {
    pub kind: u16,
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    pub flags: u16,
    pub attributes: Attributes,
}

/// Carries out `messages` as one transaction: all of them or none.
pub fn transact(messages: &[Message]) -> Result<(), Errno> {
    let socket = open()?;
    let mut batch = Vec::new();
    let none = Attributes::default();
    append(&mut batch, BATCH_BEGIN, REQUEST, 0, 0, SUBSYSTEM, &none);
    for (index, message) in messages.iter().enumerate() {
        // An error comes for any message, an answer to success only where asked for.
        let last = index + 1 == messages.len();
        let flags = REQUEST | message.flags | if last { ACK } else { 0 };
        let kind = SUBSYSTEM << 8 | message.kind;
        let sequence = index as u32 + 1;
        append(
            &mut batch,
            kind,
            flags,
            sequence,
            message.family,
            0,
            &message.attributes,
        );
    }
    append(&mut batch, BATCH_END, REQUEST, 0, 0, SUBSYSTEM, &none);
    // A batch must arrive in one piece; its size is bounded by that of a pod's annotations.
    setsockopt(
        &socket,
        sockopt::SndBufForce,
        &(batch.len() * 2).max(1 << 18),
    )?;
    send(socket.as_raw_fd(), &batch, MsgFlags::empty())?;
    let mut result = None;
    while result.is_none() {
        receive(&socket, &mut |kind, payload| {
            if kind == ERROR {
                result = Some(error_of(payload));
            }
        })?;
    }
    result.unwrap_or(Ok(()))
}

/// Asks for a list and hands the payload of each element (behind its family header)
/// to `element`.
pub fn dump(
    kind: u16,
    family: u8,
    attributes: &Attributes,
    element: &mut dyn FnMut(&[u8]),
) -> Result<(), Errno> {
    let socket = open()?;
    let mut request = Vec::new();
    let kind = SUBSYSTEM << 8 | kind;
    append(&mut request, kind, REQUEST | DUMP, 1, family, 0, attributes);
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

fn open() -> Result<OwnedFd, Errno> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkNetFilter,
    )?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    setsockopt(
        &socket,
        sockopt::ReceiveTimeout,
        &TimeVal::new(ANSWER_SECONDS, 0),
    )?;
    Ok(socket)
}

/// Appends a message: netlink's header, netfilter's header, attributes.
fn append(
    batch: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    family: u8,
    resource: u16,
    attributes: &Attributes,
) {
    let length = (MESSAGE_HEADER + FAMILY_HEADER + attributes.0.len()) as u32;
    batch.extend_from_slice(&length.to_ne_bytes());
    batch.extend_from_slice(&kind.to_ne_bytes());
    batch.extend_from_slice(&flags.to_ne_bytes());
    batch.extend_from_slice(&sequence.to_ne_bytes());
    // The kernel fills in the sender.
    batch.extend_from_slice(&[0; 4]);
    batch.extend_from_slice(&[family, 0]);
    batch.extend_from_slice(&resource.to_be_bytes());
    batch.extend_from_slice(&attributes.0);
}

/// Receives once and hands type and payload of each message to `each`.
fn receive(socket: &OwnedFd, each: &mut dyn FnMut(u16, &[u8])) -> Result<(), Errno> {
    let mut buffer = vec![0; 1 << 16];
    let length = match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
        Err(Errno::EINTR) => return Ok(()),
        // What the receive timeout says.
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

/// An error message starts with the negative errno; 0 is the answer to success.
fn error_of(payload: &[u8]) -> Result<(), Errno> {
    match payload {
        [a, b, c, d, ..] => match i32::from_ne_bytes([*a, *b, *c, *d]) {
            0 => Ok(()),
            code => Err(Errno::from_raw(-code)),
        },
        _ => Err(Errno::EBADMSG),
    }
}
