//! Finds signs that the configured net dir or bin dir is not the one of the node's runtime, whose
//! configuration is not visible to the agent.
//!
//! Without a network config in the net dir the agent is not ready.
//!
//! A bin dir without any plugin of the primary CNI is probably the wrong one. If a runtime
//! does not find a plugin of its network config, it can neither start nor stop pods. The agent
//! cannot be certain, because runtimes can use several bin dirs (containerd's `bin_dirs`,
//! CRI-O's `plugin_dirs`). So:
//! - The agent always logs a warning.
//! - With `LINKERD_CNI_REQUIRE_NETWORK_PLUGINS`, which this project's chart sets by default, it
//!   also does not chain the plugin.
//! - It chains all the same if an earlier agent chained the plugin from this bin dir: the
//!   runtime started this agent's pod through that chain.

use crate::conflist::net_dir::ConfigFile;
use crate::conflist::{PLUGIN, plugin_types};
use crate::node::settings::NodeSettings;

/// The remedy for a net dir without any network config.
pub const NO_NETWORK: &str = "if the runtime uses another directory, set the chart's platform or \
                              destCNINetDir";

/// Returns a warning with the remedy if the bin dir holds none of the plugins that the active
/// conflist `active` names. The agent's own plugin does not count.
pub fn no_plugins(settings: &NodeSettings, active: &ConfigFile) -> Option<String> {
    let mut plugins = plugin_types(active.text());
    // A plugin type is a file name. The runtime rejects a type with a slash.
    plugins.retain(|kind| kind != PLUGIN && !kind.contains('/'));
    // A symbolic link counts even if its target is missing here: on k3s the plugins are links
    // into a directory that is not mounted in the agent's container.
    let exists = |name: &String| settings.bin_dir.join(name).symlink_metadata().is_ok();
    if plugins.is_empty() || plugins.iter().any(exists) {
        return None;
    }
    Some(format!(
        "{} names the plugins {}, but {} contains none of them: unless the runtime is configured \
         with several directories, it cannot find {PLUGIN} either; if the runtime uses another \
         directory, set the chart's platform or destCNIBinDir",
        active.name,
        plugins.join(", "),
        settings.bin_dir.display(),
    ))
}
