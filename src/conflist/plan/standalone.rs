//! Plans the standalone config: a network config that only the agent writes, with the plugin entry
//! as its only plugin.

use super::active::{active_config, is_loadable};
use super::conf_conversion::conflist_names;
use super::step::{Plan, Step};
use crate::conflist::chain_mode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind, Content};
use crate::conflist::saved_state::SavedState;
use crate::conflist::{Entry, PLUGIN, plugin_types};
use crate::files::FileAccess;

/// File mode of a standalone config: only the runtime, as root, reads it.
const MODE: u32 = 0o600;

/// Returns whether `file` is a standalone config that the saved state lists, or a conflist that an
/// upstream agent made from one. If the saved state was lost, a file with the default name counts
/// that calls the plugin and that the agent may have written.
pub(super) fn is_standalone(file: &ConfigFile, saved: &SavedState) -> bool {
    let (name, _) = file.split_name();
    is_saved(file, saved)
        || is_converted_by_upstream(file, saved)
        || name == chain_mode::STANDALONE && may_be_own_content(file)
}

/// Returns whether the saved state lists `file` as a standalone config, and no other program has
/// written a network config in its place since. Damaged content counts as the agent's, so that it
/// is restored or removed.
pub(super) fn is_saved(file: &ConfigFile, saved: &SavedState) -> bool {
    let (name, _) = file.split_name();
    saved.standalone_configs.contains(name) && !is_of_other_program(file)
}

/// Returns whether another program wrote the content of `file`: whether its first plugin is another
/// one. In a standalone config, linkerd-cni is the first, even if an installer has appended its own
/// plugin.
fn is_of_other_program(file: &ConfigFile) -> bool {
    plugin_types(file.text()).first().is_some_and(|first| first != PLUGIN)
}

/// Returns whether an upstream agent made `file` from a standalone config, which it then removed:
/// [upstream] converts each `.conf` that is written while it runs. The conflist has upstream's
/// plugin entry as its only plugin. It has no plugin at all once that agent has ended.
///
/// [upstream]: https://github.com/linkerd/linkerd2-proxy-init/blob/main/internal/cni/install.go
pub(super) fn is_converted_by_upstream(file: &ConfigFile, saved: &SavedState) -> bool {
    if file.kind != ConfigKind::Conflist || file.conflist().is_none() {
        return false;
    }
    let mut names = saved.standalone_configs.iter();
    names.any(|name| conflist_names(name).contains(&file.name))
        && plugin_types(file.text()).iter().all(|plugin| plugin == PLUGIN)
}

/// Returns whether the agent may have written `file`: whether the file calls the plugin and, unless
/// it is a conflist, no other plugin.
fn may_be_own_content(file: &ConfigFile) -> bool {
    let types = plugin_types(file.text());
    let calls_plugin = types.iter().any(|name| name == PLUGIN);
    let calls_others = types.iter().any(|name| name != PLUGIN);
    match file.kind {
        ConfigKind::Conflist => calls_plugin,
        // A `.conf` with another plugin is a network config of the primary CNI, so the agent did
        // not write it.
        ConfigKind::Conf | ConfigKind::Json => calls_plugin && !calls_others,
    }
}

/// Returns whether an upstream agent made `file` from a standalone config, and `file` has this
/// `entry`.
pub(super) fn is_converted_with(file: &ConfigFile, entry: &Entry, saved: &SavedState) -> bool {
    if !is_converted_by_upstream(file, saved) {
        return false;
    }
    match file.plugin_entry() {
        Some(chained) => entry.matches(chained.text),
        None => false,
    }
}

/// Plans to write the standalone config `name` with this `entry`.
pub(super) fn plan(name: &str, files: &[ConfigFile], entry: &Entry, saved: &SavedState) -> Plan {
    let mut plan = Plan::default();
    let existing = files.iter().find(|file| file.name == name);
    let is_foreign = |file: &ConfigFile| !is_saved(file, saved) && !may_be_own_content(file);
    if existing.is_some_and(is_foreign) {
        plan.not_chained = Some(format!(
            "{name} belongs to another program: set cniConfFileName to an unused name"
        ));
        return plan;
    }
    let text = match ConfigKind::from_file_name(name) {
        Some(ConfigKind::Conflist) => entry.standalone_conflist(),
        _ => entry.standalone_conf(),
    };
    let content = Content { text, access: FileAccess::own(MODE), link: None };
    let is_current = existing.is_some_and(|file| file.content.as_ref() == Ok(&content));
    if !saved.standalone_configs.contains(name) || !is_current {
        let state = if existing.is_some() { "is outdated" } else { "is missing" };
        plan.not_chained = Some(format!("{name} {state}"));
        plan.steps.push(Step::WriteStandalone {
            name: name.to_owned(),
            text: content.text,
            access: content.access,
        });
    }
    let is_active = active_config(files).is_some_and(|active| active.name == name);
    let hides_others = files.iter().any(|file| file.name != name && is_loadable(file));
    if is_active && hides_others {
        plan.warning = Some(format!(
            "{name} sorts before the other network configs: if a runtime reads this directory, \
             pods get no network; set cniConfFileName to a name that sorts last"
        ));
    }
    plan
}
