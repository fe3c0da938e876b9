//! Chain modes: which network configs of the node get the plugin entry.

use super::net_dir::ConfigKind;

/// Default file name of a standalone config. In the CNI net dir, network configs usually start with
/// a digit, so a runtime loads them before this one. Multus ignores the order in its directory.
pub const STANDALONE: &str = "linkerd-cni.conf";

/// Which network configs get the plugin entry.
///
/// When the mode changes, also across a restart, the agent first writes the file of the new mode
/// and then removes what the old mode left. So the node stays chained in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainMode {
    /// Every conflist and `.conf`, as upstream does, and a `.json` if it is the active network
    /// config. The agent is ready once the active network config has the plugin entry.
    Every,
    /// Only this file, which may not exist yet. A `.conf` is replaced by a `.conflist` of its name.
    Only(String),
    /// A standalone config with this name, which another plugin calls after the primary CNI, such
    /// as Multus on OpenShift. The file belongs in Multus' directory. In the directory that the
    /// runtime reads, it could become the active network config, and pods would get no network.
    Standalone(String),
}

impl ChainMode {
    /// Chooses the mode of the settings. Fails with the reason why `conf_name` is not a valid file
    /// name.
    pub fn choose(
        conf_name: Option<&str>,
        chained: bool,
        kubeconfig_name: &str,
    ) -> Result<ChainMode, &'static str> {
        if let Some(name) = conf_name {
            if ConfigKind::from_file_name(name).is_none() {
                return Err("does not end in .conflist, .conf or .json, so no runtime loads it");
            }
            if name == kubeconfig_name {
                return Err("is the name of the kubeconfig");
            }
        }
        if !chained {
            return Ok(ChainMode::Standalone(conf_name.unwrap_or(STANDALONE).to_owned()));
        }
        match conf_name {
            Some(name) => Ok(ChainMode::Only(name.to_owned())),
            None => Ok(ChainMode::Every),
        }
    }

    /// Returns the name of the only network config that has the plugin entry. `None`: there may be
    /// several.
    pub fn only(&self) -> Option<&str> {
        match self {
            ChainMode::Only(name) | ChainMode::Standalone(name) => Some(name),
            ChainMode::Every => None,
        }
    }

    /// Returns the name of the standalone config, if the mode has one.
    pub fn standalone(&self) -> Option<&str> {
        match self {
            ChainMode::Standalone(name) => Some(name),
            ChainMode::Every | ChainMode::Only(_) => None,
        }
    }
}
