//! Plans how to unchain the plugin: everywhere for uninstall, or from files that another mode left.

use super::conf_conversion::is_named;
use super::{Step, multus, standalone};
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind};
use crate::conflist::saved_state::{Original, OriginalContent, SavedState};

/// Plans how to unchain the plugin from all network configs `found`. Of one that Cilium has renamed,
/// the original is restored under its name with Cilium's suffix.
pub fn unchain(found: &[ConfigFile], saved: &SavedState) -> Vec<Step> {
    found.iter().filter_map(|file| unchain_file(found, file, saved)).collect()
}

/// Plans to remove the files of other modes. Call it once the file of `mode` is correct.
pub fn other_modes(mode: &ChainMode, found: &[ConfigFile], saved: &SavedState) -> Vec<Step> {
    let is_leftover = |file: &&ConfigFile| match mode {
        ChainMode::Every => standalone::is_standalone(file, saved),
        ChainMode::Only(name) => {
            file.name != *name && (standalone::is_standalone(file, saved) || !is_named(file, name))
        }
        ChainMode::Standalone(name) => file.name != *name,
    };
    let leftovers = found.iter().filter(is_leftover);
    leftovers.filter_map(|file| unchain_file(found, file, saved)).collect()
}

/// Returns `None` if there is nothing to do, or if the file cannot be read or parsed.
fn unchain_file(found: &[ConfigFile], file: &ConfigFile, saved: &SavedState) -> Option<Step> {
    if standalone::is_standalone(file, saved) {
        return Some(Step::remove(file));
    }
    if file.kind != ConfigKind::Conflist {
        return None;
    }
    let conflist = file.conflist().ok()?;
    let without_entry = conflist.without_entry();
    let (config, suffix) = file.split_name();
    if let Some(original) = saved.original(config, &without_entry) {
        let link = file.content.as_ref().ok().and_then(|content| content.link.as_ref());
        if let OriginalContent::Link(target) = &original.content
            && link == Some(target)
        {
            // The file is the original symbolic link, still or again: there is nothing to undo.
            return None;
        }
        let name = file.name.clone();
        let original = Original { name: format!("{}{suffix}", original.name), ..original.clone() };
        let original_exists =
            original.name != name && found.iter().any(|other| other.name == original.name);
        let restore = Step::Restore { conflist: name, original };
        return Some(if original_exists { Step::remove(file) } else { restore });
    }
    let found: Vec<&ConfigFile> = found.iter().collect();
    let name = file.name.clone();
    match conflist.calls_plugin() {
        false => None,
        true if multus::made(&found).any(|made| made.name == name) => Some(Step::remove(file)),
        true => Some(Step::Replace { name, text: without_entry, original: None }),
    }
}
