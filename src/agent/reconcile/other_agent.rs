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

/// What the agent remembers of other agents on the node.
pub struct OtherAgents {
    yielding: Yielding,
    pub upstream_kubeconfig: UpstreamKubeconfig,
    /// The other agent whose plugin entry stays in use, as logged last.
    logged: Option<OtherAgent>,
}

/// The agent whose plugin binary and kubeconfig on the host stay in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptFiles {
    pub agent: Option<OtherAgent>,
    /// When to decide again.
    pub until: Option<Instant>,
}

/// The plugin entry of another agent that stays in use.
#[derive(Debug)]
pub struct YieldedEntry {
    pub agent: OtherAgent,
    pub entry: Entry,
    /// When to decide again.
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

    /// Returns the agent whose plugin binary and kubeconfig on the host stay in use. `compared` are
    /// the plugin binaries that were compared, `own` is the plugin entry of this agent.
    ///
    /// An upstream agent's files stay only if the API server has a host name: upstream's kubeconfig
    /// has that name, which only upstream's plugin resolves. Upstream's agent writes the plugin
    /// only at its start, so the binary must survive the end of this agent, also by SIGKILL.
    pub fn kept_files(
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
        let stale = compared.stale(&settings.node, &[PLUGIN.to_owned()]);
        if stale.is_ok_and(|stale| stale.is_empty()) {
            return KeptFiles::default();
        }
        // Upstream's agent writes the binary first, and the plugin entry last.
        let changed = files::changed_at(&settings.node.bin_dir.join(PLUGIN));
        let age = changed.and_then(|changed| changed.elapsed().ok());
        let now = Instant::now();
        if age.is_some_and(|age| age < RESTORED_WITHIN) || self.yielding.is_trying(now) {
            let until = Some(now + RESTORED_WITHIN);
            return KeptFiles { agent: Some(OtherAgent::Upstream), until };
        }
        let configs = observed.configs_or_none();
        if observed.has_host_name() && is_chained_by_upstream(&settings.node.mode, configs, own) {
            return KeptFiles { agent: Some(OtherAgent::Upstream), until: None };
        }
        KeptFiles::default()
    }

    /// Decides whether another agent's plugin entry stays in use, and returns that entry. Logs each
    /// change of the decision, except while this agent only tries whether its own entry, `own`,
    /// stays in the conflist.
    pub fn decide_entry_in_use(
        &mut self,
        settings: &NodeSettings,
        newer_agent_runs: bool,
        own: &Entry,
        configs: &[ConfigFile],
    ) -> Option<YieldedEntry> {
        let now = Instant::now();
        let NodeSettings { kubeconfig_on_host, mode, .. } = settings;
        let chosen =
            self.yielding.choose(own, kubeconfig_on_host, mode, configs, newer_agent_runs, now);
        let Some((agent, entry)) = chosen else {
            if self.logged.is_some() && !self.yielding.is_trying(now) {
                info!(
                    "no other agent's plugin entry is in use; this agent manages the plugin again"
                );
                self.logged = None;
            }
            return None;
        };
        if self.logged != Some(agent) {
            info!("{}", agent.describe());
            self.logged = Some(agent);
        }
        Some(YieldedEntry { agent, entry, until: self.yielding.until })
    }

    /// Restores the kubeconfig of an upstream agent that chains the plugin. Returns whether one
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
