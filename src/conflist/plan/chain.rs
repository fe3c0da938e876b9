//! Plans how to chain the plugin: to every network config, to one file, or in a standalone config.

use std::collections::BTreeMap;

use super::active::{self, active_config, called_config, no_active_config_reason};
use super::conf_conversion::{convert, is_named_or_converted};
use super::step::{Plan, Step};
use super::{multus, standalone, unchain};
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind};
use crate::conflist::saved_state::{Original, SavedState};
use crate::conflist::{Conflist, Entry};

/// Plans to chain the plugin. If it is already chained, plans to unchain it from the files that
/// another mode left. `own_entry` is the plugin entry of this agent. `yielded_entry` is the entry
/// of another agent, while this agent yields to that one.
pub fn chain(
    mode: &ChainMode,
    files: &[ConfigFile],
    own_entry: &Entry,
    yielded_entry: Option<&Entry>,
    saved: &SavedState,
) -> Plan {
    let mut configs: Vec<&ConfigFile> = files.iter().collect();
    configs.retain(|file| {
        mode.standalone_config() != Some(&file.name) && !standalone::is_standalone(file, saved)
    });
    // An upstream agent would convert a new standalone config at once, as it did with the last one.
    if let Some(yielded_entry) = yielded_entry
        && mode.standalone_config().is_some()
        && files.iter().any(|file| standalone::is_converted_with(file, yielded_entry, saved))
    {
        return Plan::default();
    }
    let entry = yielded_entry.unwrap_or(own_entry);
    let planner = ChainPlanner { configs: &configs, own_entry, entry, saved };
    let mut plan = match mode {
        ChainMode::Every => planner.plan_every(),
        ChainMode::Only(name) => planner.plan_only(name),
        ChainMode::Standalone(name) => standalone::plan(name, files, entry, saved),
    };
    if !plan.steps.is_empty() || plan.not_chained.is_some() {
        return plan;
    }
    if *mode == ChainMode::Every {
        let stale = multus::find_stale_conflists(&configs);
        plan.unchain_steps.extend(stale.into_iter().map(Step::remove));
    }
    let steps = unchain::unchain_other_modes(mode, files, own_entry, yielded_entry, saved);
    plan.unchain_steps.extend(steps);
    plan.saves_only_config = has_to_save_only_config(mode, &plan.unchain_steps, saved);
    // An invalid file before the active network config keeps containerd from loading any. A
    // standalone config is not affected, because Multus finds it in a directory of its own, by the
    // name of the network.
    if mode.standalone_config().is_none() {
        plan.not_chained = active::containerd_failure(&configs);
    }
    plan
}

/// Returns whether the saved state has to be written with the `only_config` of this mode, before
/// the `unchain_steps` are applied.
///
/// An older agent reads there that the other network configs lack the entry on purpose. So the name
/// is saved before the first entry is removed. It is removed from the saved state once every
/// network config gets an entry again.
fn has_to_save_only_config(mode: &ChainMode, unchain_steps: &[Step], saved: &SavedState) -> bool {
    let only = mode.only_config();
    let matters = only.is_none() || !unchain_steps.is_empty();
    matters && saved.only_config.as_deref() != only
}

/// Plans the steps of the modes [`ChainMode::Every`] and [`ChainMode::Only`].
struct ChainPlanner<'a> {
    /// All network configs except the agent's standalone configs.
    configs: &'a [&'a ConfigFile],
    /// The plugin entry of this agent.
    own_entry: &'a Entry,
    /// The plugin entry to chain: that of another agent while this agent yields to that one.
    entry: &'a Entry,
    saved: &'a SavedState,
}

