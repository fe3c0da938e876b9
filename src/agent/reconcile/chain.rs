//! Reconciles the network configs in the net dir, in three steps: observe the files, plan the
//! changes, apply the plan.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use tracing::{info, warn};

use super::Reconciler;
use super::pass_result::PassResult;
use crate::agent::platforms;
use crate::agent::subject::Subject;
use crate::agent::yielding::{OtherAgent, usable_entry_is_installed};
use crate::conflist::net_dir;
use crate::conflist::net_dir::ConfigFile;
use crate::conflist::plan;
use crate::conflist::plan::{Plan, Step};
use crate::conflist::saved_state::{self, SavedState};
use crate::files;
use crate::node::leftovers;
use crate::node::steps::{NetDir, content};

/// The net dir at the start of a pass.
struct Observed {
    configs: Vec<ConfigFile>,
    saved_state: SavedState,
}

impl Reconciler {
    /// Chains the plugin to the network configs that the mode selects, and unchains it from
    /// all others. Writes only if binary and kubeconfig are in place (`can_chain`).
    ///
    /// # Errors
    /// If the net dir cannot be read or the saved state cannot be written. A failure with one
    /// network config is a problem in `pass`.
    pub(super) fn reconcile_conflists(
        &mut self,
        pass: &mut PassResult,
        can_chain: bool,
    ) -> Result<(), files::Error> {
        if can_chain && !self.leftovers_removed {
            self.remove_leftovers(pass);
        }
        let mut observed = self.observe(pass)?;
        self.count_time_without_entry(&observed.configs);
        let unusable = observed.saved_state.unusable.as_ref();
        if can_chain && unusable.is_some_and(|unusable| unusable.is_damaged) {
            self.keep_damaged_state(&mut observed.saved_state, pass);
        }
        if can_chain {
            self.yield_entry(&observed.configs, pass);
        }
        match self.plan(&observed, pass) {
            Some(plan) if can_chain => self.apply(plan, &mut observed, pass),
            _ => Ok(()),
        }
    }

    /// Adds to the metric the time in which the active conflist lacked the plugin entry.
    fn count_time_without_entry(&mut self, configs: &[ConfigFile]) {
        let Some(active) = plan::called(configs) else {
            return self.entry_gap.pause(Instant::now());
        };
        let path = self.settings.node.net_dir.join(&active.name);
        let changed = fs::metadata(path).ok().and_then(|file| {
            let seconds = u64::try_from(file.ctime()).ok()?;
            let nanos = u32::try_from(file.ctime_nsec()).ok()?;
            UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
        });
        let before = changed.and_then(|changed| changed.elapsed().ok());
        let is_chained = plan::is_chained(&self.mode, configs);
        let gap = self.entry_gap.observe(Instant::now(), is_chained, before);
        self.status.metrics.without_entry.inc_by(gap.as_secs_f64());
    }

    fn remove_leftovers(&mut self, pass: &mut PassResult) {
        let failures = leftovers::remove(&self.settings.node);
        self.leftovers_removed = failures.is_empty();
        let failures: Vec<String> = failures.iter().map(ToString::to_string).collect();
        if !failures.is_empty() {
            pass.problem(Subject::Leftovers, failures.join("; "));
        }
    }

    /// Reads the network configs and the saved state.
    fn observe(&self, pass: &mut PassResult) -> Result<Observed, files::Error> {
        let dir = &self.settings.node.net_dir;
        let configs = net_dir::scan(dir, &self.settings.node.kubeconfig_name)?;
        let saved_state = SavedState::load(dir);
        if let Some(unusable) = &saved_state.unusable {
            pass.problem(Subject::SavedState, &unusable.why);
        }
        Ok(Observed { configs, saved_state })
    }

    /// Renames a damaged saved state, so that a new one can be written.
    fn keep_damaged_state(&self, saved_state: &mut SavedState, pass: &mut PassResult) {
        match saved_state.keep_damaged(&self.settings.node.net_dir) {
            Ok(()) => {
                pass.wrote = true;
                if let Some(why) = pass.problems.remove(&Subject::SavedState) {
                    warn!("{why}; it is kept as {}", saved_state::DAMAGED);
                }
            }
            Err(error) => pass.problem(Subject::SavedState, error),
        }
    }

