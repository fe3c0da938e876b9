//! A JSON object that keeps the order and the exact bytes of its members.
//!
//! `prevResult` and the configurations of other plugins are parsed as [`Object`], so that writing
//! them back does not change numbers, escapes or unknown keys.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON object: its members in the order of the text.
#[derive(Clone, Debug, Default)]
pub struct Object(pub Vec<(String, Box<RawValue>)>);

impl Object {
    /// Returns the value of `key`. The last of duplicate keys wins, as in Go's decoder.
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        let (_, value) = self.0.iter().rev().find(|(name, _)| name == key)?;
        Some(value)
    }

    /// Returns the value of `key`. `None`: the key is missing, or its value is null.
    pub fn non_null(&self, key: &str) -> Option<&RawValue> {
        self.get(key).filter(|value| value.get() != "null")
    }

    /// Decodes the value of `key` as a string. Returns an empty string if the key is missing or its
    /// value is null. Fails if the value has another type.
    pub fn text(&self, key: &str) -> Result<String, serde_json::Error> {
        match self.non_null(key) {
            Some(value) => serde_json::from_str(value.get()),
            None => Ok(String::new()),
        }
    }

    /// Sets `key` as the first member, and removes all other members with this key.
    pub fn set(&mut self, key: &str, value: Box<RawValue>) {
        self.0.retain(|(name, _)| name != key);
        self.0.insert(0, (key.to_owned(), value));
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        members(deserializer).map(Object)
    }
}

/// Decodes the members of a JSON object in the order of the text, including duplicate keys.
pub fn members<'de, D, K, V>(deserializer: D) -> Result<Vec<(K, V)>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de>,
    V: Deserialize<'de>,
{
    struct Members<K, V>(PhantomData<(K, V)>);

    impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for Members<K, V> {
        type Value = Vec<(K, V)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(member) = map.next_entry()? {
                members.push(member);
            }
            Ok(members)
        }
    }

    deserializer.deserialize_map(Members(PhantomData))
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_a_key_removes_its_duplicates() {
        let mut object: Object = serde_json::from_str(r#"{"a":1,"b":2,"a":3}"#).unwrap();
        assert_eq!(object.get("a").unwrap().get(), "3");
        object.set("a", RawValue::from_string("4".into()).unwrap());
        assert_eq!(serde_json::to_string(&object).unwrap(), r#"{"a":4,"b":2}"#);
    }
}
