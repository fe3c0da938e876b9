//! A JSON object that keeps the position of its values in the text.

use std::ops::Range;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::Error;
use crate::cni::object::members;

/// The members of an object: keys and values as slices of the text. Keys are not decoded while the
/// object is parsed: Go accepts a key such as `"\ud800"`, which is not a valid Rust string, so a
/// network config with such a key has to be accepted too.
pub(super) struct BorrowedObject<'a> {
    /// Keys and values, in their order.
    members: Vec<(&'a RawValue, &'a RawValue)>,
}

impl<'a> BorrowedObject<'a> {
    /// Parses `text`, which must be a JSON object.
    pub(super) fn parse(text: &'a str) -> Result<BorrowedObject<'a>, Error> {
        serde_json::from_str(text).map_err(|error| parse_error(text, &error))
    }

    /// Returns the value of `key`. If the key is repeated, its last value counts, as in Go's
    /// decoder.
    pub(super) fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.last_value(|name| name == key)
    }

    /// Returns the value of `key` if it is a string. `None` if the key is missing, or if its value
    /// is not a string.
    pub(super) fn string(&self, key: &str) -> Option<String> {
        let value = self.get(key)?;
        serde_json::from_str(value.get()).ok()
    }

    /// Returns the value of a plugin's `key` if it is a string. The case of the key does not
    /// matter: libcni decodes a plugin into a Go struct, for which `Type` is the same key as
    /// `type`. libcni decodes a conflist into a map instead, whose keys have to match exactly. Use
    /// [`BorrowedObject::string`] for the keys of a conflist.
    pub(super) fn plugin_string(&self, key: &str) -> Option<String> {
        let value = self.last_value(|name| name.eq_ignore_ascii_case(key))?;
        serde_json::from_str(value.get()).ok()
    }

    /// Returns the value of the last key for which `is_key` returns true.
    fn last_value(&self, is_key: impl Fn(&str) -> bool) -> Option<&'a RawValue> {
        for (key, value) in self.members.iter().rev() {
            // A key that cannot be decoded, such as `"\ud800"`, is skipped: no caller looks for it.
            if let Ok(decoded_key) = serde_json::from_str::<String>(key.get())
                && is_key(&decoded_key)
            {
                return Some(value);
            }
        }
        None
    }
}

impl<'de> Deserialize<'de> for BorrowedObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BorrowedObject { members: members(deserializer)? })
    }
}

/// Returns why `text` is not a JSON object, from the `error` with which serde_json rejected it.
pub(super) fn parse_error(text: &str, error: &serde_json::Error) -> Error {
    if text.trim().is_empty() {
        Error::Empty
    } else if error.is_data() {
        Error::NotObject
    } else {
        Error::Syntax { line: error.line(), column: error.column() }
    }
}

/// Returns the byte range of `part` in `text`. `part` must be a slice of `text`.
pub(super) fn byte_range(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}
