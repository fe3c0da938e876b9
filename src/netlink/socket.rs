//! Sends nf_tables and rtnetlink requests over a netlink socket in the calling thread's netns.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockopt, recv,
    send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::attribute::{Attributes, padded};

/// Timeout for one response of the kernel, in seconds. Usually a response takes microseconds.
/// Replacing a table takes about 25 ms, because the kernel waits for an RCU grace period. Creating
/// a link may load a kernel module.
const RESPONSE_SECONDS: i64 = 5;

/// Largest number of bytes that [`dump`] receives. The longest port lists that fit into a pod's
/// annotations need about 3 MB. The number is limited because a process of the pod with
/// CAP_NET_ADMIN can add any number of objects.
const DUMP_LIMIT: usize = 4 << 20;
/// Largest number of bytes of an rtnetlink list, enough for about 3,500 addresses. The number is
/// limited because a process of the pod with CAP_NET_ADMIN can add any number of addresses.
const ROUTE_LIMIT: usize = 256 << 10;

const SUBSYSTEM: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;
const BATCH_BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
const BATCH_END: u16 = libc::NFNL_MSG_BATCH_END as u16;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;
/// Set in a list that changed while the kernel read it. Objects may be missing or listed twice.
const INTERRUPTED: u16 = libc::NLM_F_DUMP_INTR as u16;

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
/// Makes the kernel report success, too, not only errors.
pub const ACK: u16 = libc::NLM_F_ACK as u16;
/// Requests a list.
pub const DUMP: u16 = libc::NLM_F_DUMP as u16;
/// Makes a request fail if the object exists.
pub const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
/// Creates the object if it does not exist.
pub const CREATE: u16 = libc::NLM_F_CREATE as u16;
/// Adds a rule at the end of its chain.
pub const APPEND: u16 = libc::NLM_F_APPEND as u16;

/// Size of `struct nfgenmsg`, in bytes.
const FAMILY_HEADER: usize = 4;
/// Size of `struct nlmsghdr`, in bytes.
const MESSAGE_HEADER: usize = 16;

/// Size of the receive buffer, in bytes. The kernel sends at most 32 KiB of a list at a time
/// (`netlink_recvmsg` in `net/netlink/af_netlink.c`).
const BUFFER: usize = 1 << 16;

/// Bytes that the kernel needs in the send buffer in addition to the messages.
const SEND_OVERHEAD: usize = 32;

/// The kernel's error for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub errno: Errno,
    /// Sequence number of the message that caused the error. 0 if no message caused it, or if the
    /// message is unknown.
    pub sequence: u32,
}

impl From<Errno> for Rejection {
    fn from(errno: Errno) -> Self {
        Rejection { errno, sequence: 0 }
    }
}

/// Sends an rtnetlink request, and passes the attributes of each object in the response to
/// `object`. `kind` is the message type. `header` is the structure of this type, which precedes the
/// attributes.
///
/// Returns the kernel's error, or one of these:
///
/// - `ETIMEDOUT`: the kernel did not respond in time.
/// - `EFBIG`: the list is longer than [`ROUTE_LIMIT`].
pub fn request_rtnetlink(
    kind: u16,
    flags: u16,
    header: &[u8],
    attributes: &Attributes,
    object: &mut dyn FnMut(&[u8]),
) -> Result<(), Errno> {
    let socket = open(SockProtocol::NetlinkRoute)?;
    let request = encode(kind, flags, 1, header, attributes);
    let on_payload = &mut |payload: &[u8]| object(payload.get(header.len()..).unwrap_or_default());
    exchange(&socket, &request, ROUTE_LIMIT, on_payload).map_err(|rejection| rejection.errno)
}

/// A message of an nf_tables transaction.
#[derive(Clone, Debug)]
pub struct Message {
    /// Message type within nf_tables, such as `NFT_MSG_NEWTABLE`.
    pub kind: i32,
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    pub flags: u16,
    pub attributes: Attributes,
}

