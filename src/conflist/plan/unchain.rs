//! Plans how to unchain the plugin: everywhere for uninstall, or from files that another mode left.

use std::collections::BTreeSet;

use super::convert::list_name;
use super::own;
use super::steps::UnchainStep;
use crate::conflist::Conflist;
use crate::conflist::mode::ChainMode;
use crate::conflist::net_dir::{ConfigFile, ConfigKind};
use crate::conflist::saved_state::{OriginalContent, SavedState};

/// Plans how to unchain the plugin from all network configs `found`.
///
/// # Errors
/// `chained` names the conflists that had the plugin entry before. An element is an error if such a
/// conflist is not readable now.
pub fn unchain(
    found: &[ConfigFile],
    saved: &SavedState,
    chained: &BTreeSet<String>,
) -> Vec<Result<UnchainStep, String>> {
    let files = found.iter();
    files.filter_map(|file| unchain_file(found, file, saved, chained).transpose()).collect()
}

/// Plans how to remove what another mode than `mode` left. Call it once the file of `mode` is
/// correct.
pub fn leftovers(mode: &ChainMode, found: &[ConfigFile], saved: &SavedState) -> Vec<UnchainStep> {
    let is_leftover = |file: &&ConfigFile| match mode {
        ChainMode::Every => own::is_own(file, saved),
        ChainMode::Only(name) => {
            file.name != *name && (own::is_own(file, saved) || file.name != list_name(name))
        }
        ChainMode::Standalone(name) | ChainMode::Copy(name) => file.name != *name,
    };
    let no_conflists = BTreeSet::new();
    let leftovers = found.iter().filter(is_leftover);
    leftovers
        .filter_map(|file| unchain_file(found, file, saved, &no_conflists).ok().flatten())
        .collect()
}

/// Plans how to unchain the plugin from `file`; `None` if there is nothing to do.
fn unchain_file(
    found: &[ConfigFile],
    file: &ConfigFile,
    saved: &SavedState,
    chained: &BTreeSet<String>,
) -> Result<Option<UnchainStep>, String> {
    let damaged = |reason: String| match chained.contains(&file.name) {
        true => Err(format!("{} {reason}", file.name)),
        false => Ok(None),
    };
    if own::is_own(file, saved) {
        let list = file.name.clone();
        return Ok(Some(UnchainStep::Drop { list }));
    }
    if file.kind != ConfigKind::Conflist {
        return Ok(None);
    }
    let content = match &file.content {
        Ok(content) => content,
        Err(reason) => return damaged(reason.clone()),
    };
    let list = match Conflist::read(&content.text) {
        Ok(list) => list,
        Err(error) => return damaged(error.to_string()),
    };
    let bare = list.without();
    if let Some(origin) = saved.origin(&file.name, &bare) {
        if let (OriginalContent::Link(target), Some(link)) = (&origin.content, &content.link)
            && target == link
        {
            // The link was restored, or not replaced yet.
            return Ok(None);
        }
        let name = file.name.clone();
        let original_exists =
            origin.name != name && found.iter().any(|other| other.name == origin.name);
        return Ok(Some(match original_exists {
            true => UnchainStep::Drop { list: name },
            false => UnchainStep::Restore { list: name, origin: origin.clone() },
        }));
    }
    Ok(list.calls_plugin().then(|| UnchainStep::Cut { name: file.name.clone(), text: bare }))
}
