//! The agent's files on the node: plugin binaries, kubeconfig and plugin entries.

pub mod binaries;
pub mod contention;
pub mod failed_uninstall;
pub mod install;
pub mod leftovers;
pub mod lock;
pub mod network_config_steps;
pub mod observed;
pub mod plugin_call;
pub mod uninstall;
pub mod upstream_kubeconfig;

use std::path::PathBuf;

use crate::conflist::chain_mode::ChainMode;
use crate::files::{LinkedDir, MountedDir};
use crate::record;

/// Words of each message about contention, the same in the log, in `/ready` and in Events.
pub const OVERWRITTEN: &str = "keeps being overwritten by another writer";

/// Where the agent's files are on the node, and what an uninstall leaves there.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Directory in the image with the plugin binaries to install.
    pub image_bin_dir: PathBuf,
    /// Directory below which the node's directories are mounted in the agent's container.
    pub mount_prefix: PathBuf,
    /// The CNI net dir and the CNI bin dir, as paths of the node.
    pub dirs_on_node: [PathBuf; 2],
    /// The host's CNI bin dir, as a path in the agent's container.
    pub bin_dir: PathBuf,
    /// The host's CNI net dir, as a path in the agent's container.
    pub net_dir: PathBuf,
    pub kubeconfig_name: String,
    /// The kubeconfig's path on the host, for the plugin entry.
    pub kubeconfig_on_host: String,
    /// `LINKERD_CNI_CONF_NAME` and `LINKERD_CNI_CHAINED`.
    pub mode: ChainMode,
    /// Whether uninstall leaves the plugin binary on the host (`LINKERD_CNI_KEEP_BINARY`). Unset:
    /// only if CRI-O or Multus needs the binary to delete existing pods.
    pub keep_binary: Option<bool>,
    /// Directory that agent and plugin share (`LINKERD_CNI_RUN_DIR`), at the same path on the host.
    /// `None`: the chart mounts none, as upstream's.
    pub run_dir: Option<PathBuf>,
}

impl NodeSettings {
    pub fn record_socket(&self) -> PathBuf {
        record::socket_path(self.run_dir.as_deref(), &self.net_dir)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.net_dir.join(&self.kubeconfig_name)
    }
}

/// The mounts of net dir, bin dir and run dir at the start. Writes to a stale mount reach neither
/// runtime nor plugin, so the agent then stops writing and fails `/live`.
#[derive(Debug)]
pub struct Mounts {
    mounted: Vec<MountedDir>,
    /// Net dir and bin dir, to which links may lead.
    linked: Vec<LinkedDir>,
}

impl Mounts {
    pub fn at_start(settings: &NodeSettings) -> Mounts {
        let dirs = [Some(&settings.net_dir), Some(&settings.bin_dir), settings.run_dir.as_ref()];
        let prefix = &settings.mount_prefix;
        Mounts {
            mounted: dirs.into_iter().flatten().map(|dir| MountedDir::at_start(dir)).collect(),
            linked: settings
                .dirs_on_node
                .iter()
                .map(|dir| LinkedDir::at_start(prefix, dir))
                .collect(),
        }
    }

    /// Says why one of the directories is no longer the node's, and what to do.
    pub fn stale(&self) -> Option<String> {
        let moved = self.linked.iter().find_map(LinkedDir::moved);
        moved.or_else(|| self.mounted.iter().find_map(MountedDir::stale))
    }

    pub fn stale_net_dir(&self) -> Option<String> {
        let moved = self.linked.first().and_then(LinkedDir::moved);
        moved.or_else(|| self.mounted.first().and_then(MountedDir::stale))
    }
}
