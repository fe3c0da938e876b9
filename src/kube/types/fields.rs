//! Reads fields of objects, and drops what no program keeps.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::EnvVar;

pub(crate) fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    field: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

/// Rejects an object of an unexpected kind, e.g. a Status, which has metadata too. Objects in lists
/// have no kind.
fn kind<'de, D: Deserializer<'de>>(field: D, wanted: &str) -> Result<(), D::Error> {
    match Option::<Cow<'de, str>>::deserialize(field)? {
        Some(kind) if kind != wanted => {
            Err(D::Error::custom(format_args!("unexpected kind of object, expected {wanted}")))
        }
        _ => Ok(()),
    }
}

pub(super) fn pod<'de, D: Deserializer<'de>>(field: D) -> Result<(), D::Error> {
    kind(field, "Pod")
}

pub(super) fn namespace<'de, D: Deserializer<'de>>(field: D) -> Result<(), D::Error> {
    kind(field, "Namespace")
}

/// Keeps the proxy's listen addresses: a pod may have a megabyte of other variables.
pub(super) fn listen_addresses<'de, D: Deserializer<'de>>(env: D) -> Result<Vec<EnvVar>, D::Error> {
    let mut vars: Vec<EnvVar> = null_as_default(env)?;
    vars.retain(|EnvVar { name, .. }| {
        name.starts_with("LINKERD2_PROXY_") && name.contains("_LISTEN_ADDR")
    });
    Ok(vars)
}

/// Passes each element of a list to `each` before the next is read. Go encodes an empty list as `null`.
pub(crate) fn for_each<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    list: D,
    each: impl FnMut(T),
) -> Result<(), D::Error> {
    struct ForEach<T, F>(F, PhantomData<T>);

    impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for ForEach<T, F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a sequence")
        }

        fn visit_unit<E>(self) -> Result<(), E> {
            Ok(())
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
            while let Some(element) = list.next_element()? {
                (self.0)(element);
            }
            Ok(())
        }
    }

    list.deserialize_any(ForEach(each, PhantomData))
}
