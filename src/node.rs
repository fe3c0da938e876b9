//! The agent's files on the node: plugin binaries, kubeconfig and plugin entries.

pub mod binaries;
pub mod chain_digest;
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
pub mod withdrawal;

use std::path::{Path, PathBuf};

use crate::conflist::chain_mode::ChainMode;
use crate::files::{LinkedDir, MountedDir};
use crate::record;

/// Words in each message about contention. They are the same in the log, in `/ready` and in Events,
/// so that a search finds all of them.
pub const OVERWRITTEN: &str = "keeps being overwritten by another writer";

/// Where the agent's files are on the node, and how they are installed and uninstalled.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Directory in the image with the plugin binaries to install.
    pub image_bin_dir: PathBuf,
    /// Directory below which the node's directories are mounted in the agent's container.
    pub mount_prefix: PathBuf,
    /// The host's CNI net dir, as a path of the node.
    pub net_dir_on_node: PathBuf,
    /// The host's CNI bin dir, as a path of the node.
    pub bin_dir_on_node: PathBuf,
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
    /// `None` if the chart mounts no such directory. Upstream's chart mounts none.
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
    net_dir: CniDir,
    bin_dir: CniDir,
    run_dir: Option<MountedDir>,
}

/// A CNI directory of the node. It becomes stale if its mount does, or if a link on the way to the
/// directory leads elsewhere.
#[derive(Debug)]
struct CniDir {
    linked: LinkedDir,
    mounted: MountedDir,
}

impl CniDir {
    fn at_start(mount_prefix: &Path, on_node: &Path, mounted: &Path) -> CniDir {
        CniDir {
            linked: LinkedDir::at_start(mount_prefix, on_node),
            mounted: MountedDir::at_start(mounted),
        }
    }
}

impl Mounts {
    pub fn at_start(settings: &NodeSettings) -> Mounts {
        let NodeSettings { mount_prefix, net_dir, bin_dir, .. } = settings;
        Mounts {
            net_dir: CniDir::at_start(mount_prefix, &settings.net_dir_on_node, net_dir),
            bin_dir: CniDir::at_start(mount_prefix, &settings.bin_dir_on_node, bin_dir),
            run_dir: settings.run_dir.as_deref().map(MountedDir::at_start),
        }
    }

    /// Returns why one of the directories is no longer the node's, and what to do. `None` if all of
    /// them still are.
    pub fn stale(&self) -> Option<String> {
        let cni_dirs = [&self.net_dir, &self.bin_dir];
        for dir in cni_dirs {
            if let Some(why) = dir.linked.moved_reason() {
                return Some(why);
            }
        }
        for dir in cni_dirs {
            if let Some(why) = dir.mounted.stale_reason() {
                return Some(why);
            }
        }
        self.run_dir.as_ref()?.stale_reason()
    }

    /// Returns why the net dir is no longer the node's, and what to do. `None` if it still is.
    pub fn stale_net_dir(&self) -> Option<String> {
        if let Some(why) = self.net_dir.linked.moved_reason() {
            return Some(why);
        }
        self.net_dir.mounted.stale_reason()
    }
}