impl ChainPlanner<'_> {
    /// Plans to chain the plugin to every network config.
    fn plan_every(&self) -> Plan {
        let active = called_config(self.configs.iter().copied());
        let mut targets = self.configs.to_vec();
        targets.retain(|file| self.is_target(file, active));
        let mut plan = self.plan_steps(&targets);
        plan.not_chained = match active {
            None => Some(no_active_config_reason(self.configs)),
            Some(file) => {
                let reason = self.not_chained_reason(file, &plan.skipped);
                reason.map(|reason| format!("the active network config {reason}"))
            }
        };
        plan
    }

    /// Returns whether `file` gets the plugin entry in the mode [`ChainMode::Every`]. `active` is
    /// the network config whose plugins the runtime calls.
    fn is_target(&self, file: &ConfigFile, active: Option<&ConfigFile>) -> bool {
        if multus::keeps_unchanged(file, self.configs) {
            return false;
        }
        if active.is_some_and(|active| active.name == file.name) {
            return true;
        }
        file.kind != ConfigKind::Json && !multus::is_delegate_conf(file, self.configs)
    }

    /// Plans to chain the plugin to the file `name` and to the conflists made from that file.
    fn plan_only(&self, name: &str) -> Plan {
        let mut targets = self.configs.to_vec();
        targets.retain(|file| is_named_or_converted(file, name));
        let mut plan = self.plan_steps(&targets);
        plan.not_chained = match targets.first() {
            None => Some(format!(
                "{name}, which cniConfFileName names, does not exist yet{}",
                list_found(self.configs)
            )),
            Some(file) => self.not_chained_reason(file, &plan.skipped),
        };
        if plan.not_chained.is_some() {
            return plan;
        }
        let Some(active) = active_config(self.configs.iter().copied()) else {
            plan.not_chained = Some(no_active_config_reason(self.configs));
            return plan;
        };
        if !targets.iter().any(|file| file.name == active.name) {
            plan.warning = Some(self.warn_of_other_active_config(active, name));
        }
        plan
    }

    /// Describes what happens because another network config is `active` than the file `name`, to
    /// which the plugin is chained.
    fn warn_of_other_active_config(&self, active: &ConfigFile, name: &str) -> String {
        let is_foreign =
            active.plugin_entry().is_some_and(|entry| self.own_entry.is_foreign(entry.text));
        let active = &active.name;
        let effect = if is_foreign {
            format!(
                "the runtime calls linkerd-cni with the plugin entry in {active}, which another \
                 program wrote; correct cniConfFileName, or remove the plugin entry from {active}"
            )
        } else {
            format!(
                "the runtime calls linkerd-cni only if {active} calls {name}; if {active} does \
                 not, correct cniConfFileName"
            )
        };
        format!("the active network config is {active}, but cniConfFileName names {name}: {effect}")
    }

    /// Returns why `file` does not have the current plugin entry. `None` if it has the entry.
    /// `skipped` has the files to which the plugin cannot be chained, with the reasons.
    fn not_chained_reason(
        &self,
        file: &ConfigFile,
        skipped: &BTreeMap<String, String>,
    ) -> Option<String> {
        if file.kind == ConfigKind::Conflist
            && file.conflist().is_some_and(|conflist| conflist.has_entry(self.entry))
        {
            return None;
        }
        let state = if file.plugin_entry().is_some() { "an outdated" } else { "no" };
        let reason = match skipped.get(&file.name) {
            Some(reason) => format!(" ({reason})"),
            None => String::new(),
        };
        Some(format!("{} has {state} plugin entry{reason}", file.name))
    }

    /// Plans the steps that chain the plugin to `files`.
    fn plan_steps(&self, files: &[&ConfigFile]) -> Plan {
        let mut plan = Plan::default();
        for file in files {
            match self.plan_step(file) {
                Ok(Some(step)) => plan.steps.push(step),
                Ok(None) => {}
                Err(reason) => {
                    plan.skipped.insert(file.name.clone(), reason);
                }
            }
        }
        plan
    }

    /// Plans the step that chains the plugin to `file`. `None` if `file` has the current entry.
    /// The error is the rest of a sentence that starts with the file's name.
    fn plan_step(&self, file: &ConfigFile) -> Result<Option<Step>, String> {
        let content = match &file.content {
            Ok(content) => content,
            Err(unreadable) => return Err(unreadable.why.clone()),
        };
        if file.kind != ConfigKind::Conflist {
            let step = convert(file, content, self.configs, self.entry, self.saved)?;
            return Ok(Some(step));
        }
        let conflist =
            Conflist::parse_chainable(&content.text).map_err(|error| error.to_string())?;
        if conflist.has_entry(self.entry) {
            return Ok(None);
        }
        // The conflist is written in the place of a symbolic link, which uninstall restores.
        let mut original = None;
        if content.link.is_some() {
            original = Some(Original::new(&file.name, content, conflist.without_entry()));
        }
        let text = conflist.with_entry(self.entry);
        Ok(Some(Step::Replace { name: file.name.clone(), text, original }))
    }
}

/// Lists the existing network configs for the message about a missing one, because the name of the
/// missing one may be mistyped.
fn list_found(configs: &[&ConfigFile]) -> String {
    let names: Vec<&str> = configs.iter().map(|file| file.name.as_str()).collect();
    if names.is_empty() { String::new() } else { format!(" (found: {})", names.join(", ")) }
}
