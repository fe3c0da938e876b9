//! The agent's files on the node: plugin binaries, kubeconfig and plugin entries. Installs and
//! uninstalls them.

pub mod binaries;
pub mod leftovers;
pub mod lock;
pub mod settings;
pub mod steps;
pub mod uninstall;

use crate::conflist::net_dir::{self, ConfigFile};
use crate::conflist::saved_state::SavedState;
use crate::files::{self, MountedDir};
use settings::NodeSettings;

/// Words of each problem of contention. `linkerd cni check` finds these problems by them.
pub const OVERWRITTEN: &str = "keeps being overwritten by another writer";

/// What is read of the net dir once a reconcile pass.
pub struct Observed {
    pub configs: Vec<ConfigFile>,
    pub saved_state: SavedState,
}

pub fn observe(settings: &NodeSettings) -> Result<Observed, files::Error> {
    let dir = &settings.net_dir;
    let configs = net_dir::scan(dir, &settings.kubeconfig_name)?;
    Ok(Observed { configs, saved_state: SavedState::load(dir) })
}

/// The mounts of the net dir, the bin dir and the run dir when this process started. Writes to a stale
/// one reach neither the container runtime nor the plugin, so the agent then writes nothing more and
/// fails `/live`.
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
