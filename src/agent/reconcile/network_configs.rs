//! Reconciles the network configs in the net dir: plans the changes, and applies the plan.

use std::sync::Arc;
use std::time::Instant;

use tracing::{info, warn};

use super::Reconciler;
use super::findings::Finding::{Problem, Warning};
use crate::agent::contention::ContendedFile;
use crate::agent::subject::Subject;
use crate::agent::yielding::{OtherAgent, usable_entry_is_installed};
use crate::conflist::net_dir::ConfigFile;
use crate::conflist::plan::{self, Plan};
use crate::conflist::saved_state::{self, SavedState};
use crate::conflist::{PLUGIN, plugin_entry, plugin_types};
use crate::files;
use crate::node::network_config_steps::{NetDir, content};
use crate::node::{NodeSettings, leftovers};

impl Reconciler {
    /// Chains the plugin to the network configs that the mode selects, and unchains it from
    /// all others. Writes only if binary and kubeconfig are in place (`can_chain`). `is_locked`: no
    /// other agent of this project writes at the same time. Fails with the reason why the network
    /// config of this mode lacks the plugin entry, or cannot be kept right.
    pub(super) fn install_configs(
        &mut self,
        mut configs: Vec<ConfigFile>,
        mut saved: SavedState,
        kept: Option<OtherAgent>,
        can_chain: bool,
        is_locked: bool,
    ) -> Result<(), String> {
        self.count_time_without_entry(&configs);
        let settings = Arc::clone(&self.settings);
        let NodeSettings { net_dir, mode, kubeconfig_on_host, .. } = &settings.node;
        if can_chain && !self.leftovers_removed {
            let failures = leftovers::remove(&settings.node);
            self.leftovers_removed = failures.is_empty();
            let failed = (!failures.is_empty()).then(|| Problem(failures.join("; ")));
            self.pass.add(Subject::Leftovers, failed);
            configs.retain(|file| net_dir.join(&file.name).symlink_metadata().is_ok());
        }
        if let Some(why) = saved.unusable.clone() {
            if can_chain && saved.is_damaged && saved.keep_damaged(net_dir).is_ok() {
                self.pass.wrote = true;
                warn!("{why}; it is kept as {}", saved_state::DAMAGED);
            } else {
                self.pass.add(Subject::SavedState, Problem(why));
            }
        }
        if can_chain {
            self.yield_entry(&configs, kept);
        }
        let yielded = self.pass.yielded_entry.as_ref();
        let mut plan = plan::chain(mode, &configs, &self.entry, yielded, &saved);
        if kept == Some(OtherAgent::Newer)
            && usable_entry_is_installed(&self.entry, kubeconfig_on_host, mode, &configs, &saved)
        {
            // The newer agent alone writes the network configs.
            plan = Plan::default();
        }
        let not_chained = plan.not_chained.take().map(|why| match configs[..] {
            [] => format!(
                "{why}; if the runtime uses another directory, set the chart's platform or \
                 destCNINetDir"
            ),
            _ => why,
        });
        for (name, why) in &plan.skipped {
            self.pass.add(Subject::File(net_dir.join(name)), Problem(why.clone()));
        }
        self.pass.add(Subject::NetworkConfig, plan.warning.take().map(Warning));
        self.pass.body.conflist =
            plan::chained_config(mode, &configs).map(|file| file.name.clone());
        if let Some(why) = self.missing_plugins(&configs) {
            if settings.require_network_plugins && !self.runtime_finds_plugin {
                return Err(format!(
                    "the plugin is not chained, because pods could no longer start: {why}"
                ));
            }
            self.pass.add(Subject::CniDirectories, Warning(why));
        }
        let has_chained = can_chain && self.apply(plan, &configs, saved, is_locked)?;
        not_chained.filter(|_| !has_chained).map_or(Ok(()), Err)
    }

    /// Adds the time since the last pass if the active conflist lacked the plugin entry then.
    /// Without an active conflist no pod can start.
    fn count_time_without_entry(&mut self, configs: &[ConfigFile]) {
        let is_active = plan::called_config(configs).is_some();
        if let Some(since) = self.lacked_entry_at.take().filter(|_| is_active) {
            self.status
                .metrics
                .conflist_without_entry_seconds
                .inc_by(since.elapsed().as_secs_f64());
        }
        let is_chained = plan::chained_config(&self.settings.node.mode, configs).is_some();
        self.lacked_entry_at = (is_active && !is_chained).then(Instant::now);
    }

