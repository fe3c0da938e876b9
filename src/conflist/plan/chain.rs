//! Plans how to chain the plugin: to every network config, to one file, or in a standalone config.

use super::active::{active_config, called_config, no_network_config};
use super::conf_conversion::is_named;
use super::{Inputs, Plan, Step, multus, standalone, unchain};
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind};
use crate::conflist::saved_state::{Original, SavedState};
use crate::conflist::{Conflist, Entry};

pub fn chain(mode: &ChainMode, found: &[ConfigFile], entry: &Entry, saved: &SavedState) -> Plan {
    let is_foreign = |file: &&ConfigFile| {
        mode.standalone() != Some(&file.name) && !standalone::is_standalone(file, saved)
    };
    let foreign: Vec<&ConfigFile> = found.iter().filter(is_foreign).collect();
    let inputs = Inputs { found, foreign: &foreign, entry, saved };
    let plan = match mode {
        ChainMode::Every => Ok(inputs.every()),
        ChainMode::Only(name) => Ok(inputs.only(name)),
        ChainMode::Standalone(name) => inputs.standalone(name),
    };
    let mut plan = plan.unwrap_or_else(|why| Plan { not_chained: Some(why), ..Plan::default() });
    if plan.steps.is_empty() && plan.not_chained.is_none() {
        if *mode == ChainMode::Every {
            plan.unchain_steps.extend(multus::made(&foreign).map(Step::remove));
        }
        plan.unchain_steps.extend(unchain::other_modes(mode, found, saved));
        let is_needed = mode.only().is_none() || !plan.unchain_steps.is_empty();
        plan.saves_only = is_needed && saved.only.as_deref() != mode.only();
    }
    plan
}

impl Inputs<'_> {
    /// A `.conf` of Multus' daemon stays unchanged: the conflist that it names gets the entry.
    fn every(&self) -> Plan {
        let Inputs { foreign, .. } = *self;
        let mut plan = Plan::default();
        let active = called_config(foreign.iter().copied());
        for file in foreign {
            let is_active = active.is_some_and(|active| active.name == file.name);
            if multus::delegate(file, foreign).is_some()
                || multus::is_delegate_conf(file, foreign) && !is_active
                || multus::made(foreign).any(|stale| stale.name == file.name)
            {
                continue;
            }
            if file.kind != ConfigKind::Json || is_active {
                self.chain_to(file, &mut plan);
            }
        }
        plan.not_chained = match active {
            None => Some(no_network_config(foreign)),
            Some(file) => {
                self.lacks_entry(file, &plan).map(|why| format!("the active network config {why}"))
            }
        };
        plan
    }

    fn only(&self, name: &str) -> Plan {
        let Inputs { foreign, .. } = *self;
        let mut plan = Plan::default();
        let named: Vec<&&ConfigFile> = foreign.iter().filter(|file| is_named(file, name)).collect();
        for file in &named {
            self.chain_to(file, &mut plan);
        }
        plan.not_chained = match named.first() {
            None => Some(format!(
                "{name}, which cniConfFileName names, does not exist yet{}",
                alternatives(foreign)
            )),
            Some(file) => self.lacks_entry(file, &plan),
        };
        let Some(active) = active_config(foreign.iter().copied()) else {
            plan.not_chained.get_or_insert_with(|| no_network_config(foreign));
            return plan;
        };
        if plan.not_chained.is_none() && !named.iter().any(|file| file.name == active.name) {
            plan.warning = Some(format!(
                "the active network config is {0}, but cniConfFileName names {name}: the runtime calls \
                 linkerd-cni only if {0} calls {name}; if {0} does not, correct cniConfFileName",
                active.name
            ));
        }
        plan
    }

    fn lacks_entry(&self, file: &ConfigFile, plan: &Plan) -> Option<String> {
        if file.kind == ConfigKind::Conflist
            && file.conflist().is_ok_and(|conflist| conflist.has_entry(self.entry))
        {
            return None;
        }
        let state = if file.plugin_entry().is_some() { "an outdated" } else { "no" };
        let reason = plan.skipped.get(&file.name);
        let skipped = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        Some(format!("{} has {state} plugin entry{skipped}", file.name))
    }

    fn chain_to(&self, file: &ConfigFile, plan: &mut Plan) {
        match self.step(file) {
            Ok(step) => plan.steps.extend(step),
            Err(reason) => {
                plan.skipped.insert(file.name.clone(), reason);
            }
        }
    }

    fn step(&self, file: &ConfigFile) -> Result<Option<Step>, String> {
        let content = file.content.as_ref().map_err(|reason| reason.why.clone())?;
        if file.kind != ConfigKind::Conflist {
            return self.convert(file, content).map(Some);
        }
        let conflist =
            Conflist::parse_chainable(&content.text).map_err(|error| error.to_string())?;
        let link = content.link.as_ref();
        Ok((!conflist.has_entry(self.entry)).then(|| Step::Replace {
            name: file.name.clone(),
            text: conflist.with_entry(self.entry),
            original: link.map(|_| Original::new(&file.name, content, conflist.without_entry())),
        }))
    }
}

/// Lists the existing network configs, as the name of the missing one may be mistyped.
fn alternatives(foreign: &[&ConfigFile]) -> String {
    let names: Vec<&str> = foreign.iter().map(|file| file.name.as_str()).collect();
    if names.is_empty() { String::new() } else { format!(" (found: {})", names.join(", ")) }
}
