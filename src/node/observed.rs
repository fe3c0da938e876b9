//! The agent's files on the node, as a reconcile pass finds them.

use super::NodeSettings;
use super::binaries::Binaries;
use crate::conflist::PLUGIN;
use crate::conflist::net_dir::{self, ConfigFile, may_call_plugin};
use crate::conflist::saved_state::SavedState;
use crate::files;
use crate::kube::kubeconfig::{self, ApiAccess};

/// What a pass finds on the node before it writes.
pub struct Observed {
    /// The network configs, or why the net dir cannot be read.
    pub configs: Result<Vec<ConfigFile>, files::Error>,
    pub saved: SavedState,
    /// Whether the bin dir has an executable plugin binary, of this project or of upstream.
    pub has_plugin: bool,
    /// The kubeconfig on the host, if there is one and it is valid.
    kubeconfig: Option<ApiAccess>,
}

impl Observed {
    pub fn read(settings: &NodeSettings) -> Observed {
        Observed {
            configs: net_dir::scan(&settings.net_dir, &settings.kubeconfig_name),
            saved: SavedState::load(&settings.net_dir),
            has_plugin: Binaries::executable_stamp(&settings.bin_dir.join(PLUGIN)).is_some(),
            kubeconfig: kubeconfig::read(&settings.kubeconfig()).ok(),
        }
    }

    /// Returns whether nothing is installed on the node: no kubeconfig with a token, and no plugin
    /// entry in the network configs. False if the net dir cannot be read, because a network config
    /// there may have a plugin entry.
    pub fn is_empty(&self) -> bool {
        let Ok(configs) = &self.configs else {
            return false;
        };
        let calls_plugin = configs.iter().any(|config| may_call_plugin(config.text()));
        !calls_plugin && self.token().is_none()
    }

    /// Returns whether a network config that can be read has a plugin entry.
    pub fn has_plugin_entry(&self) -> bool {
        self.configs_or_none().iter().any(|config| config.plugin_entry().is_some())
    }

    /// Returns the network configs of the net dir. Returns none if the net dir cannot be read.
    pub fn configs_or_none(&self) -> &[ConfigFile] {
        match &self.configs {
            Ok(configs) => configs,
            Err(_) => &[],
        }
    }

    /// Returns the token in the kubeconfig. The token may belong to any ServiceAccount, and may
    /// have expired.
    pub fn token(&self) -> Option<&str> {
        let token = self.kubeconfig.as_ref()?.token.as_deref()?;
        if token.is_empty() { None } else { Some(token) }
    }

    /// Returns whether the kubeconfig has a host name, like that of upstream's agent.
    pub fn has_host_name(&self) -> bool {
        self.kubeconfig.as_ref().is_some_and(has_host_name)
    }
}

/// Returns whether `kubeconfig` has a host name, which the plugin of this project does not resolve.
pub fn has_host_name(kubeconfig: &ApiAccess) -> bool {
    kubeconfig.address().is_none()
}
