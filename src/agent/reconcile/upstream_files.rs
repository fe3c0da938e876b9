//! Keeps or restores the plugin binary and the kubeconfig of an upstream agent on the same node.

use std::time::Instant;

use tracing::warn;

use super::Reconciler;
use super::pass_result::PassResult;
use crate::agent::credential;
use crate::agent::upstream_kubeconfig;
use crate::agent::yielding::RESTORED_WITHIN;
use crate::conflist::PLUGIN;
use crate::conflist::net_dir;
use crate::files;

impl Reconciler {
    /// Restores the kubeconfig of an upstream agent if such an agent chains the plugin on this
    /// node. Returns whether one does.
    pub fn restore_upstream_kubeconfig(&self) -> bool {
        if !self.is_chained_by_upstream() {
            return false;
        }
        if let Err(error) = self.upstream_kubeconfig.restore(&self.settings.kubeconfig()) {
            warn!("{error}");
        }
        true
    }

    /// Returns whether the plugin binary and the kubeconfig on the host stay in use, because they may
    /// be those of a running upstream agent.
    ///
    /// Only if the API server has a host name. Upstream's kubeconfig has that name, which the plugin
    /// in the image does not resolve, and upstream's agent writes its plugin binary only when it
    /// starts. So its binary must still be there when this agent ends first, also by SIGKILL.
    pub(super) fn keeps_upstream_files(&mut self, pass: &mut PassResult) -> bool {
        if self.settings.api_name().is_none() {
            return false;
        }
        let stale = self.binaries.stale(&self.settings.node, &[PLUGIN.to_owned()]);
        if stale.is_ok_and(|stale| stale.is_empty()) {
            return false;
        }
        // Upstream's agent writes the binary first, and the plugin entry last.
        let changed = files::changed_at(&self.settings.node.bin_dir.join(PLUGIN));
        let age = changed.and_then(|changed| changed.elapsed().ok());
        let now = Instant::now();
        if age.is_some_and(|age| age < RESTORED_WITHIN) || self.yielding.is_trying(now) {
            pass.schedule_next(now + RESTORED_WITHIN);
            return true;
        }
        credential::needs_resolver(&self.settings) && self.is_chained_by_upstream()
    }

    /// Returns whether an upstream agent chains the plugin on this node.
    fn is_chained_by_upstream(&self) -> bool {
        let found = net_dir::scan(&self.settings.node.net_dir, &self.settings.node.kubeconfig_name);
        found.is_ok_and(|found| upstream_kubeconfig::is_chained_by_upstream(&found, &self.entry))
    }
}
