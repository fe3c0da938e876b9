//! Decides in each pass which files of a newer agent or of an upstream agent stay in use.

use std::time::Instant;

use tracing::{info, warn};

use crate::agent::settings::Settings;
use crate::agent::yielding::{OtherAgent, RESTORED_WITHIN, Yielding, is_chained_by_upstream};
use crate::conflist::net_dir::{self, ConfigFile};
use crate::conflist::{Entry, PLUGIN};
use crate::files;
use crate::node::NodeSettings;
use crate::node::binaries::Binaries;
use crate::node::observed::Observed;
use crate::node::upstream_kubeconfig::UpstreamKubeconfig;

/// What this agent remembers of other agents on the node.
pub struct OtherAgents {
    yielding: Yielding,
    pub upstream_kubeconfig: UpstreamKubeconfig,
    /// The other agent whose plugin entry is in use according to the log.
    logged: Option<OtherAgent>,
}

/// Decision whether another agent's plugin binary and kubeconfig on the host stay in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptFiles {
    /// The agent whose files stay in use. `None` if this agent writes its own.
    pub agent: Option<OtherAgent>,
    /// When to decide again. `None` if there is no such time.
    pub until: Option<Instant>,
}

/// The plugin entry of another agent that stays in use.
#[derive(Debug)]
pub struct YieldedEntry {
    pub agent: OtherAgent,
    pub entry: Entry,
    /// When to decide again. `None` if there is no such time.
    pub until: Option<Instant>,
}

impl OtherAgents {
    pub fn new(settings: &Settings) -> OtherAgents {
        OtherAgents {
            yielding: Yielding::new(settings.resync),
            upstream_kubeconfig: UpstreamKubeconfig::default(),
            logged: None,
        }
    }

    /// Decides whether another agent's plugin binary and kubeconfig on the host stay in use. `own`
    /// is the plugin entry of this agent.
    ///
    /// The files of a newer agent stay. The files of an upstream agent stay only if the settings
    /// name the API server by a host name. Upstream's kubeconfig then has that name, which only
    /// upstream's plugin resolves. This agent must not overwrite that plugin, because upstream's
    /// agent writes it only at its start. If this agent were killed, nobody would restore the
    /// plugin.
    pub fn decide_kept_files(
        &self,
        settings: &Settings,
        newer_agent_runs: bool,
        compared: &mut Binaries,
        own: &Entry,
        observed: &Observed,
    ) -> KeptFiles {
        if newer_agent_runs {
            return KeptFiles { agent: Some(OtherAgent::Newer), until: None };
        }
        if settings.api_name().is_none() || !observed.has_plugin {
            return KeptFiles::default();
        }
        if is_own_plugin_on_host(&settings.node, compared) {
            return KeptFiles::default();
        }
        // Another plugin is on the host. If it was written just now, an upstream agent is probably
        // installing: it writes the binary first and the plugin entry last. Its entry may follow.
        let now = Instant::now();
        if was_plugin_just_written(&settings.node) || self.yielding.is_trying(now) {
            let until = Some(now + RESTORED_WITHIN);
            return KeptFiles { agent: Some(OtherAgent::Upstream), until };
        }
        let configs = observed.configs_or_none();
        if observed.has_host_name() && is_chained_by_upstream(&settings.node.mode, configs, own) {
            return KeptFiles { agent: Some(OtherAgent::Upstream), until: None };
        }
        KeptFiles::default()
    }

    /// Decides whether another agent's plugin entry stays in use, and returns that entry. `own` is
    /// the plugin entry of this agent. Logs each change of the decision, but not while this agent
    /// has written its own entry only to find out whether an upstream agent overwrites it.
    pub fn decide_entry_in_use(
        &mut self,
        settings: &NodeSettings,
        newer_agent_runs: bool,
        own: &Entry,
        configs: &[ConfigFile],
    ) -> Option<YieldedEntry> {
        let now = Instant::now();
        let NodeSettings { kubeconfig_on_host, mode, .. } = settings;
        let entry_in_use =
            self.yielding.choose(own, kubeconfig_on_host, mode, configs, newer_agent_runs, now);
        let Some((agent, entry)) = entry_in_use else {
            if !self.yielding.is_trying(now) {
                self.log_end_of_yielding();
            }
            return None;
        };
        if self.logged != Some(agent) {
            info!("{}", agent.describe());
            self.logged = Some(agent);
        }
        Some(YieldedEntry { agent, entry, until: self.yielding.until })
    }

    /// Logs that this agent manages the plugin again, if the log says that another agent does.
    fn log_end_of_yielding(&mut self) {
        if self.logged.take().is_some() {
            info!("no other agent's plugin entry is in use; this agent manages the plugin again");
        }
    }

    /// Restores the kubeconfig of an upstream agent if one chains the plugin. Returns whether one
    /// does.
    pub fn restore_upstream_kubeconfig(&self, settings: &NodeSettings, own: &Entry) -> bool {
        let Ok(configs) = net_dir::scan(&settings.net_dir, &settings.kubeconfig_name) else {
            return false;
        };
        if !is_chained_by_upstream(&settings.mode, &configs, own) {
            return false;
        }
        if let Err(error) = self.upstream_kubeconfig.restore(&settings.kubeconfig()) {
            warn!("{error}");
        }
        true
    }
}

/// Returns whether the plugin binary on the host is that of this agent's image.
fn is_own_plugin_on_host(settings: &NodeSettings, compared: &mut Binaries) -> bool {
    match compared.stale(settings, &[PLUGIN.to_owned()]) {
        Ok(stale) => stale.is_empty(),
        Err(_) => false,
    }
}

/// Returns whether the plugin binary on the host was written within [`RESTORED_WITHIN`]. A time in
/// the future does not count: the node's clock was set back since.
fn was_plugin_just_written(settings: &NodeSettings) -> bool {
    let Some(written) = files::changed_at(&settings.bin_dir.join(PLUGIN)) else {
        return false;
    };
    match written.elapsed() {
        Ok(age) => age < RESTORED_WITHIN,
        Err(_) => false,
    }
}
