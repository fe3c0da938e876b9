//! Chain modes: which network configs of the node get the plugin entry.

use super::net_dir::ConfigKind;

/// Default file name of a standalone config. The name starts with a letter, because the names of
/// other network configs in the CNI net dir usually start with a digit. So these sort first, and a
/// runtime, which loads the first file, does not load the standalone config. In Multus' directory
/// the order does not matter.
pub const STANDALONE: &str = "linkerd-cni.conf";

/// Which network configs get the plugin entry.
///
/// When the mode changes, which also happens when an agent with other settings starts, the agent
/// first writes the file of the new mode and then removes what the old mode left. So the plugin
/// stays chained all the time.
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
    /// Chooses the mode: [`ChainMode::Standalone`] unless `is_chained`, else [`ChainMode::Only`] if
    /// the settings name a network config (`conf_name`). Fails with the reason why `conf_name` is
    /// not a valid file name.
    pub fn choose(
        conf_name: Option<&str>,
        is_chained: bool,
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
        if !is_chained {
            return Ok(ChainMode::Standalone(conf_name.unwrap_or(STANDALONE).to_owned()));
        }
        match conf_name {
            Some(name) => Ok(ChainMode::Only(name.to_owned())),
            None => Ok(ChainMode::Every),
        }
    }

    /// Returns the name of the network config to which the mode restricts the plugin entry. `None`
    /// if the mode allows several network configs to have the entry.
    pub fn only_config(&self) -> Option<&str> {
        match self {
            ChainMode::Only(name) | ChainMode::Standalone(name) => Some(name),
            ChainMode::Every => None,
        }
    }

    /// Returns the name of the standalone config, if the mode has one.
    pub fn standalone_config(&self) -> Option<&str> {
        match self {
            ChainMode::Standalone(name) => Some(name),
            ChainMode::Every | ChainMode::Only(_) => None,
        }
    }
}
