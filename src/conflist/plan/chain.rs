//! Plans how to chain the plugin: to every network config, to one file, or in a standalone config.

use std::collections::BTreeMap;

use super::active::{self, active_config, called_config, no_network_config};
use super::conf_conversion::{convert, is_named};
use super::step::{Plan, Step};
use super::{multus, standalone, unchain};
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind};
use crate::conflist::saved_state::{Original, SavedState};
use crate::conflist::{Conflist, Entry};

/// Plans to chain the plugin, or, once it is chained, to unchain it from what another mode left.
/// `own` is the plugin entry of this agent, `yielded` that of another agent to which it yields.
pub fn chain(
    mode: &ChainMode,
    found: &[ConfigFile],
    own: &Entry,
    yielded: Option<&Entry>,
    saved: &SavedState,
) -> Plan {
    let mut foreign: Vec<&ConfigFile> = found.iter().collect();
    foreign.retain(|file| {
        mode.standalone() != Some(&file.name) && !standalone::is_standalone(file, saved)
    });
    if let Some(yielded) = yielded
        && mode.standalone().is_some()
        && found.iter().any(|file| standalone::is_in_use(file, yielded, saved))
    {
        return Plan::default();
    }
    let entry = yielded.unwrap_or(own);
    let inputs = Inputs { foreign: &foreign, own, entry, saved };
    let mut plan = match mode {
        ChainMode::Every => inputs.every(),
        ChainMode::Only(name) => inputs.only(name),
        ChainMode::Standalone(name) => standalone::plan(name, found, entry, saved),
    };
    if !plan.steps.is_empty() || plan.not_chained.is_some() {
        return plan;
    }
    if *mode == ChainMode::Every {
        let stale = multus::stale_conflists(&foreign);
        plan.unchain_steps.extend(stale.into_iter().map(Step::remove));
    }
    plan.unchain_steps.extend(unchain::other_modes(mode, found, own, saved));
    let is_needed = mode.only().is_none() || !plan.unchain_steps.is_empty();
    plan.saves_only = is_needed && saved.only.as_deref() != mode.only();
    // A standalone config is in Multus' directory. Multus finds it by its name, so an invalid file
    // that sorts before it does no harm.
    if mode.standalone().is_none() {
        plan.not_chained = active::invalid_before_active(&foreign);
    }
    plan
}

struct Inputs<'a> {
    /// The network configs that are not the agent's own.
    foreign: &'a [&'a ConfigFile],
    /// The plugin entry of this agent.
    own: &'a Entry,
    /// The plugin entry to chain: that of another agent while this agent yields to it.
    entry: &'a Entry,
    saved: &'a SavedState,
}

impl Inputs<'_> {
    /// Plans to chain to every network config.
    fn every(&self) -> Plan {
        let active = called_config(self.foreign.iter().copied());
        let mut targets = self.foreign.to_vec();
        targets.retain(|file| self.is_target(file, active));
        let mut plan = self.chain_to(&targets);
        plan.not_chained = match active {
            None => Some(no_network_config(self.foreign)),
            Some(file) => {
                let why = self.lacks_entry(file, &plan.skipped);
                why.map(|why| format!("the active network config {why}"))
            }
        };
        plan
    }

    /// Returns whether `file` gets the plugin entry in the mode [`ChainMode::Every`].
    fn is_target(&self, file: &ConfigFile, active: Option<&ConfigFile>) -> bool {
        if multus::keeps_unchanged(file, self.foreign) {
            return false;
        }
        if active.is_some_and(|active| active.name == file.name) {
            return true;
        }
        file.kind != ConfigKind::Json && !multus::is_delegate_conf(file, self.foreign)
    }

    /// Plans to chain to the file `name` and to the conflists made from it.
    fn only(&self, name: &str) -> Plan {
        let mut targets = self.foreign.to_vec();
        targets.retain(|file| is_named(file, name));
        let mut plan = self.chain_to(&targets);
        plan.not_chained = match targets.first() {
            None => Some(format!(
                "{name}, which cniConfFileName names, does not exist yet{}",
                alternatives(self.foreign)
            )),
            Some(file) => self.lacks_entry(file, &plan.skipped),
        };
        if plan.not_chained.is_some() {
            return plan;
        }
        let Some(active) = active_config(self.foreign.iter().copied()) else {
            plan.not_chained = Some(no_network_config(self.foreign));
            return plan;
        };
        if !targets.iter().any(|file| file.name == active.name) {
            plan.warning = Some(self.not_named(active, name));
        }
        plan
    }

    /// Describes the effect of an `active` network config that is not the named file `name`.
    fn not_named(&self, active: &ConfigFile, name: &str) -> String {
        let is_foreign = active.plugin_entry().is_some_and(|entry| self.own.is_foreign(entry.text));
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

    /// Returns why `file` does not have the current plugin entry, `None` if it has.
    fn lacks_entry(&self, file: &ConfigFile, skipped: &BTreeMap<String, String>) -> Option<String> {
        if file.kind == ConfigKind::Conflist
            && file.conflist().is_some_and(|conflist| conflist.has_entry(self.entry))
        {
            return None;
        }
        let state = if file.plugin_entry().is_some() { "an outdated" } else { "no" };
        let why = match skipped.get(&file.name) {
            Some(reason) => format!(" ({reason})"),
            None => String::new(),
        };
        Some(format!("{} has {state} plugin entry{why}", file.name))
    }

    /// Plans the steps that chain the plugin to `files`.
    fn chain_to(&self, files: &[&ConfigFile]) -> Plan {
        let mut plan = Plan::default();
        for file in files {
            match self.step(file) {
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
    /// Fails with the rest of a sentence that starts with the file's name.
    fn step(&self, file: &ConfigFile) -> Result<Option<Step>, String> {
        let content = match &file.content {
            Ok(content) => content,
            Err(unreadable) => return Err(unreadable.why.clone()),
        };
        if file.kind != ConfigKind::Conflist {
            let step = convert(file, content, self.foreign, self.entry, self.saved)?;
            return Ok(Some(step));
        }
        let conflist =
            Conflist::parse_chainable(&content.text).map_err(|error| error.to_string())?;
        if conflist.has_entry(self.entry) {
            return Ok(None);
        }
        let mut original = None;
        if content.link.is_some() {
            original = Some(Original::new(&file.name, content, conflist.without_entry()));
        }
        let text = conflist.with_entry(self.entry);
        Ok(Some(Step::Replace { name: file.name.clone(), text, original }))
    }
}

/// Lists the existing network configs, as the name of the missing one may be mistyped.
fn alternatives(foreign: &[&ConfigFile]) -> String {
    let names: Vec<&str> = foreign.iter().map(|file| file.name.as_str()).collect();
    if names.is_empty() { String::new() } else { format!(" (found: {})", names.join(", ")) }
}
