//! Where the agent's files are on the node, and what an uninstall leaves there.

use std::path::PathBuf;

use crate::conflist::chain_mode::ChainMode;
use crate::record;

#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Directory in the image with the plugin binaries to install.
    pub image_bin_dir: PathBuf,
    /// The host's CNI bin dir, as a path in the agent's container.
    pub bin_dir: PathBuf,
    /// The host's CNI net dir, as a path in the agent's container.
    pub net_dir: PathBuf,
    pub kubeconfig_name: String,
    /// The kubeconfig's path on the host, for the plugin entry.
    pub kubeconfig_on_host: String,
    /// How to chain the plugin (`LINKERD_CNI_CONF_NAME`, `LINKERD_CNI_CHAINED`,
    /// `LINKERD_CNI_OWN_CONFIG`).
    pub mode: ChainMode,
    /// Whether uninstall leaves the plugin binary on the host (`LINKERD_CNI_KEEP_BINARY`). Unset:
    /// only if CRI-O or Multus needs the binary to delete existing pods.
    pub keep_binary: Option<bool>,
    /// Directory that agent and plugin share (`LINKERD_CNI_RUN_DIR`), at the same path on the host and
    /// in the agent's container. `None`: the chart mounts none, as upstream's.
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
