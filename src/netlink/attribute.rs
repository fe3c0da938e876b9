//! Encodes and decodes netlink attributes (`linux/netlink.h`). An attribute consists of length,
//! type and value, and is padded to four bytes. Its value can be a sequence of attributes.

use std::iter;

use nix::libc;

/// Flag in the type: the value is a sequence of attributes.
const NESTED: u16 = libc::NLA_F_NESTED as u16;
/// Flag in the type: the value is in network byte order.
const NETWORK_ORDER: u16 = libc::NLA_F_NET_BYTEORDER as u16;
/// Size of the length and the type of an attribute, in bytes.
const HEADER: usize = size_of::<libc::nlattr>();

/// An encoded sequence of attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes(pub Vec<u8>);

impl Attributes {
    /// Appends an attribute of the type `kind`, with these bytes as its value.
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (HEADER + value.len()) as u16;
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(padded(self.0.len()), 0);
        self
    }

    /// Appends a text with a terminating NUL.
    pub fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat())
    }

    /// Appends a number in network byte order, which all attributes of nf_tables use.
    pub fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends an attribute whose value is a sequence of attributes.
    pub fn nested(self, kind: u16, inner: Attributes) -> Self {
        self.bytes(kind | NESTED, &inner.0)
    }
}

/// Decodes a sequence of attributes into types and values. Stops at a truncated attribute.
pub fn parse(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    iter::from_fn(move || {
        let [l0, l1, k0, k1, ..] = *bytes else {
            return None;
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let kind = u16::from_ne_bytes([k0, k1]) & !(NESTED | NETWORK_ORDER);
        let value = bytes.get(HEADER..length)?;
        bytes = bytes.get(padded(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the value of the first attribute of the type `kind`, if there is one.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    for (found, value) in parse(bytes) {
        if found == kind {
            return Some(value);
        }
    }
    None
}

/// Rounds `length` up to the alignment of netlink, four bytes.
pub fn padded(length: usize) -> usize {
    length.next_multiple_of(libc::NLA_ALIGNTO as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_attributes_are_decoded_unchanged() {
        let inner = Attributes::default().number(1, 7);
        let encoded = Attributes::default().text(1, "nat").nested(2, inner.clone()).bytes(3, &[9]);
        let decoded: Vec<_> = parse(&encoded.0).collect();
        let expected: [(u16, &[u8]); 3] = [(1, b"nat\0"), (2, &inner.0), (3, &[9])];
        assert_eq!(decoded, expected);
        assert_eq!(find(&encoded.0, 3), Some(&[9][..]));
    }

    #[test]
    fn decoding_stops_at_invalid_bytes() {
        for bytes in [&[][..], &[1], &[0, 0, 1, 0], &[3, 0, 1, 0], &[200, 0, 1, 0, 1]] {
            assert_eq!(parse(bytes).next(), None, "{bytes:?}");
        }
    }
}
