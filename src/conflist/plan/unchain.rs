//! Plans how to unchain the plugin: from all network configs for an uninstall, or from the files
//! that another mode left.

use super::conf_conversion::is_named_or_converted;
use super::step::Step;
use super::{multus, standalone};
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind};
use crate::conflist::saved_state::{Original, OriginalContent, SavedState};
use crate::conflist::{Entry, plugin_entries};

/// Plans how to unchain the plugin from all network configs `files`. If Cilium has renamed a
/// network config, its original is restored with Cilium's suffix.
pub fn unchain(files: &[ConfigFile], saved: &SavedState) -> Vec<Step> {
    files.iter().filter_map(|file| unchain_file(files, file, saved)).collect()
}

/// Plans to remove what agents of this project left in other network configs than those of `mode`.
/// `own_entry` is the plugin entry of this agent. `yielded_entry` is the entry of another agent,
/// while this agent yields to that one. Call this only once the network config of `mode` is
/// correct, so that the plugin stays chained.
pub fn unchain_other_modes(
    mode: &ChainMode,
    files: &[ConfigFile],
    own_entry: &Entry,
    yielded_entry: Option<&Entry>,
    saved: &SavedState,
) -> Vec<Step> {
    // The other agent would write its entry again, which may look like one of this project.
    let is_foreign = |entry: &str| {
        own_entry.is_foreign(entry) || yielded_entry.is_some_and(|yielded| yielded.matches(entry))
    };
    let mut steps = Vec::new();
    for file in files {
        if is_leftover(mode, file, saved)
            && let Some(step) = unchain_own_entries(files, file, is_foreign, saved)
        {
            steps.push(step);
        }
    }
    steps
}

/// Plans how to remove the plugin entries of this project's agents from `file`. Entries of other
/// programs, for which `is_foreign` returns true, stay, because those programs would write them
/// again.
fn unchain_own_entries(
    files: &[ConfigFile],
    file: &ConfigFile,
    is_foreign: impl Fn(&str) -> bool,
    saved: &SavedState,
) -> Option<Step> {
    if standalone::is_saved(file, saved) || standalone::is_converted_by_upstream(file, saved) {
        return unchain_file(files, file, saved);
    }
    let entries = plugin_entries(file.text());
    let foreign_count = entries.iter().filter(|entry| is_foreign(entry)).count();
    if foreign_count == 0 {
        return unchain_file(files, file, saved);
    }
    if foreign_count == entries.len() {
        return None;
    }
    let text = file.conflist()?.without_entries(|entry| !is_foreign(entry));
    Some(Step::Replace { name: file.name.clone(), text, original: None })
}

/// Returns whether another mode than `mode` may have written `file`.
fn is_leftover(mode: &ChainMode, file: &ConfigFile, saved: &SavedState) -> bool {
    match mode {
        ChainMode::Every => standalone::is_standalone(file, saved),
        ChainMode::Only(name) => {
            file.name != *name
                && (standalone::is_standalone(file, saved) || !is_named_or_converted(file, name))
        }
        ChainMode::Standalone(name) => file.name != *name,
    }
}

/// Plans how to unchain the plugin from `file`. `None` if there is nothing to do, or if the file
/// cannot be read or parsed.
fn unchain_file(files: &[ConfigFile], file: &ConfigFile, saved: &SavedState) -> Option<Step> {
    if standalone::is_standalone(file, saved) {
        return Some(Step::remove(file));
    }
    if file.kind != ConfigKind::Conflist {
        return None;
    }
    let conflist = file.conflist()?;
    let without_entry = conflist.without_entry();
    let (config_name, _) = file.split_name();
    if let Some(original) = saved.original(config_name, &without_entry) {
        return restore_original(files, file, original);
    }
    if !conflist.calls_plugin() {
        return None;
    }
    let file_refs: Vec<&ConfigFile> = files.iter().collect();
    if multus::is_stale_conflist(file, &file_refs) {
        return Some(Step::remove(file));
    }
    Some(Step::Replace { name: file.name.clone(), text: without_entry, original: None })
}

/// Plans to restore `original`, from which the agent made `file`. If another program has written
/// the original again, only `file` is removed. `None` if `file` is the original.
fn restore_original(files: &[ConfigFile], file: &ConfigFile, original: &Original) -> Option<Step> {
    if is_original_link(file, original) {
        return None;
    }
    let (_, suffix) = file.split_name();
    let original = Original { name: format!("{}{suffix}", original.name), ..original.clone() };
    if original.name != file.name && files.iter().any(|other| other.name == original.name) {
        return Some(Step::remove(file));
    }
    Some(Step::Restore { conflist: file.name.clone(), original })
}

/// Returns whether `file` is the original symbolic link: the agent has not replaced the link, or
/// the link was restored.
fn is_original_link(file: &ConfigFile, original: &Original) -> bool {
    match (&file.content, &original.content) {
        (Ok(content), OriginalContent::Link(target)) => content.link.as_ref() == Some(target),
        _ => false,
    }
}
