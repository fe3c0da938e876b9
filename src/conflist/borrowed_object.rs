//! A JSON object that keeps the position of its values in the text.

use std::ops::Range;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::Error;
use crate::cni::object::members;

/// The members of an object: keys and values as slices of the text. A key can be any string that Go
/// accepts, also `"\ud800"`.
pub(super) struct BorrowedObject<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'a> BorrowedObject<'a> {
    /// Parses `text`, which must be a JSON object.
    pub(super) fn parse(text: &'a str) -> Result<BorrowedObject<'a>, Error> {
        serde_json::from_str(text).map_err(|error| syntax(text, &error))
    }

    /// Returns the value of `key`. Of duplicate keys the last one wins, as in Go's decoder.
    pub(super) fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.last(|name| name == key)
    }

    /// Decodes the text of `key`. `None` if the key is missing or its value is no text.
    pub(super) fn string(&self, key: &str) -> Option<String> {
        serde_json::from_str(self.get(key)?.get()).ok()
    }

    /// Decodes the text of a plugin's `key`, regardless of case: libcni reads a plugin into a Go
    /// struct, so `Type` counts as `type`. It reads a conflist into a map, as
    /// [`BorrowedObject::string`] does.
    pub(super) fn plugin_string(&self, key: &str) -> Option<String> {
        let value = self.last(|name| name.eq_ignore_ascii_case(key))?;
        serde_json::from_str(value.get()).ok()
    }

    /// Returns the value of the last key for which `is_key` returns true.
    fn last(&self, is_key: impl Fn(&str) -> bool) -> Option<&'a RawValue> {
        for (name, value) in self.0.iter().rev() {
            // A key such as `"\ud800"` cannot be decoded, and nobody looks it up.
            if let Ok(name) = serde_json::from_str::<String>(name.get())
                && is_key(&name)
            {
                return Some(value);
            }
        }
        None
    }
}

impl<'de> Deserialize<'de> for BorrowedObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        members(deserializer).map(BorrowedObject)
    }
}

/// Classifies an error of parsing `text` as a JSON object.
pub(super) fn syntax(text: &str, error: &serde_json::Error) -> Error {
    if text.trim().is_empty() {
        Error::Empty
    } else if error.is_data() {
        Error::NotObject
    } else {
        Error::Syntax { line: error.line(), column: error.column() }
    }
}

/// Returns the byte range of `part` in `text`. `part` must be a slice of `text`.
pub(super) fn span(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}