/// Applies `messages` as one nf_tables transaction. Returns the kernel's error for the first
/// message that fails. The sequence number in the error is the position of this message, counted
/// from 1. Two errors concern no message:
///
/// - `ETIMEDOUT`: the kernel did not respond in time.
/// - `EMSGSIZE`: the messages exceed the send buffer.
pub fn transact(messages: &[Message]) -> Result<(), Rejection> {
    let socket = open(SockProtocol::NetlinkNetFilter)?;
    let batch = encode_batch(messages);
    enlarge_send_buffer(&socket, batch.len() + SEND_OVERHEAD)?;
    exchange(&socket, &batch, usize::MAX, &mut |_| {})
}

fn encode_batch(messages: &[Message]) -> Vec<u8> {
    let none = Attributes::default();
    let mut batch = encode(BATCH_BEGIN, 0, 0, &family_header(0, SUBSYSTEM), &none);
    for (index, message) in messages.iter().enumerate() {
        // The kernel always reports errors, but reports success only for a message with ACK. With
        // ACK on the last message, one response reports the success of the whole transaction.
        let is_last = index + 1 == messages.len();
        let flags = if is_last { message.flags | ACK } else { message.flags };
        let kind = (SUBSYSTEM << 8) | message.kind as u16;
        let sequence = index as u32 + 1;
        let header = family_header(message.family, 0);
        batch.extend(encode(kind, flags, sequence, &header, &message.attributes));
    }
    batch.extend(encode(BATCH_END, 0, 0, &family_header(0, SUBSYSTEM), &none));
    batch
}

/// Enlarges the send buffer to `needed` bytes. The messages are made from a pod's annotations,
/// whose size Kubernetes limits, so no limit is needed here.
fn enlarge_send_buffer(socket: &OwnedFd, needed: usize) -> Result<(), Errno> {
    if getsockopt(socket, sockopt::SndBuf)? >= needed {
        return Ok(());
    }
    if setsockopt(socket, sockopt::SndBufForce, &needed).is_err() {
        // Unlike `SO_SNDBUFFORCE`, this option works without CAP_NET_ADMIN in the initial user
        // namespace, but only up to `net.core.wmem_max`.
        let _ = setsockopt(socket, sockopt::SndBuf, &needed);
    }
    Ok(())
}

/// Lists nf_tables objects, and passes the attributes of each to `object`. `kind` is the message
/// type of the request, such as `NFT_MSG_GETRULE`.
///
/// Returns the kernel's error, or one of these:
///
/// - `EOPNOTSUPP`: the kernel has no nf_tables.
/// - `ETIMEDOUT`: the kernel did not respond in time.
/// - `EFBIG`: the list is longer than [`DUMP_LIMIT`].
/// - `EINTR`: the list changed while it was read.
pub fn dump(
    kind: i32,
    family: u8,
    attributes: &Attributes,
    object: &mut dyn FnMut(&[u8]),
) -> Result<(), Errno> {
    let socket = open(SockProtocol::NetlinkNetFilter)?;
    let message_type = (SUBSYSTEM << 8) | kind as u16;
    let request = encode(message_type, DUMP, 1, &family_header(family, 0), attributes);
    let on_payload = &mut |payload: &[u8]| object(payload.get(FAMILY_HEADER..).unwrap_or_default());
    exchange(&socket, &request, DUMP_LIMIT, on_payload).map_err(|rejection| match rejection.errno {
        // A kernel without nf_tables rejects a listing with EINVAL (`nfnetlink_rcv_msg`), but a
        // transaction with EOPNOTSUPP (`nfnetlink_rcv_batch`). Report the same error for both.
        Errno::EINVAL => Errno::EOPNOTSUPP,
        errno => errno,
    })
}

fn open(protocol: SockProtocol) -> Result<OwnedFd, Errno> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(RESPONSE_SECONDS, 0))?;
    Ok(socket)
}

