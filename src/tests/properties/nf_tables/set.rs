//! Anonymous constant sets with ranges, as the kernel's red-black tree has them.

use super::{attributes, named, number, text};

/// `__set%d`, which the kernel replaces with a free name.
const NAME: &str = "__set%d";
/// `NFT_SET_ANONYMOUS | NFT_SET_CONSTANT | NFT_SET_INTERVAL`.
const FLAGS: u32 = 7;
/// Types and lengths of keys that `nft` lists: IPv4 address, IPv6 address, port.
const KEYS: [(u32, u32); 3] = [(7, 4), (8, 16), (13, 2)];

/// A key, and whether it marks the end of a range, which the range does not contain.
pub type Element = (Vec<u8>, bool);

#[derive(Clone, Debug)]
pub struct Set {
    /// Length of keys, in bytes.
    pub length: usize,
    /// In ascending order.
    elements: Vec<Element>,
}

impl Set {
    /// Adds elements. Each is above the last one, and ranges do not adjoin: an end follows each start,
    /// unless the range has the largest key.
    pub fn add(&mut self, elements: Vec<Element>) -> Result<(), String> {
        for (key, is_end) in elements {
            let (above, was_end) = match self.elements.last() {
                Some((last, was_end)) => (*last < key, *was_end),
                None => (true, true),
            };
            if key.len() != self.length || !above || is_end == was_end {
                return Err(format!("misplaced element {key:?}"));
            }
            self.elements.push((key, is_end));
        }
        Ok(())
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        let at_most = self.elements.partition_point(|(element, _)| element.as_slice() <= key);
        at_most.checked_sub(1).is_some_and(|index| !self.elements[index].1)
    }
}

/// Reads the message that creates a set: its table, ID and content.
pub fn new(bytes: &[u8]) -> Result<(String, u32, Set), String> {
    let [table, name, flags, kind, length, id] = named(bytes, [1, 2, 3, 4, 5, 10])?;
    let (kind, length) = (number(kind)?, number(length)?);
    if text(name)? != NAME || number(flags)? != FLAGS || !KEYS.contains(&(kind, length)) {
        return Err("not an anonymous constant set of addresses or ports".to_owned());
    }
    let set = Set { length: length as usize, elements: Vec::new() };
    Ok((text(table)?, number(id)?, set))
}

/// Reads the message that adds elements: table and ID of the set, keys, and which are ends.
pub fn elements(bytes: &[u8]) -> Result<(String, u32, Vec<Element>), String> {
    let [table, name, list, id] = named(bytes, [1, 2, 3, 4])?;
    if text(name)? != NAME {
        return Err("not the name of an anonymous set".to_owned());
    }
    let mut elements = Vec::new();
    for (kind, element) in attributes(list)? {
        let (key, is_end) = match named(element, [1, 3]) {
            Ok([key, flags]) if number(flags)? == 1 => (key, true),
            Ok(_) => return Err("unknown flags".to_owned()),
            Err(_) => (named(element, [1])?[0], false),
        };
        let [key] = named(key, [1])?;
        if kind != 1 {
            return Err("not an element".to_owned());
        }
        elements.push((key.to_vec(), is_end));
    }
    Ok((text(table)?, number(id)?, elements))
}

/// Name and ID by which a rule refers to a set. Returns the ID.
pub fn reference(name: &[u8], id: &[u8]) -> Result<u32, String> {
    if text(name)? == NAME { number(id) } else { Err("not an anonymous set".to_owned()) }
}
