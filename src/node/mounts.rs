//! The mounts of the node's directories. Writes to a stale one reach neither the container runtime nor
//! the plugin, so the agent then writes nothing more and fails `/live`.

use super::settings::NodeSettings;
use crate::files::MountedDir;

/// The mounts of the net dir, the bin dir and the run dir when this process started.
#[derive(Debug)]
pub struct Mounts(Vec<MountedDir>);

impl Mounts {
    pub fn at_start(settings: &NodeSettings) -> Mounts {
        let dirs = [Some(&settings.net_dir), Some(&settings.bin_dir), settings.run_dir.as_ref()];
        Mounts(dirs.into_iter().flatten().map(|dir| MountedDir::at_start(dir)).collect())
    }

    /// Says why one of the directories is no longer the node's, and what to do.
    pub fn stale(&self) -> Option<String> {
        self.0.iter().find_map(MountedDir::stale)
    }

    pub fn stale_net_dir(&self) -> Option<String> {
        self.0.first().and_then(MountedDir::stale)
    }
}
