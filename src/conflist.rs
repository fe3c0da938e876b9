//! The CNI net dir: parses network configs, adds and removes the plugin entry, plans the changes.
//!
//! A network config is never reserialised. The plugin entry is spliced into the text and cut out
//! of it. All other bytes stay: key order, number forms and white space. So unchaining restores
//! the conflist byte for byte.
//!
//! - [`Entry`]: the plugin entry, rendered from the chart's template
//! - [`Conflist`]: a conflist, with and without the plugin entry
//! - [`wrap`]: makes a conflist from a single plugin's `.conf` or `.json`
//! - [`plugin_entry`], [`plugin_types`], [`may_call_plugin`]: what a network config calls
//! - [`mode`]: in which files the plugin entry belongs
//! - [`net_dir`]: reads the network configs of the host
//! - [`plan`]: decides which files to write and to restore
//! - [`saved_state`]: original files, saved on the host for uninstall
//!
//! Only `net_dir` and `saved_state` access files.

mod calls;
mod document;
mod entry;
mod error;
#[cfg(test)]
mod generated;
pub mod mode;
pub mod net_dir;
mod object;
pub mod plan;
pub mod saved_state;
mod single;
#[cfg(test)]
mod tests;

pub use calls::{PluginEntry, may_call_plugin, plugin_entry, plugin_types};
pub use document::Conflist;
pub use entry::{Entry, PLACEHOLDER};
pub use error::Error;
pub use single::{conf_loadable, wrap};

/// `type` of the plugin entry, and file name of the plugin binary on the host.
pub const PLUGIN: &str = "linkerd-cni";