    /// Returns a warning if the bin dir holds no plugin of the active conflist: probably it is
    /// the wrong one, but runtimes can use more (containerd's `bin_dirs`, CRI-O's `plugin_dirs`).
    /// If the agent cannot read the first config, it checks the next, which is chained as well.
    ///
    /// The runtime certainly uses this bin dir if an earlier agent, also upstream's, chained the
    /// plugin from it: the runtime started this agent's own pod through that chain.
    fn missing_plugins(&mut self, configs: &[ConfigFile]) -> Option<String> {
        let NodeSettings { bin_dir, mode, .. } = &self.settings.node;
        let readable = || plan::called_config(configs.iter().filter(|file| file.content.is_ok()));
        let active = plan::called_config(configs).or_else(readable)?;
        let mut plugins = plugin_types(active.text());
        // A plugin type is a file name. The runtime rejects a type with a slash.
        plugins.retain(|kind| kind != PLUGIN && !kind.contains('/'));
        // A symbolic link counts even if its target is missing here: on k3s the plugins are links
        // into a directory that is not mounted in the agent's container.
        let exists = |name: &String| bin_dir.join(name).symlink_metadata().is_ok();
        let are_missing = !plugins.is_empty() && !plugins.iter().any(exists);
        if self.had_binary || !are_missing {
            self.runtime_finds_plugin |= plan::chained_config(mode, configs).is_some();
        }
        are_missing.then(|| {
            format!(
                "{} names the plugins {}, but {} contains none of them: unless the runtime is \
                 configured with several directories, it cannot find {PLUGIN} either; if the \
                 runtime uses another directory, set the chart's platform or destCNIBinDir",
                active.name,
                plugins.join(", "),
                bin_dir.display(),
            )
        })
    }

    /// A failed file does not stop the others. Returns whether a step wrote the plugin entry.
    fn apply(
        &mut self,
        mut plan: Plan,
        configs: &[ConfigFile],
        mut saved: SavedState,
        is_locked: bool,
    ) -> Result<bool, String> {
        let settings = Arc::clone(&self.settings);
        let dir = &settings.node.net_dir;
        let seen = |name: &str| content(configs, name);
        let net_dir = NetDir { path: dir, seen, is_locked };
        let mut result = Ok(false);
        if saved.unusable.is_some() {
            // Unchaining restores the original files from the saved state.
            plan.unchain_steps.clear();
        } else if plan.saves_only {
            saved.only = settings.node.mode.only().map(str::to_owned);
            saved.save(dir).map_err(|error| error.to_string())?;
            self.pass.wrote = true;
        }
        let chain_steps = plan.steps.iter().map(|step| (step, true));
        let unchain_steps = plan.unchain_steps.iter().map(|step| (step, false));
        for (step, chains) in chain_steps.chain(unchain_steps) {
            let path = dir.join(step.target());
            let text = seen(step.source()).map_or("", |before| &before.text);
            // A plugin entry of another agent also gives pods their redirect rules.
            let subject = match plugin_entry(text) {
                Some(_) => Subject::File(path.clone()),
                None => Subject::NetworkConfig,
            };
            let file = ContendedFile { subject, path };
            if self.begin_write(&file, text).is_err() {
                continue;
            }
            match net_dir.apply(step, &mut saved) {
                Ok(()) if chains => {
                    let repeats = !self.chained.insert(step.target().to_owned());
                    if repeats && file.is_plugin_entry() {
                        self.status.metrics.rechains.inc();
                    }
                    result = result.map(|_| true);
                    // Word for word as in Linkerd's troubleshooting page: users search for it.
                    info!("Created CNI config {}", file.path.display());
                    self.end_write(file, text);
                }
                Ok(()) => {
                    info!("removed the plugin entry from {}", file.path.display());
                    self.end_write(file, text);
                    if let Err(error) = saved.forget(step.target(), dir) {
                        result = Err(error.to_string());
                    }
                }
                Err(files::Error::Raced { .. }) => {
                    // Another program wrote the file meanwhile. The next pass reads it again.
                    self.pass.wrote = true;
                    continue;
                }
                Err(error) => {
                    self.pass.add(Subject::File(file.path), Problem(error.to_string()));
                    continue;
                }
            }
            self.status.metrics.conflist_writes.inc();
        }
        result
    }
}
