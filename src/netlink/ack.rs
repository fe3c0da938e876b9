//! Decodes the kernel's response to a request: success, or why the request was rejected
//! (`struct nlmsgerr` and `enum nlmsgerr_attrs` of `linux/netlink.h`). Pure.

use nix::errno::Errno;
use nix::libc;

use super::attribute::{find, padded};

/// Size of `struct nlmsghdr`, in bytes.
pub const MESSAGE_HEADER: usize = 16;

/// Flag of a response: it quotes only the header of the request.
const CAPPED: u16 = libc::NLM_F_CAPPED as u16;
/// Flag of a response: attributes follow the quoted request.
const HAS_ATTRIBUTES: u16 = libc::NLM_F_ACK_TLVS as u16;

/// The kernel's words on the error, `NLMSGERR_ATTR_MSG`.
const TEXT: u16 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub errno: Errno,
    /// Sequence number of the message at fault. 0: none, or not known.
    pub sequence: u32,
    /// The kernel's words, from Linux 4.12 on and for some errors only.
    pub text: Option<String>,
}

impl From<Errno> for Rejection {
    fn from(errno: Errno) -> Self {
        Rejection { errno, sequence: 0, text: None }
    }
}

/// Decodes a response to the message `sequence`. It starts with the negative errno; 0 means success.
pub fn decode(sequence: u32, flags: u16, payload: &[u8]) -> Result<(), Rejection> {
    let Some((code, request)) = payload.split_first_chunk() else {
        return Err(Errno::EBADMSG.into());
    };
    let errno = match i32::from_ne_bytes(*code) {
        0 => return Ok(()),
        code => Errno::from_raw(code.wrapping_neg()),
    };
    let attributes = attributes(flags, request);
    let text = find(attributes, TEXT)
        .map(|text| String::from_utf8_lossy(text.strip_suffix(b"\0").unwrap_or(text)).into_owned());
    Err(Rejection { errno, sequence, text })
}

/// Returns the attributes that follow the quoted `request`.
fn attributes(flags: u16, request: &[u8]) -> &[u8] {
    let Some(length) = request.first_chunk() else {
        return &[];
    };
    let quoted = match flags & CAPPED {
        0 => u32::from_ne_bytes(*length) as usize,
        _ => MESSAGE_HEADER,
    };
    match flags & HAS_ATTRIBUTES {
        0 => &[],
        _ => request.get(padded(quoted)..).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute::Attributes;

    /// A response that quotes a request of 22 bytes, or its header only.
    fn response(errno: Errno, whole: bool, attributes: &Attributes) -> Vec<u8> {
        let mut payload = (-(errno as i32)).to_ne_bytes().to_vec();
        payload.extend(22_u32.to_ne_bytes());
        payload.resize(4 + MESSAGE_HEADER + if whole { 8 } else { 0 }, 0xaa);
        payload.extend(&attributes.0);
        payload
    }

    #[test]
    fn an_extended_response_has_the_kernels_text() {
        let attributes = Attributes::default().text(TEXT, "no such thing");
        for (flags, whole) in [(HAS_ATTRIBUTES, true), (HAS_ATTRIBUTES | CAPPED, false)] {
            let payload = response(Errno::ENOENT, whole, &attributes);
            let wanted = Rejection {
                errno: Errno::ENOENT,
                sequence: 7,
                text: Some("no such thing".to_owned()),
            };
            assert_eq!(decode(7, flags, &payload), Err(wanted), "{flags:x}");
        }
    }

    #[test]
    fn a_response_of_an_old_kernel_has_the_error_alone() {
        let payload = response(Errno::EBUSY, true, &Attributes::default());
        let wanted = Rejection { sequence: 3, ..Errno::EBUSY.into() };
        assert_eq!(decode(3, 0, &payload), Err(wanted));
        assert_eq!(decode(3, 0, &[0; 20]), Ok(()));
    }

    #[test]
    fn a_response_that_is_cut_short_is_an_error() {
        let attributes = Attributes::default().text(TEXT, "x");
        let payload = response(Errno::EPERM, true, &attributes);
        for length in 0..payload.len() {
            let rejection = decode(1, HAS_ATTRIBUTES, &payload[..length]).unwrap_err();
            let errno = if length < 4 { Errno::EBADMSG } else { Errno::EPERM };
            assert_eq!(rejection.errno, errno, "{length}");
        }
        let huge = [&(-1_i32).to_ne_bytes()[..], &[0xff; 20]].concat();
        assert_eq!(decode(1, HAS_ATTRIBUTES, &huge).unwrap_err().errno, Errno::EPERM);
    }
}
