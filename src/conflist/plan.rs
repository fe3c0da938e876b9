//! Plans which network configs to write, and how. Pure.

use super::mode::ChainMode;
use super::net_dir::{ConfigFile, ConfigKind};
use super::saved_state::SavedState;
use super::{Conflist, Entry};
use crate::conflist;

mod active;
mod convert;
mod own;
mod steps;
#[cfg(test)]
mod tests;
mod unchain;

pub use active::loaded;
pub use convert::record;
pub use steps::{Chaining, Step, UnchainStep};
pub use unchain::unchain;

use active::{first, no_network};
use convert::list_name;

/// Plans how to chain `entry` to the files that `mode` names, among the network configs `found`.
pub fn chain(
    mode: &ChainMode,
    found: &[ConfigFile],
    entry: &Entry,
    saved: &SavedState,
) -> Chaining {
    let foreign: Vec<&ConfigFile> = found
        .iter()
        .filter(|file| mode.own() != Some(&file.name) && !own::is_own(file, saved))
        .collect();
    let mut plan = match mode {
        ChainMode::Every => every(&foreign, entry, saved),
        ChainMode::Only(name) => only(name, &foreign, entry, saved),
        ChainMode::Standalone(name) => own::standalone(name, found, entry, saved),
        ChainMode::Copy(name) => own::copy(name, found, &foreign, entry, saved),
    };
    if plan.steps.is_empty() && plan.unchained.is_none() {
        plan.undo = unchain::leftovers(mode, found, saved);
    }
    plan
}

/// Chains to every conflist and every `.conf`, as upstream does, and to a `.json` only if it is the
/// active network config.
fn every(foreign: &[&ConfigFile], entry: &Entry, saved: &SavedState) -> Chaining {
    let mut plan = Chaining::default();
    let loaded = first(foreign);
    for file in foreign {
        if file.kind != ConfigKind::Json || loaded.is_some_and(|loaded| loaded.name == file.name) {
            plan.chain_to(foreign, file, entry, saved);
        }
    }
    plan.unchained = match loaded {
        None => Some(no_network(foreign)),
        Some(file) if has_entry(file, entry) => None,
        Some(file) => Some(format!(
            "the runtime loads {}, which does not carry our entry{}",
            file.name,
            plan.skip_reason(&file.name)
        )),
    };
    plan
}

/// Chains only to the file `name`, or to the conflist that was made from it.
fn only(name: &str, foreign: &[&ConfigFile], entry: &Entry, saved: &SavedState) -> Chaining {
    let mut plan = Chaining::default();
    let is_single = ConfigKind::of(name).is_some_and(|kind| kind != ConfigKind::Conflist);
    let list = is_single.then(|| list_name(name));
    let is_named = |file: &&&ConfigFile| file.name == name || list.as_ref() == Some(&file.name);
    let named: Vec<&&ConfigFile> = foreign.iter().filter(is_named).collect();
    for file in &named {
        plan.chain_to(foreign, file, entry, saved);
    }
    plan.unchained = match named.first() {
        None => Some(format!(
            "there is no {name} yet, which cniConfFileName says to chain to{}",
            alternatives(foreign)
        )),
        Some(file) if has_entry(file, entry) => None,
        Some(file) => {
            Some(format!("{} does not carry our entry{}", file.name, plan.skip_reason(&file.name)))
        }
    };
    plan.doubt = first(foreign)
        .filter(|loaded| {
            plan.unchained.is_none() && !named.iter().any(|file| file.name == loaded.name)
        })
        .map(|loaded| {
            format!(
                "the runtime loads {}; linkerd-cni is called only if that calls {name}, to which \
                 cniConfFileName chains it",
                loaded.name
            )
        });
    plan
}

/// Lists the network configs that exist instead of a missing one, which may be mistyped.
fn alternatives(foreign: &[&ConfigFile]) -> String {
    let names: Vec<&str> = foreign.iter().map(|file| file.name.as_str()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" (there is {})", names.join(", ")),
    }
}

impl Chaining {
    /// Plans the write that `file` needs, if any.
    fn chain_to(
        &mut self,
        foreign: &[&ConfigFile],
        file: &ConfigFile,
        entry: &Entry,
        saved: &SavedState,
    ) {
        match step(foreign, file, entry, saved) {
            Ok(Some(step)) => {
                self.lists.insert(step.list().to_owned());
                self.steps.push(step);
            }
            Ok(None) => {
                self.lists.insert(file.name.clone());
            }
            Err(reason) => {
                self.skipped.insert(file.name.clone(), reason);
            }
        }
    }
}

/// Plans the write that `file` needs; `None` if it has the current entry.
///
/// # Errors
/// Says why the entry cannot be chained to `file`.
fn step(
    foreign: &[&ConfigFile],
    file: &ConfigFile,
    entry: &Entry,
    saved: &SavedState,
) -> Result<Option<Step>, String> {
    let text = &file.content.as_ref().map_err(Clone::clone)?.text;
    if file.kind != ConfigKind::Conflist {
        return convert::convert(foreign, file, text, entry, saved).map(Some);
    }
    let list = Conflist::parse(text).map_err(|error| error.to_string())?;
    Ok((!list.carries(entry))
        .then(|| Step::Patch { name: file.name.clone(), text: list.with(entry) }))
}

/// Returns whether `file` is a conflist with the current `entry`.
fn has_entry(file: &ConfigFile, entry: &Entry) -> bool {
    let text = file.content.as_ref().map(|content| content.text.as_str());
    file.kind == ConfigKind::Conflist
        && text.is_ok_and(|text| Conflist::parse(text).is_ok_and(|list| list.carries(entry)))
}

/// Returns whether the network config `text` calls the plugin.
pub fn calls_plugin(text: &str) -> bool {
    conflist::plugin_entry(text).is_some()
}

/// Returns whether the network config that needs the plugin entry in this `mode` has one. That is
/// the active network config, or the one that `cniConfFileName` names.
pub fn is_chained(mode: &ChainMode, found: &[ConfigFile]) -> bool {
    let chained = |file: &ConfigFile| {
        let content = file.content.as_ref();
        content.is_ok_and(|content| calls_plugin(&content.text))
    };
    match mode {
        ChainMode::Only(name) => found
            .iter()
            .any(|file| (file.name == *name || file.name == list_name(name)) && chained(file)),
        ChainMode::Every | ChainMode::Standalone(_) | ChainMode::Copy(_) => {
            loaded(found).is_some_and(chained)
        }
    }
}
