//! The file that only the agent writes: a standalone config, or a copy of the active network config
//! with the plugin entry.

use super::active::{loadable, loaded, no_network};
use super::steps::{Chaining, Step, UnchainStep};
use crate::conflist;
use crate::conflist::mode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind, Content};
use crate::conflist::saved_state::SavedState;
use crate::conflist::{Conflist, Entry, PLUGIN, plugin_types};
use crate::files::Access;

/// File mode of a standalone config: only the runtime, as root, reads it.
const MODE: u32 = 0o600;

/// Returns whether only the agent writes `file`. If the saved state was lost, the agent's default
/// file names with the plugin as content tell.
pub(super) fn is_own(file: &ConfigFile, saved: &SavedState) -> bool {
    saved.own.contains_key(&file.name)
        || [mode::STANDALONE, mode::COPY].contains(&&*file.name) && calls_plugin(file)
}

/// Returns whether the file calls the plugin, and if it is a `.conf` or `.json`, no other plugin.
fn calls_plugin(file: &ConfigFile) -> bool {
    let Ok(content) = &file.content else {
        return false;
    };
    let types = plugin_types(&content.text);
    let is_plugin = |name: &String| name == PLUGIN;
    match file.kind {
        ConfigKind::Conflist => types.iter().any(is_plugin),
        // A `.conf` with another plugin is a network config of the primary CNI.
        ConfigKind::Conf | ConfigKind::Json => !types.is_empty() && types.iter().all(is_plugin),
    }
}

/// Plans the standalone config `name`.
pub fn standalone(name: &str, found: &[ConfigFile], entry: &Entry, saved: &SavedState) -> Chaining {
    let wanted = Content {
        text: match ConfigKind::of(name) {
            Some(ConfigKind::Conflist) => entry.as_list(),
            _ => entry.as_conf(),
        },
        access: Access::own(MODE),
        link: None,
    };
    let mut plan = Chaining::default();
    plan.write_own(name, found, wanted, None, saved);
    let first = loaded(found).filter(|loaded| loaded.name == name);
    let others = found.iter().any(|file| file.name != name && loadable(file));
    if first.is_some() && others {
        plan.doubt = Some(format!(
            "{name} comes before all other configurations here: a runtime that reads this \
             directory would give pods no network but that; set cniConfFileName to a later name"
        ));
    }
    plan
}

/// Plans the copy `name` of the network config that would be active without the copy.
pub fn copy(
    name: &str,
    found: &[ConfigFile],
    foreign: &[&ConfigFile],
    entry: &Entry,
    saved: &SavedState,
) -> Chaining {
    let mut plan = Chaining::default();
    let existing = found.iter().find(|file| file.name == name);
    plan.unchained = name_taken(existing, saved);
    if plan.unchained.is_some() {
        return plan;
    }
    let source = match source(foreign, saved.own.get(name).and_then(Option::as_deref)) {
        Source::Valid(file) => file,
        Source::Damaged(file) => {
            plan.unchained = Some(format!(
                "{} cannot be read as a network now, so {name} is a copy of what it was",
                file.name
            ));
            return plan;
        }
        Source::Missing => {
            plan.unchained = Some(no_network(foreign));
            let stale = existing.filter(|file| is_own(file, saved));
            plan.undo.extend(stale.map(|file| UnchainStep::Drop { list: file.name.clone() }));
            return plan;
        }
    };
    let wanted = match copy_of(source, entry) {
        Ok(wanted) => wanted,
        Err(reason) => {
            plan.unchained = Some(format!("{} {reason}", source.name));
            return plan;
        }
    };
    plan.write_own(name, found, wanted, Some(source.name.clone()), saved);
    if plan.unchained.is_none() && loaded(found).is_some_and(|loaded| loaded.name != name) {
        plan.unchained = Some(format!(
            "the runtime loads {}, which comes before {name}: set cniConfFileName to a name that \
             comes first",
            source.name
        ));
    }
    plan
}

/// The network config to copy.
enum Source<'f> {
    Valid(&'f ConfigFile),
    /// The file that was copied before exists, but a runtime could not load it.
    Damaged(&'f ConfigFile),
    Missing,
}

/// Returns the first loadable network config. A damaged file named `of`, the one copied before,
/// wins if it comes first: its owner is probably writing it.
fn source<'f>(foreign: &[&'f ConfigFile], of: Option<&str>) -> Source<'f> {
    for file in foreign {
        if loadable(file) {
            return Source::Valid(file);
        }
        if of == Some(&file.name) {
            return Source::Damaged(file);
        }
    }
    Source::Missing
}

/// Returns `source` with `entry` chained. It gets the same access, as it can hold the same
/// credentials.
fn copy_of(source: &ConfigFile, entry: &Entry) -> Result<Content, String> {
    let original = source.content.as_ref().map_err(Clone::clone)?;
    let describe = |error: conflist::Error| error.to_string();
    let bare = match source.kind {
        ConfigKind::Conflist => original.text.clone(),
        ConfigKind::Conf | ConfigKind::Json => conflist::wrap(&original.text).map_err(describe)?,
    };
    Ok(Content {
        text: Conflist::parse(&bare).map_err(describe)?.with(entry),
        access: original.access,
        link: None,
    })
}

/// Says that another program owns the `existing` file of the name that the agent should write.
fn name_taken(existing: Option<&ConfigFile>, saved: &SavedState) -> Option<String> {
    let file =
        existing.filter(|file| !saved.own.contains_key(&file.name) && !calls_plugin(file))?;
    Some(format!("{} is not ours: set cniConfFileName to a name that is not taken", file.name))
}

impl Chaining {
    /// Plans to write `wanted` to the file `name`, unless it is up to date or another program owns
    /// it.
    fn write_own(
        &mut self,
        name: &str,
        found: &[ConfigFile],
        wanted: Content,
        of: Option<String>,
        saved: &SavedState,
    ) {
        let existing = found.iter().find(|file| file.name == name);
        if let Some(reason) = name_taken(existing, saved) {
            self.unchained = Some(reason);
            return;
        }
        let is_current = |file: &ConfigFile| file.content.as_ref() == Ok(&wanted);
        if existing.is_some_and(is_current) && saved.own.get(name) == Some(&of) {
            return;
        }
        self.unchained = Some(format!("{name} is not what it should be"));
        self.steps.push(Step::Own {
            name: name.to_owned(),
            text: wanted.text,
            access: wanted.access,
            of,
        });
    }
}

#[cfg(test)]
mod tests;
