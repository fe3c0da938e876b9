//! Decides in each pass which files of a newer agent or of an upstream agent stay in use.

use std::time::Instant;

use tracing::{info, warn};

use super::Reconciler;
use super::kubeconfig::needs_resolver;
use crate::agent::yielding::{OtherAgent, RESTORED_WITHIN, is_chained_by_upstream};
use crate::conflist::PLUGIN;
use crate::conflist::net_dir::{self, ConfigFile};
use crate::files;
use crate::node::NodeSettings;
use crate::node::binaries::Binaries;

impl Reconciler {
    /// Restores the kubeconfig of an upstream agent that chains the plugin. Returns whether one does.
    pub fn restore_upstream_kubeconfig(&self) -> bool {
        let node = &self.settings.node;
        let is_chained = net_dir::scan(&node.net_dir, &node.kubeconfig_name)
            .is_ok_and(|configs| is_chained_by_upstream(&node.mode, &configs, &self.entry));
        if is_chained && let Err(error) = self.upstream_kubeconfig.restore(&node.kubeconfig()) {
            warn!("{error}");
        }
        is_chained
    }

    /// Returns the agent whose plugin binary and kubeconfig on the host stay in use.
    ///
    /// An upstream agent's files stay only if the API server has a host name: upstream's kubeconfig
    /// has that name, which only upstream's plugin resolves. Upstream's agent writes the plugin
    /// only at its start, so the binary must survive the end of this agent, also by SIGKILL.
    pub(super) fn kept_files(&mut self, configs: &[ConfigFile]) -> Option<OtherAgent> {
        if self.record_socket.newer_agent_runs() {
            return Some(OtherAgent::Newer);
        }
        let settings = &self.settings;
        let bin_dir = &settings.node.bin_dir;
        if settings.api_name().is_none() || Binaries::executable(bin_dir, PLUGIN).is_none() {
            return None;
        }
        let stale = self.binaries.stale(&settings.node, &[PLUGIN.to_owned()]);
        if stale.is_ok_and(|stale| stale.is_empty()) {
            return None;
        }
        // Upstream's agent writes the binary first, and the plugin entry last.
        let changed = files::changed_at(&bin_dir.join(PLUGIN));
        let age = changed.and_then(|changed| changed.elapsed().ok());
        let now = Instant::now();
        if age.is_some_and(|age| age < RESTORED_WITHIN) || self.yielding.is_trying(now) {
            self.pass.schedule_next(now + RESTORED_WITHIN);
            return Some(OtherAgent::Upstream);
        }
        let is_kept = needs_resolver(settings)
            && is_chained_by_upstream(&settings.node.mode, configs, &self.entry);
        is_kept.then_some(OtherAgent::Upstream)
    }

    /// Decides whether the plugin entry of another agent stays in use, and logs a change. An
    /// attempt to write this agent's entry does not count as a change.
    pub(super) fn yield_entry(&mut self, configs: &[ConfigFile], kept: Option<OtherAgent>) {
        let now = Instant::now();
        let NodeSettings { kubeconfig_on_host, mode, .. } = &self.settings.node;
        let is_newer = kept == Some(OtherAgent::Newer);
        let yielded =
            self.yielding.choose(&self.entry, kubeconfig_on_host, mode, configs, is_newer, now);
        let (other, entry) = yielded.unzip();
        self.pass.yielded_entry = entry;
        if let Some(other) = other {
            self.pass.notes.push(other.describe().to_owned());
            self.yielding.until.into_iter().for_each(|at| self.pass.schedule_next(at));
        }
        if other == self.yields_to || other.is_none() && self.yielding.is_trying(now) {
            return;
        }
        match other {
            Some(other) => info!("{}", other.describe()),
            None => info!(
                "no other agent's plugin entry is in use; this agent manages the plugin again"
            ),
        }
        self.yields_to = other;
    }
}
