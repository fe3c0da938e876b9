//! The mounts of the node's directories. Writes to a stale one reach neither the container runtime nor
//! the plugin, so the agent then writes nothing more and fails `/live`.

use super::settings::NodeSettings;
use crate::files::MountedDir;

/// The mounts of these directories when this process started.
#[derive(Debug)]
pub struct Mounts {
    net_dir: MountedDir,
    bin_dir: MountedDir,
    run_dir: Option<MountedDir>,
}

impl Mounts {
    pub fn at_start(settings: &NodeSettings) -> Mounts {
        Mounts {
            net_dir: MountedDir::at_start(&settings.net_dir),
            bin_dir: MountedDir::at_start(&settings.bin_dir),
            run_dir: settings.run_dir.as_deref().map(MountedDir::at_start),
        }
    }

    /// Says why one of the directories is no longer the node's, and what to do.
    pub fn stale(&self) -> Option<String> {
        let run_dir = || self.run_dir.as_ref()?.stale();
        self.stale_net_dir().or_else(|| self.stale_bin_dir()).or_else(run_dir)
    }

    pub fn stale_net_dir(&self) -> Option<String> {
        self.net_dir.stale()
    }

    pub fn stale_bin_dir(&self) -> Option<String> {
        self.bin_dir.stale()
    }
}
