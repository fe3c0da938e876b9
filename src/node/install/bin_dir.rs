//! Checks whether the container runtime looks for plugins in the bin dir.

use std::path::Path;

use crate::conflist::net_dir::ConfigFile;
use crate::conflist::{PLUGIN, plan, plugin_types};
use crate::node::NodeSettings;

/// Whether the container runtime can find plugins in the bin dir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinDir {
    /// The runtime uses the bin dir, or there is no sign that it does not.
    Usable,
    /// The bin dir has no plugin of the active conflist, so the runtime may use another directory.
    /// The text says what to do.
    Doubtful(String),
    /// Like [`BinDir::Doubtful`], and the settings forbid to chain the plugin in that case.
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
    /// Looks for a plugin binary of an earlier agent. Call this before this agent installs its own.
    pub fn at_start(settings: &NodeSettings) -> BinDirCheck {
        let had_binary = settings.bin_dir.join(PLUGIN).symlink_metadata().is_ok();
        BinDirCheck { had_binary, is_used: false }
    }

    /// Checks whether the bin dir has a plugin of the active conflist. If it has none, the runtime
    /// probably uses another directory. This is not certain, because a runtime can use several
    /// directories (containerd's `bin_dirs`, CRI-O's `plugin_dirs`). If the agent cannot read the
    /// first network config, the first readable one is checked, to which the plugin is chained as
    /// well. `requires_plugins` says that the settings forbid to chain the plugin in doubt.
    ///
    /// The runtime certainly uses this bin dir if an earlier agent, perhaps upstream's, had chained
    /// the plugin and installed its binary there: the runtime has started the pod of this agent,
    /// and called that plugin for it.
    pub fn check(
        &mut self,
        settings: &NodeSettings,
        requires_plugins: bool,
        configs: &[ConfigFile],
    ) -> BinDir {
        let Some(active) = config_to_check(configs) else {
            return BinDir::Usable;
        };
        let bin_dir = &settings.bin_dir;
        let missing = missing_plugins(bin_dir, active);
        let is_chained = plan::chained_config(&settings.mode, configs).is_some();
        if is_chained && (self.had_binary || missing.is_empty()) {
            self.is_used = true;
        }
        if missing.is_empty() {
            return BinDir::Usable;
        }
        let why = format!(
            "{} names the plugins {}, but {} contains none of them: unless the runtime is \
             configured with several directories, it cannot find {PLUGIN} either; if the runtime \
             uses another directory, set the chart's platform or destCNIBinDir",
            active.name,
            missing.join(", "),
            bin_dir.display(),
        );
        if requires_plugins && !self.is_used {
            BinDir::Unusable(why)
        } else {
            BinDir::Doubtful(why)
        }
    }
}

/// Returns the network config through which the runtime calls plugins. If the agent cannot read the
/// first network config, returns the first readable one.
fn config_to_check(configs: &[ConfigFile]) -> Option<&ConfigFile> {
    if let Some(called) = plan::called_config(configs) {
        return Some(called);
    }
    plan::called_config(configs.iter().filter(|file| file.content.is_ok()))
}

/// Returns the plugins besides linkerd-cni that `config` names, if the bin dir contains none of
/// them. If it contains one, returns an empty list.
fn missing_plugins(bin_dir: &Path, config: &ConfigFile) -> Vec<String> {
    let mut plugins = plugin_types(config.text());
    // The type of a plugin is its file name. A type with a slash is not looked up here, because the
    // runtime rejects it.
    plugins.retain(|name| name != PLUGIN && !name.contains('/'));
    for name in &plugins {
        // A symbolic link counts even if its target is missing here: on k3s the plugins are links
        // into a directory that is not mounted in the agent's container.
        if bin_dir.join(name).symlink_metadata().is_ok() {
            return Vec::new();
        }
    }
    plugins
}
