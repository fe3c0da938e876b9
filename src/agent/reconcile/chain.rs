//! Reconciles the network configs in the net dir: plans the changes, and applies the plan.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::Reconciler;
use super::judge::Finding::{Problem, Warning};
use crate::agent::contention::ContendedFile;
use crate::agent::subject::Subject;
use crate::agent::yielding::{OtherAgent, usable_entry_is_installed};
use crate::conflist::net_dir::ConfigFile;
use crate::conflist::plan::{self, Plan};
use crate::conflist::saved_state;
use crate::conflist::{PLUGIN, plugin_entry, plugin_types};
use crate::files;
use crate::node::Observed;
use crate::node::leftovers;
use crate::node::settings::NodeSettings;
use crate::node::steps::{NetDir, content};

impl Reconciler {
    /// Chains the plugin to the network configs that the mode selects, and unchains it from
    /// all others. Writes only if binary and kubeconfig are in place (`can_chain`). `is_locked`: no
    /// other agent of this project writes at the same time.
    ///
    /// # Errors
    /// Says why the network config of this mode lacks the plugin entry, or cannot be kept right.
    pub(super) fn install_configs(
        &mut self,
        mut observed: Observed,
        kept: Option<OtherAgent>,
        can_chain: bool,
        is_locked: bool,
    ) -> Result<(), String> {
        self.count_time_without_entry(&observed);
        if can_chain && !self.leftovers_removed {
            let failures = leftovers::remove(&self.settings.node);
            self.leftovers_removed = failures.is_empty();
            let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
            let failed = (!texts.is_empty()).then(|| Problem(texts.join("; ")));
            self.pass.add(Subject::Other("leftovers"), failed);
            let node = &self.settings.node;
            let is_removed = |file: &ConfigFile| {
                failures.is_empty() && leftovers::is_old_config(node, &file.name)
            };
            observed.configs.retain(|file| !is_removed(file));
        }
        let saved_state = self.keep_damaged_state(&mut observed, can_chain);
        self.pass.add(Subject::Other("saved state"), saved_state.map(Problem));
        if can_chain {
            self.yield_entry(&observed.configs, kept);
        }
        let plan = self.plan(&observed, kept);
        let dir = &self.settings.node.net_dir;
        for (name, why) in &plan.skipped {
            self.pass.add(Subject::File(dir.join(name)), Problem(why.clone()));
        }
        self.pass.add(Subject::NetworkConfig, plan.warning.clone().map(Warning));
        let not_chained = plan.not_chained.as_ref().map(|why| match observed.configs[..] {
            [] => format!(
                "{why}; if the runtime uses another directory, set the chart's platform or destCNINetDir"
            ),
            _ => why.clone(),
        });
        let mode = &self.settings.node.mode;
        self.pass.body.conflist =
            plan::chained(mode, &observed.configs).map(|file| file.name.clone());
        if let Some(why) = self.missing_plugins(&observed.configs) {
            if self.settings.require_network_plugins && !self.runtime_finds_plugin {
                return Err(format!(
                    "the plugin is not chained, because pods could no longer start: {why}"
                ));
            }
            self.pass.add(Subject::Other("CNI directories"), Warning(why));
        }
        let has_chained = can_chain && self.apply(plan, observed, is_locked)?;
        not_chained.filter(|_| !has_chained).map_or(Ok(()), Err)
    }

    fn count_time_without_entry(&mut self, observed: &Observed) {
        let now = Instant::now();
        let elapsed = now - mem::replace(&mut self.last_read, now);
        let mode = &self.settings.node.mode;
        let active = plan::called(&observed.configs);
        let lacks_entry = active.map(|_| plan::chained(mode, &observed.configs).is_none());
        let lacked_entry = mem::replace(&mut self.lacked_entry, lacks_entry == Some(true));
        let gap = time_without_entry(lacked_entry, lacks_entry, elapsed, observed.changed_before);
        self.status.metrics.conflist_without_entry.inc_by(gap.as_secs_f64());
    }

