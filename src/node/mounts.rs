//! The mounts of the CNI directories. Writes to a stale one do not reach the container runtime, so the
//! agent then writes nothing more and fails `/live`.

use super::settings::NodeSettings;
use crate::files::MountedDir;

/// The mounts of the CNI directories when this process started.
#[derive(Debug)]
pub struct Mounts {
    net_dir: MountedDir,
    bin_dir: MountedDir,
}

impl Mounts {
    pub fn at_start(settings: &NodeSettings) -> Mounts {
        Mounts {
            net_dir: MountedDir::at_start(&settings.net_dir),
            bin_dir: MountedDir::at_start(&settings.bin_dir),
        }
    }

    /// Says why the net dir or the bin dir is no longer the node's, and what to do.
    pub fn stale(&self) -> Option<String> {
        self.stale_net_dir().or_else(|| self.stale_bin_dir())
    }

    pub fn stale_net_dir(&self) -> Option<String> {
        self.net_dir.stale()
    }

    pub fn stale_bin_dir(&self) -> Option<String> {
        self.bin_dir.stale()
    }
}
