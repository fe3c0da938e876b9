//! Errors of parsing network configs and the template of the plugin entry.

use super::PLUGIN;

/// Why a network config or the entry template is invalid. Messages never quote its content, which
/// can hold credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("is empty")]
    Empty,
    #[error("is not JSON (line {line}, column {column})")]
    Syntax { line: usize, column: usize },
    #[error("is not a JSON object")]
    NotObject,
    #[error("has no array \"plugins\"")]
    NoPlugins,
    #[error("has an empty array \"plugins\"")]
    EmptyPlugins,
    #[error("has a plugin that is not a JSON object")]
    PluginNotObject,
    #[error("has no plugin besides {PLUGIN}")]
    NoOtherPlugin,
    #[error("has no \"name\"")]
    NoName,
    #[error("has a plugin without \"type\"")]
    NoType,
    #[error("does not have the type \"{PLUGIN}\"")]
    WrongType,
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