    /// Renames a damaged saved state if it `can` be replaced, so that a new one can be written.
    /// Returns why the saved state is not used.
    fn keep_damaged_state(&mut self, observed: &mut Observed, can: bool) -> Option<String> {
        let unusable = observed.saved_state.unusable.clone()?;
        if !can || !unusable.is_damaged {
            return Some(unusable.why);
        }
        match observed.saved_state.keep_damaged(&self.settings.node.net_dir) {
            Ok(()) => {
                self.pass.wrote = true;
                warn!("{}; it is kept as {}", unusable.why, saved_state::DAMAGED);
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }

    /// Plans the changes. A newer agent alone writes the network configs if its entry is usable.
    fn plan(&self, observed: &Observed, kept: Option<OtherAgent>) -> Plan {
        let Observed { configs, saved_state, .. } = observed;
        let NodeSettings { mode, kubeconfig_on_host, .. } = &self.settings.node;
        let entry = self.pass.yielded_entry.as_ref().unwrap_or(&self.entry);
        let plan = plan::chain(mode, configs, entry, saved_state);
        if kept == Some(OtherAgent::Newer)
            && usable_entry_is_installed(&self.entry, kubeconfig_on_host, mode, configs)
        {
            return Plan { not_chained: plan.not_chained, ..Plan::default() };
        }
        plan
    }

    /// Returns a warning if the bin dir holds no plugin of the active conflist among `configs`: the runtime
    /// probably looks for plugins elsewhere. While the agent cannot read the first config, checks the one
    /// after it, which is chained as well.
    ///
    /// The runtime certainly looks here if an earlier agent, upstream's included, chained the
    /// plugin from this bin dir: the runtime started this agent's own pod through that chain.
    fn missing_plugins(&mut self, configs: &[ConfigFile]) -> Option<String> {
        let active = plan::called(configs)
            .or_else(|| plan::called(configs.iter().filter(|file| file.content.is_ok())));
        let warning = active.and_then(|active| no_plugins(&self.settings.node, active));
        if self.had_binary || warning.is_none() {
            self.runtime_finds_plugin |= plan::chained(&self.settings.node.mode, configs).is_some();
        }
        warning
    }

    /// Writes what `plan` says. A file that fails does not stop the others. Returns whether a step
    /// wrote the plugin entry.
    fn apply(
        &mut self,
        mut plan: Plan,
        observed: Observed,
        is_locked: bool,
    ) -> Result<bool, String> {
        let Observed { configs, mut saved_state, .. } = observed;
        let settings = Arc::clone(&self.settings);
        let dir = &settings.node.net_dir;
        let seen = |name: &str| content(&configs, name);
        let net_dir = NetDir { path: dir, seen, is_locked };
        let mut result = Ok(false);
        if saved_state.unusable.is_some() {
            // Unchaining restores the original files from the saved state.
            plan.unchain_steps.clear();
        }
        let chain_steps = plan.steps.iter().map(|step| (step, true));
        let unchain_steps = plan.unchain_steps.iter().map(|step| (step, false));
        for (step, chains) in chain_steps.chain(unchain_steps) {
            let (target, path) = (step.target(), dir.join(step.target()));
            // A plugin entry of another agent also gives pods their redirect rules.
            let text = seen(step.source()).map_or("", |before| &before.text);
            let had_entry = plugin_entry(text).is_some();
            let path_subject = || Subject::File(path.clone());
            let subject = if had_entry { path_subject() } else { Subject::NetworkConfig };
            let file = ContendedFile { subject, path: path.clone() };
            if chains {
                self.mark_not_ready(&Subject::NetworkConfig);
                let blocked = self.contention.blocked_until(&file, text, Instant::now());
                if let Some(until) = blocked {
                    self.pass.schedule_next(until);
                    continue;
                }
            }
            match net_dir.apply(step, &mut saved_state) {
                Ok(()) if chains => {
                    self.record_write(file, text);
                    let repeats = !self.chained.insert(target.to_owned());
                    if repeats && !had_entry {
                        self.status.metrics.rechains.inc();
                    }
                    result = result.map(|_| true);
                    // Word for word as in Linkerd's troubleshooting page, because users search for it.
                    info!("Created CNI config {}", path.display());
                }
                Ok(()) => {
                    info!("removed the plugin entry from {}", path.display());
                    if let Err(error) = saved_state.forget(target, dir) {
                        result = Err(error.to_string());
                    }
                }
                Err(files::Error::Raced { .. }) => {
                    // Another program wrote the file since it was read. The next pass reads it again.
                    self.pass.wrote = true;
                    continue;
                }
                Err(error) => {
                    self.pass.add(Subject::File(path), Problem(error.to_string()));
                    continue;
                }
            }
            self.pass.wrote = true;
            self.status.metrics.conflist_writes.inc();
        }
        result
    }
}

/// Returns how much of the `elapsed` time since the last read the active conflist has lacked the plugin
/// entry. `lacks_entry` is `None` if no network config is active: then no pod can start. `changed_before`
/// is the time since the file changed.
fn time_without_entry(
    lacked_entry: bool,
    lacks_entry: Option<bool>,
    elapsed: Duration,
    changed_before: Option<Duration>,
) -> Duration {
    match (lacked_entry, lacks_entry) {
        (true, Some(_)) => elapsed,
        // At most the time since the last read: a timestamp may be copied, and a clock may have been set.
        (false, Some(true)) => changed_before.unwrap_or_default().min(elapsed),
        _ => Duration::ZERO,
    }
}

/// Returns a warning with the remedy if the bin dir holds none of the plugins that the active
/// conflist `active` names, so that it is probably the wrong one. The agent cannot be certain, because
/// runtimes can use several bin dirs (containerd's `bin_dirs`, CRI-O's `plugin_dirs`). The agent's own
/// plugin does not count.
fn no_plugins(settings: &NodeSettings, active: &ConfigFile) -> Option<String> {
    let mut plugins = plugin_types(active.text());
    // A plugin type is a file name. The runtime rejects a type with a slash.
    plugins.retain(|kind| kind != PLUGIN && !kind.contains('/'));
    // A symbolic link counts even if its target is missing here: on k3s the plugins are links
    // into a directory that is not mounted in the agent's container.
    let exists = |name: &String| settings.bin_dir.join(name).symlink_metadata().is_ok();
    if plugins.is_empty() || plugins.iter().any(exists) {
        return None;
    }
    Some(format!(
        "{} names the plugins {}, but {} contains none of them: unless the runtime is configured \
         with several directories, it cannot find {PLUGIN} either; if the runtime uses another \
         directory, set the chart's platform or destCNIBinDir",
        active.name,
        plugins.join(", "),
        settings.bin_dir.display(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_without_the_entry_in_an_active_conflist_is_counted() {
        let seconds = Duration::from_secs;
        for (lacked, lacks, changed_before, expected) in [
            (false, Some(false), 5, 0),
            (false, Some(true), 5, 5),
            (false, Some(true), 3600, 30),
            (true, Some(true), 5, 30),
            (true, Some(false), 0, 30),
            (true, None, 0, 0),
        ] {
            let gap = time_without_entry(lacked, lacks, seconds(30), Some(seconds(changed_before)));
            assert_eq!(gap, seconds(expected), "{lacked} {lacks:?} {changed_before}");
        }
    }
}
