//! Conflists that the agent makes from a `.conf` or `.json`.

use super::step::Step;
use crate::conflist::net_dir::{ConfigFile, Content};
use crate::conflist::saved_state::{Original, SavedState};
use crate::conflist::{self, Conflist, Entry};

/// Plans to make a conflist with `entry` from `file`, beside the network configs `foreign`. Fails
/// with the rest of a sentence that starts with the file's name.
pub(super) fn convert(
    file: &ConfigFile,
    content: &Content,
    foreign: &[&ConfigFile],
    entry: &Entry,
    saved: &SavedState,
) -> Result<Step, String> {
    let without_entry = conflist::wrap(&content.text).map_err(|error| error.to_string())?;
    let conflist = choose_name(file, foreign, saved)?;
    let chainable = Conflist::parse_chainable(&without_entry).map_err(|error| error.to_string())?;
    let text = chainable.with_entry(entry);
    let mut original = Original::new(&file.name, content, without_entry);
    if let Some(replaced) = find(foreign, &conflist).and_then(without_entry_of)
        && replaced != original.without_entry
    {
        original.replaced_without_entry = Some(replaced);
    }
    Ok(Step::Convert { conflist, text, original })
}

/// Returns the name of the conflist to make from `file`. Never the name of
/// a conflist that the agent did not make: overwriting it would lose a network config.
/// Fails if both names are used.
fn choose_name(
    file: &ConfigFile,
    foreign: &[&ConfigFile],
    saved: &SavedState,
) -> Result<String, String> {
    let names = conflist_names(&file.name);
    // If the agent made both, the runtime loads the second one.
    for name in names.iter().rev() {
        if let Some(conflist) = find(foreign, name)
            && is_made_from(conflist, &file.name, saved)
        {
            return Ok(name.clone());
        }
    }
    if let Some(unused) = names.iter().find(|name| find(foreign, name).is_none()) {
        return Ok(unused.clone());
    }
    let mut existing: Vec<&str> = names.iter().map(String::as_str).collect();
    existing.retain(|name| find(foreign, name).is_some());
    let (exist, them) = if existing.len() == 1 { ("exists", "it") } else { ("exist", "them") };
    Err(format!(
        "is not converted, because {} already {exist} and this agent did not make {them} from this \
         file; rename or remove one of these files",
        existing.join(" and ")
    ))
}

fn find<'f>(files: &[&'f ConfigFile], name: &str) -> Option<&'f ConfigFile> {
    files.iter().find(|file| file.name == name).copied()
}

/// Returns the names that the conflist made from `conf` can have, in order of preference. Empty if
/// `conf` is a conflist itself.
///
/// The second name is for `10-x.conf` beside a conflist `10-x.conflist` of another program:
/// `10-x.conf.conflist` sorts between the two, so the runtime loads it in place of `10-x.conf`.
pub(super) fn conflist_names(conf: &str) -> Vec<String> {
    match conf.rsplit_once('.') {
        Some((stem, extension)) if extension != "conflist" => {
            vec![format!("{stem}.conflist"), format!("{conf}.conflist")]
        }
        _ => Vec::new(),
    }
}

/// Returns whether `file` is `name` or can be made from it.
pub(super) fn is_named(file: &ConfigFile, name: &str) -> bool {
    file.name == name || conflist_names(name).contains(&file.name)
}

/// Returns whether the agent made `conflist` from `conf` and no other program wrote it since. If
/// both exist, the primary CNI wrote `conf` again, or the agent stopped before it removed `conf`.
fn is_made_from(conflist: &ConfigFile, conf: &str, saved: &SavedState) -> bool {
    let Some(without_entry) = without_entry_of(conflist) else {
        return false;
    };
    match saved.original(&conflist.name, &without_entry) {
        Some(original) => original.name == conf,
        None => false,
    }
}

/// Returns the text of a conflist without the plugin entry.
pub(super) fn without_entry_of(file: &ConfigFile) -> Option<String> {
    Some(file.conflist()?.without_entry())
}
