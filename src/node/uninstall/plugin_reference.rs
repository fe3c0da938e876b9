//! Finds out whether a network config in the CNI net dir names the plugin.

use std::path::{Path, PathBuf};

use crate::conflist::net_dir::{self, ConfigFile};
use crate::conflist::plan;
use crate::conflist::saved_state::SavedState;

/// Whether a network config in the CNI net dir names the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginReference {
    /// No network config names the plugin.
    Missing,
    /// This network config has a plugin entry that [`plan::unchain`] can remove.
    Removable(PathBuf),
    /// This network config names the plugin, or may name it, in a way that this agent cannot undo.
    /// It is unreadable, half written, or has a copy of a conflist inside another config.
    Foreign(PathBuf),
}

/// Returns the reference in one of the network configs `found` in `dir`. Configs that Cilium has
/// renamed do not count, because no runtime loads them.
pub fn find(dir: &Path, found: &[ConfigFile], saved_state: &SavedState) -> PluginReference {
    let is_named =
        |file: &&ConfigFile| file.split_name().1.is_empty() && net_dir::may_name_plugin(file);
    let named: Vec<&ConfigFile> = found.iter().filter(is_named).collect();
    let steps = plan::unchain(found, saved_state);
    let can_unchain = |file: &&&ConfigFile| steps.iter().any(|step| step.target() == file.name);
    match (named.iter().find(can_unchain), named.first()) {
        (Some(file), _) => PluginReference::Removable(dir.join(&file.name)),
        (None, Some(file)) => PluginReference::Foreign(dir.join(&file.name)),
        (None, None) => PluginReference::Missing,
    }
}
