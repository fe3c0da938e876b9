//! Encodes and compares the sets of the plugin's rules. A list of ports or subnets is one set, so
//! that it needs only one rule. The sets are anonymous: the kernel deletes them with their rules.

use nix::errno::Errno;
use nix::libc;

use super::expressions::SetName;
use super::message::{PLUGIN_TABLE, message, protocol_family};
use super::nfta;
use crate::netlink::attribute::{Attributes, find, parse};
use crate::netlink::socket::{self, CREATE, Message};
use crate::redirect::Family;
use crate::redirect::rules::nft::{Key, Set};

/// Flags of a set that belongs to one rule, never changes, and contains ranges.
const FLAGS: u32 =
    (libc::NFT_SET_ANONYMOUS | libc::NFT_SET_CONSTANT | libc::NFT_SET_INTERVAL) as u32;
/// Flag of an element that ends a range. The numbers from this element up to the next one are not
/// in the set.
const INTERVAL_END: u32 = libc::NFT_SET_ELEM_INTERVAL_END as u32;
/// Largest number of elements in a message. An element has at most 36 bytes. All elements are in
/// one attribute, which has at most 64 KiB.
const ELEMENTS_PER_MESSAGE: usize = 1500;

/// The first number of a range (`false`), or the first number after a range (`true`).
type Element = (u128, bool);

/// Returns the elements of a set. Each range has two: its first number, and the first number after
/// it.
fn elements(set: &Set) -> Vec<Element> {
    let largest = u128::MAX >> (u128::BITS as usize - 8 * set.key.length);
    let mut elements = Vec::with_capacity(2 * set.ranges.len());
    for &(first, last) in &set.ranges {
        elements.push((first, false));
        // No number follows the largest one, so a range up to it has no end element.
        if last < largest {
            elements.push((last + 1, true));
        }
    }
    elements
}

/// Builds the messages that create a set. Send them before the message of the rule.
pub fn messages(set: &Set, family: Family, id: u32) -> Vec<Message> {
    let name = SetName::New(id);
    let attributes = Attributes::default().text(nfta::SET_TABLE, PLUGIN_TABLE);
    let attributes = name
        .append(attributes, nfta::SET_NAME, nfta::SET_ID)
        .number(nfta::SET_FLAGS, FLAGS)
        .number(nfta::SET_KEY_TYPE, set.key.datatype)
        .number(nfta::SET_KEY_LEN, set.key.length as u32);
    let mut messages = vec![message(libc::NFT_MSG_NEWSET, family, CREATE, attributes)];
    for elements in elements(set).chunks(ELEMENTS_PER_MESSAGE) {
        let mut list = Attributes::default();
        for element in elements {
            list = list.nested(nfta::LIST_ELEM, encode(*element, set.key));
        }
        let attributes = Attributes::default().text(nfta::SET_ELEM_LIST_TABLE, PLUGIN_TABLE);
        let attributes = name
            .append(attributes, nfta::SET_ELEM_LIST_SET, nfta::SET_ELEM_LIST_SET_ID)
            .nested(nfta::SET_ELEM_LIST_ELEMENTS, list);
        messages.push(message(libc::NFT_MSG_NEWSETELEM, family, CREATE, attributes));
    }
    messages
}

fn encode((number, is_end): Element, key: Key) -> Attributes {
    let value = Attributes::default().bytes(nfta::DATA_VALUE, &key.encode(number));
    let attributes = Attributes::default().nested(nfta::SET_ELEM_KEY, value);
    if is_end { attributes.number(nfta::SET_ELEM_FLAGS, INTERVAL_END) } else { attributes }
}

/// Returns whether the kernel has the set `name` with exactly the elements of `wanted`.
pub fn is_listed(wanted: &Set, family: Family, name: &[u8]) -> Result<bool, Errno> {
    let request = Attributes::default()
        .text(nfta::SET_ELEM_LIST_TABLE, PLUGIN_TABLE)
        .bytes(nfta::SET_ELEM_LIST_SET, name);
    let mut found = Vec::new();
    let result =
        socket::dump(libc::NFT_MSG_GETSETELEM, protocol_family(family), &request, &mut |payload| {
            let list = find(payload, nfta::SET_ELEM_LIST_ELEMENTS).unwrap_or_default();
            found.extend(parse(list).map(|(_, element)| decode(element)));
        });
    match result {
        Ok(()) => {}
        Err(Errno::ENOENT) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    found.sort_unstable();
    Ok(found.into_iter().eq(elements(wanted).into_iter().map(Some)))
}

fn decode(element: &[u8]) -> Option<Element> {
    let value = find(find(element, nfta::SET_ELEM_KEY)?, nfta::DATA_VALUE)?;
    let mut number = [0; size_of::<u128>()];
    number.get_mut(size_of::<u128>().checked_sub(value.len())?..)?.copy_from_slice(value);
    let flags = find(element, nfta::SET_ELEM_FLAGS).unwrap_or_default();
    let is_end = flags.last().is_some_and(|flags| u32::from(*flags) & INTERVAL_END != 0);
    Some((u128::from_be_bytes(number), is_end))
}