    /// Records in `pass` the plugin entry of another agent that stays in use, if any, and logs a
    /// change.
    fn yield_entry(&mut self, configs: &[ConfigFile], pass: &mut PassResult) {
        let yielded = self.yielding.choose(
            &self.entry,
            &self.settings.node.kubeconfig_on_host,
            configs,
            pass.newer_agent_runs,
            Instant::now(),
        );
        let (other, entry) = yielded.unzip();
        if let Some(other) = &other {
            pass.ready_notes.push(other.to_string());
            if let Some(until) = self.yielding.until() {
                pass.schedule_next(until);
            }
        }
        pass.yielded_entry = entry;
        self.log_yielding(other);
    }

    /// Logs once which other agent's plugin entry stays in use. An attempt to write this agent's
    /// entry does not count as a change.
    fn log_yielding(&mut self, other: Option<OtherAgent>) {
        if other == self.yields_to || other.is_none() && self.yielding.is_trying(Instant::now()) {
            return;
        }
        match &other {
            Some(other) => info!("{other}"),
            None => info!(
                "no plugin entry of another agent is in use any more; this agent manages the plugin \
                 again"
            ),
        }
        self.yields_to = other;
    }

    /// Plans the changes, and records in `pass` the problems that exist before them. Returns `None`
    /// if the runtime would probably not find the plugin, so that it must not be chained.
    fn plan(&mut self, observed: &Observed, pass: &mut PassResult) -> Option<Plan> {
        let settings = Arc::clone(&self.settings);
        let Observed { configs, saved_state } = observed;
        let entry = pass.yielded_entry.as_ref().unwrap_or(&self.entry);
        let mut plan = plan::chain(&self.mode, configs, entry, saved_state);
        let kubeconfig = &settings.node.kubeconfig_on_host;
        if pass.newer_agent_runs
            && usable_entry_is_installed(&self.entry, kubeconfig, &self.mode, configs)
        {
            let Plan { conflists, not_chained, .. } = plan;
            plan = Plan { conflists, not_chained, ..Plan::default() };
        }
        for (name, why) in &plan.skipped {
            pass.problem(Subject::File(settings.node.net_dir.join(name)), why);
        }
        match &plan.not_chained {
            Some(why) if configs.is_empty() => {
                let remedy = platforms::no_network(&settings);
                pass.problem(Subject::NetworkConfig, format!("{why}; {remedy}"));
            }
            Some(why) => pass.problem(Subject::NetworkConfig, why),
            None => {}
        }
        if let Some(why) = &plan.warning {
            pass.warn(Subject::NetworkConfig, why);
        }
        self.check_bin_dir(configs, pass);
        pass.conflist = plan::chained(&self.mode, configs).map(|file| file.name.clone());
        if settings.require_network_plugins
            && !self.runtime_finds_plugin
            && let Some(why) = pass.warnings.remove(&Subject::Directories)
        {
            let why =
                format!("the plugin is not chained, because pods could no longer start: {why}");
            pass.problem(Subject::NetworkConfig, why);
            return None;
        }
        if saved_state.unusable.is_some() {
            // Unchaining restores the original files from the saved state.
            plan.unchain_steps.clear();
        }
        Some(plan)
    }

    /// Warns and sets the metric if the bin dir holds no plugin of the active conflist among
    /// `configs`: the runtime probably looks for plugins elsewhere. While the agent cannot read the
    /// first config, checks the one after it, which is chained as well.
    ///
    /// The runtime certainly looks here if an earlier agent, upstream's included, chained the
    /// plugin from this bin dir: the runtime started this agent's own pod through that chain.
    fn check_bin_dir(&mut self, configs: &[ConfigFile], pass: &mut PassResult) {
        let active = plan::called(configs).or_else(|| plan::called_if_readable(configs));
        let warning = active.and_then(|active| platforms::no_plugins(&self.settings, active));
        self.status.metrics.bin_dir_without_plugins.set(warning.is_some().into());
        if self.had_binary || warning.is_none() {
            self.runtime_finds_plugin |= plan::is_chained(&self.mode, configs);
        }
        if let Some(why) = warning {
            pass.warn(Subject::Directories, why);
        }
    }

