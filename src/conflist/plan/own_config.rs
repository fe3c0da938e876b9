//! The network config that only the agent writes: a standalone config, or a copy of the active
//! network config with the plugin entry.

use super::active::{active_config, is_loadable, no_network_config, unreadable};
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
    /// Plans the standalone config. Fails with the reason why it is not written.
    pub(super) fn standalone(&self, name: &str) -> Result<Plan, String> {
        let Inputs { found, entry, .. } = *self;
        let existing = self.existing(name)?;
        let text = match ConfigKind::from_file_name(name) {
            Some(ConfigKind::Conflist) => entry.standalone_conflist(),
            _ => entry.standalone_conf(),
        };
        let wanted = Content { text, access: FileAccess::own(MODE), link: None };
        let mut plan = self.write(name, existing, wanted, None);
        let is_active = active_config(found).is_some_and(|active| active.name == name);
        let others = found.iter().any(|file| file.name != name && is_loadable(file));
        if is_active && others {
            plan.warning = Some(format!(
                "{name} sorts before the other network configs: if a runtime reads this directory, \
                 pods get no network; set cniConfFileName to a name that sorts last"
            ));
        }
        Ok(plan)
    }

    /// Plans the copy. Fails with the reason why it stays unchanged.
    pub(super) fn copy(&self, name: &str) -> Result<Plan, String> {
        let Inputs { found, foreign, saved, .. } = *self;
        let existing = self.existing(name)?;
        let copied_from = saved.own_configs.get(name).and_then(Option::as_deref);
        let Some((source, wanted)) = self.source(name, copied_from)? else {
            let stale = existing.filter(|file| is_own_config(file, saved));
            return Ok(Plan {
                not_chained: Some(no_network_config(foreign)),
                unchain_steps: stale.map(Step::remove).into_iter().collect(),
                ..Plan::default()
            });
        };
        let mut plan = self.write(name, existing, wanted, Some(source.name.clone()));
        // An earlier copy of another name does not count: it is removed once this copy is correct.
        let is_active = |file: &ConfigFile| file.name == source.name;
        if plan.not_chained.is_none() && active_config(found).is_some_and(is_active) {
            plan.not_chained = Some(format!(
                "the active network config is {}, which sorts before {name}: set cniConfFileName to a \
                 name that sorts first",
                source.name
            ));
        }
        Ok(plan)
    }

    /// Returns the first loadable network config and its copy. A damaged file named `copied_from`, the one
    /// copied before, wins if it sorts first: its owner is probably writing it.
    fn source(
        &self,
        name: &str,
        copied_from: Option<&str>,
    ) -> Result<Option<(&ConfigFile, Content)>, String> {
        for file in self.foreign {
            if is_loadable(file) {
                let copy = copy_of(file, self.entry).map(|copy| Some((*file, copy)));
                return copy.map_err(|reason| format!("{} {reason}", file.name));
            }
            if let Some(why) = unreadable(file) {
                return Err(why);
            }
            if copied_from == Some(&file.name) {
                return Err(format!(
                    "{} is invalid, so {name} remains a copy of its last valid content",
                    file.name
                ));
            }
        }
        Ok(None)
    }

    /// Returns the file `name`, which only the agent writes. Fails if another program owns it.
    fn existing(&self, name: &str) -> Result<Option<&ConfigFile>, String> {
        let existing = self.found.iter().find(|file| file.name == name);
        let is_own =
            |file: &ConfigFile| self.saved.own_configs.contains_key(name) || is_own_content(file);
        match existing.is_none_or(is_own) {
            true => Ok(existing),
            false => Err(format!(
                "{name} belongs to another program: set cniConfFileName to an unused name"
            )),
        }
    }

    /// Plans to write `wanted`, unless the file is up to date.
    fn write(
        &self,
        name: &str,
        existing: Option<&ConfigFile>,
        wanted: Content,
        copied_from: Option<String>,
    ) -> Plan {
        let content = existing.and_then(|file| file.content.as_ref().ok());
        if content.is_some_and(|found| found.is_like(&wanted))
            && self.saved.own_configs.get(name) == Some(&copied_from)
        {
            return Plan::default();
        }
        let state = existing.map_or("is missing", |_| "is outdated");
        let Content { text, access, .. } = wanted;
        let name = name.to_owned();
        Plan {
            not_chained: Some(format!("{name} {state}")),
            steps: vec![Step::WriteOwnConfig { name, text, access, copied_from }],
            ..Plan::default()
        }
    }
}

/// The copy gets the access of `source`, as it can hold the same credentials.
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
