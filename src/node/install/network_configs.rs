//! Chains the plugin to the network configs in the net dir: plans the changes, and applies the
//! plan.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use tracing::{info, warn};

use super::bin_dir::BinDir;
use crate::conflist::net_dir::ConfigFile;
use crate::conflist::plan::{self, Plan, Step};
use crate::conflist::saved_state::{self, SavedState};
use crate::conflist::{ChainedEntry, Entry, plugin_entry};
use crate::files;
use crate::node::NodeSettings;
use crate::node::contention::{LimitedWriter, WriteError, WrittenFile};
use crate::node::network_config_steps::{NetDir, content};

/// What to chain to the network configs, and under which conditions.
pub struct Chaining<'a> {
    pub settings: &'a NodeSettings,
    /// The plugin entry of this agent.
    pub own: &'a Entry,
    /// The plugin entry of another agent to which this agent yields. This entry stays in use.
    pub yielded: Option<&'a Entry>,
    /// Whether a newer agent writes the network configs, so that this agent does not.
    pub is_left_to_newer_agent: bool,
    /// Whether plugin binary and kubeconfig are in place. If they are not, nothing is written.
    pub can_chain: bool,
    /// Whether this agent has the lock, so that no other agent of this project writes meanwhile.
    pub is_locked: bool,
    pub bin_dir: BinDir,
    /// Why the plugin is unchained from all network configs: the container runtime cannot run it.
    /// `None` if it can, or if that is unknown.
    pub withdrawn: Option<String>,
}

/// Outcome of [`install`].
#[derive(Debug, Default)]
pub struct ConfigsOutcome {
    /// Name of the network config through which the runtime called the plugin before the step.
    pub called_through: Option<String>,
    /// The network configs that were written.
    pub writes: Vec<ConfigWrite>,
    /// Whether the files that the pass has read are out of date, because the step changed the saved
    /// state, or because another program changed a network config meanwhile. The next pass then has
    /// to read them again, even if this step wrote no network config.
    pub is_stale: bool,
    /// Why the network config of this mode lacks the plugin entry, or cannot be kept correct.
    pub problem: Option<String>,
    /// What an operator should check.
    pub warning: Option<String>,
    /// Paths of the network configs to which the plugin cannot be chained, each with the reason.
    pub file_problems: Vec<(PathBuf, String)>,
    pub saved_state_problem: Option<String>,
    /// Why the runtime may not find the plugin in the bin dir.
    pub bin_dir_warning: Option<String>,
    /// When a write is allowed that the step did not make because of contention.
    pub allowed_at: Option<Instant>,
}

impl ConfigsOutcome {
    /// Returns whether the network configs are correct, and were correct before the step.
    pub fn is_unchanged(&self) -> bool {
        self.problem.is_none() && self.writes.is_empty() && !self.is_stale
    }
}

/// A network config that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigWrite {
    pub name: String,
    pub change: Change,
    /// Whether the network config had a plugin entry before, perhaps of another agent.
    pub had_entry: bool,
}

/// What a step does with the plugin entry of a network config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Chain,
    Unchain,
}

/// Chains the plugin to the network configs that the mode selects, and unchains it from all others.
/// If the chain is withdrawn, unchains the plugin from all network configs.
/// `configs` and `saved` are what the pass has read from the net dir.
pub fn install(
    chaining: &Chaining<'_>,
    configs: &[ConfigFile],
    mut saved: SavedState,
    writer: &mut LimitedWriter,
) -> ConfigsOutcome {
    let NodeSettings { net_dir, mode, .. } = chaining.settings;
    let called_through = plan::chained_config(mode, configs).map(|file| file.name.clone());
    let mut outcome = ConfigsOutcome { called_through, ..ConfigsOutcome::default() };
    if let Some(why) = saved.unusable.clone() {
        if chaining.rename_damaged_state(&mut saved) {
            outcome.is_stale = true;
            warn!("{why}; it is kept as {}", saved_state::DAMAGED);
        } else {
            outcome.saved_state_problem = Some(why);
        }
    }
    let mut plan = chaining.plan(configs, &saved);
    outcome.warning = plan.warning.take();
    for (name, why) in &plan.skipped {
        outcome.file_problems.push((net_dir.join(name), why.clone()));
    }
    if let BinDir::Doubtful(why) = &chaining.bin_dir {
        outcome.bin_dir_warning = Some(why.clone());
    }
    // The plugin is unchained from all network configs even if it could not be chained now.
    let is_withdrawn = chaining.withdrawn.is_some();
    if let BinDir::Unusable(why) = &chaining.bin_dir
        && !is_withdrawn
    {
        outcome.problem =
            Some(format!("the plugin is not chained, because pods could no longer start: {why}"));
        return outcome;
    }
    let not_chained = plan.not_chained.take();
    if !chaining.can_chain && !is_withdrawn {
        outcome.problem = not_chained;
        return outcome;
    }
    let applied = chaining.apply(&plan, configs, saved, writer);
    let has_chained = applied.writes.iter().any(|write| write.change == Change::Chain);
    // An entry that is to be removed does not make the node ready.
    let works_meanwhile =
        !is_withdrawn && chaining.works_under_contention(configs, &applied.limited);
    outcome.problem = if applied.save_error.is_some() {
        applied.save_error
    } else if has_chained || works_meanwhile {
        None
    } else {
        not_chained
    };
    outcome.writes = applied.writes;
    outcome.is_stale |= applied.is_stale;
    outcome.file_problems.extend(applied.failures);
    outcome.allowed_at = applied.allowed_at;
    outcome
}