    /// Writes what `plan` says. A file that fails is a problem in `pass` and does not stop the
    /// others.
    fn apply(
        &mut self,
        plan: Plan,
        observed: &mut Observed,
        pass: &mut PassResult,
    ) -> Result<(), files::Error> {
        let before = self.chained_conflists.clone();
        self.chained_conflists.extend(plan.conflists);
        for step in &plan.steps {
            let repeats = before.contains(step.target()) && self.entry_gap.had_entry();
            self.apply_step(step, repeats, observed, pass);
        }
        for step in &plan.unchain_steps {
            self.apply_unchain_step(step, observed, pass)?;
        }
        self.report_entry_removals(pass);
        Ok(())
    }

    /// Writes one file of the chain, unless contention delays the write. `repeats`: the agent has
    /// chained the plugin to this file before.
    fn apply_step(
        &mut self,
        step: &Step,
        repeats: bool,
        observed: &mut Observed,
        pass: &mut PassResult,
    ) {
        self.mark_not_ready(&Subject::NetworkConfig);
        let path = self.settings.node.net_dir.join(step.target());
        let subject = Subject::File(path.clone());
        let before = content(&observed.configs, step.source()).map_or("", |before| &before.text);
        let now = Instant::now();
        // A plugin entry of another agent also gives pods their redirect rules, so only the
        // removal of the entry makes the node not ready.
        let has_entry = plan::calls_plugin(before);
        let contention = match has_entry {
            true => &mut self.overwrites,
            false => &mut self.entry_removals,
        };
        if let Some(until) = contention.blocked_until(&subject, before, now) {
            pass.schedule_next(until);
            return;
        }
        let net_dir = NetDir {
            path: &self.settings.node.net_dir,
            seen: |name: &str| content(&observed.configs, name),
            is_locked: pass.holds_lock,
        };
        match net_dir.apply(step, &mut observed.saved_state) {
            Ok(()) => {
                pass.wrote = true;
                if contention.record_write(subject, before, now) {
                    self.status.metrics.contentions.inc();
                    match has_entry {
                        true => self.post_overwrite_event(&path),
                        false => self.post_entry_removal_event(&path),
                    }
                }
                self.status.metrics.conflist_writes.inc();
                if repeats && !has_entry {
                    self.status.metrics.rechains.inc();
                }
                // The plan's problem is solved. The next pass verifies that.
                pass.problems.remove(&Subject::NetworkConfig);
                // Word for word as in Linkerd's troubleshooting page, because users search for it.
                info!("Created CNI config {}", path.display());
            }
            // Another program wrote the file since it was read. The next pass reads it again.
            Err(files::Error::Raced { .. }) => pass.wrote = true,
            Err(error) => pass.problem(Subject::File(path), error),
        }
    }

    /// Unchains the plugin from one network config.
    fn apply_unchain_step(
        &self,
        step: &Step,
        observed: &mut Observed,
        pass: &mut PassResult,
    ) -> Result<(), files::Error> {
        let dir = &self.settings.node.net_dir;
        let path = dir.join(step.target());
        let seen = |name: &str| content(&observed.configs, name);
        let net_dir = NetDir { path: dir, seen, is_locked: pass.holds_lock };
        match net_dir.apply(step, &mut observed.saved_state) {
            Ok(()) => {
                pass.wrote = true;
                self.status.metrics.conflist_writes.inc();
                info!("removed the plugin entry from {}", path.display());
                observed.saved_state.forget(step.target(), dir)?;
            }
            Err(files::Error::Raced { .. }) => pass.wrote = true,
            Err(error) => pass.problem(Subject::File(path), error),
        }
        Ok(())
    }
}
