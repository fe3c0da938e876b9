//! The CNI net dir: parses network configs, adds and removes the plugin entry, plans the changes.
//!
//! A network config is never reserialised. The plugin entry is spliced into the text and cut out
//! of it. All other bytes stay: key order, number forms and white space. So unchaining restores
//! the conflist byte for byte.
//!
//! - [`Entry`]: the plugin entry, rendered from the chart's template
//! - [`Conflist`]: adds the plugin entry to a conflist and removes it
//! - [`wrap`]: makes a conflist from a single plugin's `.conf` or `.json`
//! - [`plugin_entry`], [`plugin_types`], [`may_call_plugin`]: which plugins a network config calls
//! - [`chain_mode`]: the network configs that get the plugin entry
//! - [`net_dir`]: reads the network configs of the host, in the order in which runtimes try them
//! - [`plan`]: the active network config, and the files to write and to restore
//! - [`saved_state`]: original files, saved on the host for uninstall
//!
//! Only `net_dir` and `saved_state` access files.

mod borrowed_object;
mod called_plugins;
pub mod chain_mode;
mod conf;
mod entry;
mod error;
pub mod net_dir;
pub mod plan;
pub mod saved_state;
mod splice;
#[cfg(test)]
mod tests;

pub use called_plugins::{ChainedEntry, may_call_plugin, plugin_entry, plugin_types};
pub use conf::{check_conf_loadable, wrap};
pub use entry::{Entry, PLACEHOLDER};
pub use error::Error;
pub use splice::Conflist;

/// `type` of the plugin entry, and file name of the plugin binary on the host.
pub const PLUGIN: &str = "linkerd-cni";
