//! Checks whether the container runtime looks for plugins in the bin dir.

use std::path::Path;

use crate::conflist::net_dir::ConfigFile;
use crate::conflist::{PLUGIN, plan, plugin_types};
use crate::node::NodeSettings;

/// What is known about the bin dir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinDir {
    /// The runtime uses the bin dir, or there is no sign that it does not.
    Usable,
    /// The bin dir has no plugin of the active conflist. The text says what to do.
    Doubtful(String),
    /// The bin dir has no plugin of the active conflist, and the settings forbid to chain the
    /// plugin in that case. The text says what to do.
    Unusable(String),
}

/// Checks the bin dir, and remembers for the agent's lifetime whether the runtime uses it.
#[derive(Debug)]
pub struct BinDirCheck {
    /// Whether the bin dir had the plugin binary when the agent started.
    had_binary: bool,
    /// Whether the runtime is known to look for plugins in the bin dir. Never reset: the
    /// runtime's configuration does not change with a conflist.
    is_used: bool,
}

impl BinDirCheck {
    /// Call it before the agent installs the plugin binary.
    pub fn at_start(settings: &NodeSettings) -> BinDirCheck {
        let had_binary = settings.bin_dir.join(PLUGIN).symlink_metadata().is_ok();
        BinDirCheck { had_binary, is_used: false }
    }

    /// Checks whether the bin dir holds a plugin of the active conflist. If it holds none, it is
    /// probably the wrong one, but runtimes can use more (containerd's `bin_dirs`, CRI-O's
    /// `plugin_dirs`). If the agent cannot read the first config, it checks the next, which is
    /// chained as well. `requires_plugins`: the settings forbid to chain the plugin in doubt.
    ///
    /// The runtime certainly uses this bin dir if an earlier agent, also upstream's, chained the
    /// plugin from it: the runtime started this agent's own pod through that chain.
    pub fn check(
        &mut self,
        settings: &NodeSettings,
        requires_plugins: bool,
        configs: &[ConfigFile],
    ) -> BinDir {
        let readable = configs.iter().filter(|file| file.content.is_ok());
        let active = plan::called_config(configs).or_else(|| plan::called_config(readable));
        let Some(active) = active else {
            return BinDir::Usable;
        };
        let bin_dir = &settings.bin_dir;
        let plugins = missing_plugins(bin_dir, active);
        if (self.had_binary || plugins.is_empty())
            && plan::chained_config(&settings.mode, configs).is_some()
        {
            self.is_used = true;
        }
        if plugins.is_empty() {
            return BinDir::Usable;
        }
        let why = format!(
            "{} names the plugins {}, but {} contains none of them: unless the runtime is \
             configured with several directories, it cannot find {PLUGIN} either; if the runtime \
             uses another directory, set the chart's platform or destCNIBinDir",
            active.name,
            plugins.join(", "),
            bin_dir.display(),
        );
        if requires_plugins && !self.is_used {
            BinDir::Unusable(why)
        } else {
            BinDir::Doubtful(why)
        }
    }
}

/// Returns the other plugins that `config` names, if the bin dir contains none of them. Otherwise
/// an empty list.
fn missing_plugins(bin_dir: &Path, config: &ConfigFile) -> Vec<String> {
    let mut plugins = plugin_types(config.text());
    // A plugin type is a file name. The runtime rejects a type with a slash.
    plugins.retain(|kind| kind != PLUGIN && !kind.contains('/'));
    for name in &plugins {
        // A symbolic link counts even if its target is missing here: on k3s the plugins are links
        // into a directory that is not mounted in the agent's container.
        if bin_dir.join(name).symlink_metadata().is_ok() {
            return Vec::new();
        }
    }
    plugins
}