fn family_header(family: u8, resource: u16) -> [u8; FAMILY_HEADER] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// Encodes a message. `header` is the structure of the message type, which precedes the attributes.
fn encode(kind: u16, flags: u16, sequence: u32, header: &[u8], attributes: &Attributes) -> Vec<u8> {
    let length = (MESSAGE_HEADER + header.len() + attributes.0.len()) as u32;
    let mut message = Vec::with_capacity(length as usize);
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    // The port ID of the sender may be 0, because the kernel knows which socket sends the message.
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(header);
    message.extend_from_slice(&attributes.0);
    message
}

/// Sends `request`, and receives messages until the kernel reports an error, success or the end of
/// a list. Passes the payload of each other message to `on_payload`. Fails with `EFBIG` if it
/// receives more than `limit` bytes.
fn exchange(
    socket: &OwnedFd,
    request: &[u8],
    limit: usize,
    on_payload: &mut dyn FnMut(&[u8]),
) -> Result<(), Rejection> {
    send(socket.as_raw_fd(), request, MsgFlags::empty())?;
    let mut buffer = vec![0; BUFFER];
    let mut received = 0;
    while received <= limit {
        let count = match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Ok(count) => count,
            // ENOBUFS means that the errors of a large transaction exceeded the receive buffer.
            // The buffer still contains the first error, and only that is needed.
            Err(Errno::EINTR | Errno::ENOBUFS) => continue,
            // The kernel did not respond within the receive timeout of the socket.
            Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT.into()),
            Err(errno) => return Err(errno.into()),
        };
        received += count;
        let mut bytes = &buffer[..count];
        while let Some(message) = take_message(&mut bytes) {
            if message.flags & INTERRUPTED != 0 {
                return Err(Errno::EINTR.into());
            }
            match message.kind {
                // Return the first error, and ignore errors of later messages. DONE ends a list,
                // and may report an error, too.
                ERROR | DONE => return message.result(),
                _ => on_payload(message.payload),
            }
        }
    }
    Err(Errno::EFBIG.into())
}

/// A message from the kernel.
struct ReceivedMessage<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: &'a [u8],
}

impl ReceivedMessage<'_> {
    /// Returns the result in a message of the type [`ERROR`] or [`DONE`]. The payload starts with
    /// the negative errno, or with 0 for success.
    fn result(&self) -> Result<(), Rejection> {
        let code = i32::from_ne_bytes(*self.payload.first_chunk().ok_or(Errno::EBADMSG)?);
        if code == 0 {
            return Ok(());
        }
        Err(Rejection { errno: Errno::from_raw(code.wrapping_neg()), sequence: self.sequence })
    }
}

/// Removes the first message from `bytes` and returns it. Returns `None` if `bytes` does not start
/// with a complete message.
fn take_message<'a>(bytes: &mut &'a [u8]) -> Option<ReceivedMessage<'a>> {
    let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = **bytes else {
        return None;
    };
    let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
    let payload = bytes.get(MESSAGE_HEADER..length)?;
    *bytes = bytes.get(padded(length)..).unwrap_or_default();
    Some(ReceivedMessage {
        kind: u16::from_ne_bytes([k0, k1]),
        flags: u16::from_ne_bytes([f0, f1]),
        sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
        payload,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn list_that_ends_with_an_error_or_is_interrupted_fails() {
        let none = Attributes::default();
        for (flags, code, expected) in [
            (0, 0, Ok(())),
            (0, -libc::ENOENT, Err(Errno::ENOENT)),
            (INTERRUPTED, 0, Err(Errno::EINTR)),
        ] {
            let mut list = encode(SUBSYSTEM << 8, 0, 1, &family_header(0, 0), &none);
            list.extend(encode(DONE, flags, 1, &code.to_ne_bytes(), &none));
            let (kernel, socket) = UnixDatagram::pair().unwrap();
            kernel.send(&list).unwrap();
            let mut objects = 0;
            let result = exchange(&socket.into(), &[0], 1 << 10, &mut |_| objects += 1);
            assert_eq!((result.map_err(|rejection| rejection.errno), objects), (expected, 1));
        }
    }
}
