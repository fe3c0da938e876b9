//! The network config that only the agent writes: a standalone config, or a copy of the active
//! network config with the plugin entry.

use super::active::{active, is_loadable, no_network_config, unreadable};
use super::{Inputs, Plan, Step};
use crate::conflist;
use crate::conflist::chain_mode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind, Content};
use crate::conflist::saved_state::SavedState;
use crate::conflist::{Conflist, Entry, PLUGIN, plugin_types};
use crate::files::FileAccess;

/// File mode of a standalone config: only the runtime, as root, reads it.
const MODE: u32 = 0o600;

/// Returns whether only the agent writes `file`, as the saved state says. Without saved state, the
/// agent's file has one of its default names and calls the plugin.
pub(super) fn is_own_config(file: &ConfigFile, saved: &SavedState) -> bool {
    let (name, _) = file.split_name();
    saved.own_configs.contains_key(name)
        || [chain_mode::STANDALONE, chain_mode::COPY].contains(&name) && is_own_content(file)
}

/// Returns whether the agent may have written `file`: it calls the plugin, and if it is a `.conf`
/// or `.json`, no other plugin.
fn is_own_content(file: &ConfigFile) -> bool {
    let types = plugin_types(file.text());
    let is_plugin = |name: &String| name == PLUGIN;
    match file.kind {
        ConfigKind::Conflist => types.iter().any(is_plugin),
        // A `.conf` with another plugin is a network config of the primary CNI.
        ConfigKind::Conf | ConfigKind::Json => !types.is_empty() && types.iter().all(is_plugin),
    }
}

impl Inputs<'_> {
    pub(super) fn standalone(&self, name: &str) -> Plan {
        let Inputs { found, entry, .. } = *self;
        let wanted = Content {
            text: match ConfigKind::of(name) {
                Some(ConfigKind::Conflist) => entry.standalone_conflist(),
                _ => entry.standalone_conf(),
            },
            access: FileAccess::own(MODE),
            link: None,
        };
        let mut plan = Plan::default();
        self.write_own_config(name, wanted, None, &mut plan);
        let is_active = active(found).is_some_and(|active| active.name == name);
        let others = found.iter().any(|file| file.name != name && is_loadable(file));
        if is_active && others {
            plan.warning = Some(format!(
                "{name} sorts before the other network configs: if a runtime reads this directory, \
                 pods get no network; set cniConfFileName to a name that sorts last"
            ));
        }
        plan
    }

    pub(super) fn copy(&self, name: &str) -> Plan {
        let Inputs { found, foreign, saved, .. } = *self;
        let mut plan = Plan::default();
        let existing = found.iter().find(|file| file.name == name);
        plan.not_chained = name_taken(existing, saved);
        if plan.not_chained.is_some() {
            return plan;
        }
        let copied_from = saved.own_configs.get(name).and_then(Option::as_deref);
        let (source, wanted) = match self.source(name, copied_from) {
            Ok(found) => found,
            Err(Some(why)) => {
                plan.not_chained = Some(why);
                return plan;
            }
            Err(None) => {
                plan.not_chained = Some(no_network_config(foreign));
                let stale = existing.filter(|file| is_own_config(file, saved));
                plan.unchain_steps.extend(stale.map(Step::remove));
                return plan;
            }
        };
        self.write_own_config(name, wanted, Some(source.name.clone()), &mut plan);
        // An earlier copy of another name does not count: it is removed once this copy is correct.
        let is_active = |file: &ConfigFile| file.name == source.name;
        if plan.not_chained.is_none() && active(found).is_some_and(is_active) {
            plan.not_chained = Some(format!(
                "the active network config is {}, which sorts before {name}: set cniConfFileName to a \
                 name that sorts first",
                source.name
            ));
        }
        plan
    }

    /// Returns the first loadable network config and its copy. A damaged file named `copied_from`, the one
    /// copied before, wins if it sorts first: its owner is probably writing it.
    /// Fails with the reason why the copy must stay as it is; `None` if there is no network config to copy.
    fn source(
        &self,
        name: &str,
        copied_from: Option<&str>,
    ) -> Result<(&ConfigFile, Content), Option<String>> {
        for file in self.foreign {
            if is_loadable(file) {
                let copy = copy_of(file, self.entry).map(|copy| (*file, copy));
                return copy.map_err(|reason| Some(format!("{} {reason}", file.name)));
            }
            if let Some(why) = unreadable(file) {
                return Err(Some(why));
            }
            if copied_from == Some(&file.name) {
                return Err(Some(format!(
                    "{} is invalid, so {name} remains a copy of its last valid content",
                    file.name
                )));
            }
        }
        Err(None)
    }

    /// Plans to write `wanted`, unless the file is up to date or another program owns it.
    fn write_own_config(
        &self,
        name: &str,
        wanted: Content,
        copied_from: Option<String>,
        plan: &mut Plan,
    ) {
        let existing = self.found.iter().find(|file| file.name == name);
        if let Some(reason) = name_taken(existing, self.saved) {
            plan.not_chained = Some(reason);
            return;
        }
        let is_current =
            |file: &ConfigFile| file.content.as_ref().is_ok_and(|found| found.is_like(&wanted));
        if existing.is_some_and(is_current)
            && self.saved.own_configs.get(name) == Some(&copied_from)
        {
            return;
        }
        let state = existing.map_or("is missing", |_| "is outdated");
        plan.not_chained = Some(format!("{name} {state}"));
        plan.steps.push(Step::WriteOwnConfig {
            name: name.to_owned(),
            text: wanted.text,
            access: wanted.access,
            copied_from,
        });
    }
}

/// Returns `source` with `entry` chained. It gets the same access, as it can hold the same
/// credentials.
fn copy_of(source: &ConfigFile, entry: &Entry) -> Result<Content, String> {
    let original = source.content.as_ref().map_err(|reason| reason.why.clone())?;
    let describe = |error: conflist::Error| error.to_string();
    let without_entry = match source.kind {
        ConfigKind::Conflist => original.text.clone(),
        ConfigKind::Conf | ConfigKind::Json => conflist::wrap(&original.text).map_err(describe)?,
    };
    Ok(Content {
        text: Conflist::parse_chainable(&without_entry).map_err(describe)?.with_entry(entry),
        access: original.access,
        link: None,
    })
}

/// Says that another program owns `existing`, the file that the agent would write.
fn name_taken(existing: Option<&ConfigFile>, saved: &SavedState) -> Option<String> {
    let file = existing
        .filter(|file| !saved.own_configs.contains_key(&file.name) && !is_own_content(file))?;
    Some(format!("{} belongs to another program: set cniConfFileName to an unused name", file.name))
}
