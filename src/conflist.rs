//! The CNI net dir: parses network configs, adds and removes the plugin entry, plans the changes.
//!
//! A network config is never reserialised. The plugin entry is spliced into the text and cut out
//! of it. All other bytes stay: key order, number forms and white space. So unchaining restores
//! the conflist byte for byte.
//!
//! Only `net_dir` and `saved_state` access files. All other modules here work on text.

mod borrowed_object;
pub mod chain_mode;
mod entry;
pub mod net_dir;
pub mod plan;
pub mod saved_state;
mod splice;
#[cfg(test)]
mod tests;

pub use entry::{Entry, PLACEHOLDER};
pub use splice::{
    ChainedEntry, Conflist, check_conf_loadable, plugin_entries, plugin_entry, plugin_types, wrap,
};

/// `type` of the plugin entry, and file name of the plugin binary on the host.
pub const PLUGIN: &str = "linkerd-cni";

/// Why a network config or the entry template is invalid. Each message continues a sentence that
/// starts with the name of the file. No message quotes the content of the file, because a network
/// config can hold credentials.
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
    #[error(
        "has a list \"plugins\", which runtimes load only from a file whose name ends in .conflist"
    )]
    ListInConf,
    #[error("does not have the type \"{PLUGIN}\"")]
    WrongType,
}