/// Outcome of the steps of a plan. The fields mean the same as in [`ConfigsOutcome`].
#[derive(Debug, Default)]
struct Applied {
    writes: Vec<ConfigWrite>,
    /// Network configs that could not be written, each with the reason.
    failures: Vec<(PathBuf, String)>,
    is_stale: bool,
    allowed_at: Option<Instant>,
    /// Names of the network configs whose writes are delayed because of contention.
    limited: BTreeSet<String>,
    /// Why the saved state could not be written.
    save_error: Option<String>,
}

/// Outcome of one step of a plan.
enum StepResult {
    Written(ConfigWrite),
    /// The write is delayed until this time, because of contention.
    Limited(Instant),
    /// Another program has written the file since the pass read it, so the step was not applied.
    Raced,
    Failed(String),
}

impl Applied {
    /// Records that the write of the network config `name` is delayed until this time.
    fn record_limited(&mut self, name: &str, until: Instant) {
        self.limited.insert(name.to_owned());
        self.allowed_at = match self.allowed_at {
            Some(allowed_at) => Some(allowed_at.min(until)),
            None => Some(until),
        };
    }
}

impl Chaining<'_> {
    /// Renames the file of a damaged saved state, so that a new one can be written. Returns whether
    /// the file was renamed.
    fn rename_damaged_state(&self, saved: &mut SavedState) -> bool {
        if !self.can_chain || !saved.is_damaged {
            return false;
        }
        saved.rename_damaged_file(&self.settings.net_dir).is_ok()
    }

    /// Plans the changes of the network configs. Plans no change if a newer agent writes them.
    fn plan(&self, configs: &[ConfigFile], saved: &SavedState) -> Plan {
        if self.is_left_to_newer_agent {
            return Plan::default();
        }
        if let Some(why) = &self.withdrawn {
            return Plan {
                unchain_steps: plan::unchain(configs, saved),
                not_chained: Some(why.clone()),
                ..Plan::default()
            };
        }
        let mut plan = plan::chain(&self.settings.mode, configs, self.own, self.yielded, saved);
        if configs.is_empty()
            && let Some(why) = &mut plan.not_chained
        {
            why.push_str(
                "; if the runtime uses another directory, set the chart's platform or \
                 destCNINetDir",
            );
        }
        plan
    }

    /// Returns whether pods get their redirect rules although the network config of this mode lacks
    /// this agent's entry: whether another program keeps writing another entry, with which the
    /// plugin works, and the write that corrects it is delayed (`limited`).
    fn works_under_contention(&self, configs: &[ConfigFile], limited: &BTreeSet<String>) -> bool {
        let Some(file) = plan::chained_config(&self.settings.mode, configs) else { return false };
        let Some(entry) = file.plugin_entry() else { return false };
        limited.contains(&file.name) && self.is_usable(&entry)
    }

    /// Returns whether the plugin works with the `entry` of a network config, whoever wrote it.
    fn is_usable(&self, entry: &ChainedEntry<'_>) -> bool {
        let NodeSettings { mode, kubeconfig_on_host, .. } = self.settings;
        // Without a plugin before it, the plugin gets no result that it could return. A standalone
        // config is called by another plugin.
        let is_in_place = entry.has_previous || mode.standalone_config().is_some();
        match Entry::new(entry.text, kubeconfig_on_host) {
            Ok(entry) => is_in_place && entry.is_usable(kubeconfig_on_host),
            Err(_) => false,
        }
    }

    /// Applies the steps that chain the plugin, then those that unchain it. If a step fails, the
    /// other steps are applied nevertheless.
    fn apply(
        &self,
        plan: &Plan,
        configs: &[ConfigFile],
        mut saved: SavedState,
        writer: &mut LimitedWriter,
    ) -> Applied {
        let net_dir = &self.settings.net_dir;
        let mut applied = Applied::default();
        // Unchaining needs the saved state, from which it restores the original files.
        let can_unchain = saved.unusable.is_none();
        if can_unchain && plan.saves_only_config {
            saved.only_config = self.settings.mode.only_config().map(str::to_owned);
            if let Err(error) = saved.save(net_dir) {
                applied.save_error = Some(error.to_string());
                return applied;
            }
            applied.is_stale = true;
        }
        for (step, change) in steps_of(plan, can_unchain) {
            match self.apply_step(step, change, configs, &mut saved, writer) {
                StepResult::Written(write) => {
                    applied.writes.push(write);
                    if change == Change::Unchain
                        && let Err(error) = saved.forget(step.target(), net_dir)
                    {
                        applied.save_error = Some(error.to_string());
                    }
                }
                StepResult::Limited(until) => applied.record_limited(step.target(), until),
                StepResult::Raced => applied.is_stale = true,
                StepResult::Failed(why) => {
                    applied.failures.push((net_dir.join(step.target()), why));
                }
            }
        }
        applied
    }

    /// Returns the file that `step` writes, by the entry that the file has before the write. The
    /// entry of another agent counts as well: with it, pods also get their redirect rules.
    fn written_file(
        &self,
        step: &Step,
        change: Change,
        replaced_entry: Option<&ChainedEntry<'_>>,
    ) -> WrittenFile {
        let path = self.settings.net_dir.join(step.target());
        let Some(entry) = replaced_entry else {
            return WrittenFile::ConfigWithoutEntry(path);
        };
        if change == Change::Chain && !self.is_usable(entry) {
            return WrittenFile::ConfigWithUnusableEntry(path);
        }
        WrittenFile::ConfigWithEntry(path)
    }

    /// Applies `step`, and adds to `saved` what uninstall needs to undo the step.
    fn apply_step(
        &self,
        step: &Step,
        change: Change,
        configs: &[ConfigFile],
        saved: &mut SavedState,
        writer: &mut LimitedWriter,
    ) -> StepResult {
        let replaced_text = match content(configs, step.source()) {
            Some(content) => &content.text,
            None => "",
        };
        let replaced_entry = plugin_entry(replaced_text);
        let file = self.written_file(step, change, replaced_entry.as_ref());
        let net_dir = NetDir {
            path: &self.settings.net_dir,
            seen: |name: &str| content(configs, name),
            is_locked: self.is_locked,
        };
        // If the write replaces another text than the last one did, it is not limited. A primary
        // CNI that writes new content is not contention.
        let key = replaced_text;
        let written = writer.write(&file, key, Instant::now(), || net_dir.apply(step, saved));
        match written {
            Ok(()) => {
                log_write(change, &file);
                StepResult::Written(ConfigWrite {
                    name: step.target().to_owned(),
                    change,
                    had_entry: replaced_entry.is_some(),
                })
            }
            Err(WriteError::Limited(until)) => StepResult::Limited(until),
            Err(WriteError::Failed(files::Error::Raced { .. })) => StepResult::Raced,
            Err(WriteError::Failed(error)) => StepResult::Failed(error.to_string()),
        }
    }
}

/// Returns the steps that chain the plugin, then those that unchain it if `can_unchain`.
fn steps_of(plan: &Plan, can_unchain: bool) -> Vec<(&Step, Change)> {
    let mut steps = Vec::new();
    for step in &plan.steps {
        steps.push((step, Change::Chain));
    }
    if can_unchain {
        for step in &plan.unchain_steps {
            steps.push((step, Change::Unchain));
        }
    }
    steps
}

fn log_write(change: Change, file: &WrittenFile) {
    let path = file.path().display();
    match change {
        // This line is the one in Linkerd's troubleshooting page, word for word, because users
        // search for it.
        Change::Chain => info!("Created CNI config {path}"),
        Change::Unchain => info!("removed the plugin entry from {path}"),
    }
}
