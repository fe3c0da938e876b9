//! Reads what is known of a saved state that is damaged or of a newer format.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::SavedState;

/// The members of every format, with values of any form.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Members {
    lists: BTreeMap<String, Value>,
    own: BTreeMap<String, Value>,
}

/// Returns the known part of the saved state `bytes`, and why the rest is unknown.
///
/// An original that is misread does no harm: it is restored only over a conflist that matches it.
pub(super) fn parse(bytes: &[u8]) -> (SavedState, &'static str) {
    let Ok(members) = serde_json::from_slice::<Members>(bytes) else {
        return (SavedState::default(), "is damaged");
    };
    let saved = SavedState {
        originals: known(members.lists),
        own_configs: known(members.own),
        ..SavedState::default()
    };
    (saved, "is damaged or of a newer format, so only a part of it is used")
}

/// Returns the elements of the form `T`.
fn known<T: serde::de::DeserializeOwned>(elements: BTreeMap<String, Value>) -> BTreeMap<String, T> {
    let elements = elements.into_iter();
    elements.filter_map(|(name, value)| Some((name, serde_json::from_value(value).ok()?))).collect()
}
