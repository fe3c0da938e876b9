//! Chain modes: which network configs of the node get the plugin entry.

use super::net_dir::ConfigKind;

/// Default file name of a standalone config. In the CNI net dir, network configs usually start with
/// a digit, so a runtime loads them before this one. Multus ignores the order in its directory.
pub const STANDALONE: &str = "linkerd-cni.conf";

/// Default file name of the copy. It sorts before names that start with `01` or higher.
pub const COPY: &str = "00-linkerd-cni.conflist";

/// When the mode changes, also across a restart, the agent first writes the file of the new mode
/// and then removes what the old mode left. So the node stays chained in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainMode {
    /// Every conflist and `.conf`, as upstream does, and a `.json` if it is the active network
    /// config. The agent is ready once the active network config has the plugin entry.
    Every,
    /// Only this file, which may not exist yet. A `.conf` is replaced by a `.conflist` of its name.
    Only(String),
    /// A standalone config with this name, which another plugin calls after the primary CNI, such as
    /// Multus on OpenShift. The file belongs in Multus' directory. In the directory that the runtime
    /// reads, it could become the active network config, and pods would get no network.
    Standalone(String),
    /// A copy, with this name, of the network config that would be active without the copy. The copy
    /// follows the original, which is never written. While the original is invalid, for example half
    /// written, the copy stays unchanged. If the original is removed, so is the copy: a runtime must not
    /// load the config of a network that no longer exists.
    Copy(String),
}

impl ChainMode {
    /// `chained: false` wins over `chain_in_copy`, as a standalone config copies nothing. Fails
    /// with the reason why `conf_name` is not a valid file name in that mode.
    pub fn choose(
        conf_name: Option<&str>,
        chained: bool,
        chain_in_copy: bool,
        kubeconfig_name: &str,
    ) -> Result<ChainMode, &'static str> {
        let or = |default: &str| conf_name.unwrap_or(default).to_owned();
        let mode = match (conf_name, chained, chain_in_copy) {
            (_, false, _) => ChainMode::Standalone(or(STANDALONE)),
            (_, true, true) => ChainMode::Copy(or(COPY)),
            (Some(name), true, false) => ChainMode::Only(name.to_owned()),
            (None, true, false) => ChainMode::Every,
        };
        let Some(name) = conf_name else {
            return Ok(mode);
        };
        match (&mode, ConfigKind::from_file_name(name)) {
            (_, None) => Err("does not end in .conflist, .conf or .json, so no runtime loads it"),
            (ChainMode::Copy(_), Some(ConfigKind::Conf | ConfigKind::Json)) => {
                Err("does not end in .conflist, which the copy of a conflist needs")
            }
            _ if name == kubeconfig_name => Err("is the name of the kubeconfig"),
            _ => Ok(mode),
        }
    }

    /// Name of the file that only the agent writes, if the mode has one.
    pub fn own_config(&self) -> Option<&str> {
        match self {
            ChainMode::Standalone(name) | ChainMode::Copy(name) => Some(name),
            ChainMode::Every | ChainMode::Only(_) => None,
        }
    }
}
