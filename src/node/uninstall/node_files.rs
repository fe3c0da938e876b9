//! Removes the kubeconfig, the plugin binaries and the saved state.
//!
//! The files are first renamed, so that they can be put back at once. They are removed only if no
//! network config names the plugin while they are renamed.

use std::path::PathBuf;

use tracing::{info, warn};

use crate::conflist::PLUGIN;
use crate::conflist::saved_state;
use crate::conflist::saved_state::{SavedState, StateFile, aside};
use crate::files;
use crate::files::StagedRemoval;
use crate::node::binaries::Binaries;
use crate::node::settings::NodeSettings;

/// The files under their temporary names, in the order of removal.
pub struct NodeFiles<'s> {
    settings: &'s NodeSettings,
    removals: Vec<StagedRemoval>,
}

/// Returns all files that an uninstall removes, in the order of removal. `keep_binary`: the plugin
/// binary stays.
pub fn paths(settings: &NodeSettings, saved_state: &SavedState, keep_binary: bool) -> Vec<PathBuf> {
    let binaries = Binaries::in_image(settings).unwrap_or_else(|_| vec![PLUGIN.to_owned()]);
    let binaries = binaries.iter().filter(|name| !keep_binary || *name != PLUGIN);
    let binaries = binaries.map(|name| settings.bin_dir.join(name));
    let mut paths: Vec<PathBuf> = [settings.kubeconfig()].into_iter().chain(binaries).collect();
    // Saved state that this agent cannot read or does not know is kept: a later uninstall may be
    // able to read it and restore the original files.
    if saved_state.file == StateFile::Usable {
        paths.push(settings.net_dir.join(saved_state::NAME));
    }
    paths.extend(aside::known_and_unknown(&settings.net_dir).0);
    paths
}

/// Whether any of the files `paths` exists.
pub fn exist(paths: &[PathBuf]) -> bool {
    paths.iter().any(|path| !matches!(files::metadata(path), Ok(None)))
}

impl<'s> NodeFiles<'s> {
    /// Renames the files `paths` to temporary names.
    pub fn stage(
        settings: &'s NodeSettings,
        paths: Vec<PathBuf>,
        failures: &mut Vec<String>,
    ) -> NodeFiles<'s> {
        let mut removals = Vec::new();
        for path in paths {
            match StagedRemoval::start(&path) {
                Ok(removal) => removals.extend(removal),
                Err(error) => failures.push(error.to_string()),
            }
        }
        NodeFiles { settings, removals }
    }

    /// Renames all files back, in the order of an install.
    pub fn undo(self, failures: &mut Vec<String>) {
        let results: Vec<_> = self.removals.iter().rev().map(StagedRemoval::undo).collect();
        let synced = self.removals.iter().map(StagedRemoval::sync);
        for error in results.into_iter().chain(synced).filter_map(Result::err) {
            warn!("{error}");
            failures.push(error.to_string());
        }
    }

    /// Removes all files.
    pub fn finish(self, failures: &mut Vec<String>) {
        let state = self.settings.net_dir.join(saved_state::NAME);
        for removal in self.removals {
            let path = removal.path().to_owned();
            match removal.finish() {
                Ok(()) if path == state => {}
                Ok(()) => info!("removed {}", path.display()),
                Err(error) => failures.push(error.to_string()),
            }
        }
        for copy in aside::known_and_unknown(&self.settings.net_dir).1 {
            warn!("{} is kept: it holds saved state that this agent does not know", copy.display());
        }
    }
}
