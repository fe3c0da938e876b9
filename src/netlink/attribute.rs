//! Netlink attributes: type, length and value, padded to four bytes, some of them
//! holding others (`linux/netlink.h`).

/// Says that an attribute holds attributes.
const NESTED: u16 = 1 << 15;
/// Says that the value is in network byte order.
const NETWORK_ORDER: u16 = 1 << 14;
const HEADER: usize = 4;

/// A run of attributes, as the kernel takes and gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes(pub Vec<u8>);

impl Attributes {
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.push(kind, value);
        self
    }

    /// A string with its terminating NUL.
    pub fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat())
    }

    /// A number in network byte order, as nf_tables wants all of its own.
    pub fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn nested(mut self, kind: u16, inner: Attributes) -> Self {
        self.push(kind | NESTED, &inner.0);
        self
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        let length = (HEADER + value.len()) as u16;
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(padded(self.0.len()), 0);
    }
}

/// Reads a run of attributes; stops at the first that is cut short.
pub fn parse(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut attributes = Vec::new();
    while let [l0, l1, k0, k1, ..] = *bytes {
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let kind = u16::from_ne_bytes([k0, k1]) & !(NESTED | NETWORK_ORDER);
        let Some(value) = bytes.get(HEADER..length) else {
            break;
        };
        attributes.push((kind, value));
        bytes = bytes.get(padded(length)..).unwrap_or_default();
    }
    attributes
}

/// The first attribute of this kind.
pub fn find<'a>(attributes: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    attributes
        .iter()
        .find(|(found, _)| *found == kind)
        .map(|(_, value)| *value)
}

pub fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let inner = Attributes::default().number(1, 7);
        let run = Attributes::default()
            .text(1, "nat")
            .nested(2, inner.clone())
            .bytes(3, &[9]);
        let parsed = parse(&run.0);
        let wanted: [(u16, &[u8]); 3] = [(1, b"nat\0"), (2, &inner.0), (3, &[9])];
        assert_eq!(parsed, wanted);
        assert_eq!(find(&parsed, 3), Some(&[9][..]));
    }

    #[test]
    fn bytes_that_are_no_attributes_end_the_run() {
        for bytes in [
            &[][..],
            &[1],
            &[0, 0, 1, 0],
            &[3, 0, 1, 0],
            &[200, 0, 1, 0, 1],
        ] {
            assert_eq!(parse(bytes), [], "{bytes:?}");
        }
    }
}
