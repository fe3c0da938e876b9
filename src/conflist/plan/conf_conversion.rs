//! Plans to convert a `.conf` or `.json` to a conflist, because only a conflist can have the plugin
//! entry.

use super::step::Step;
use crate::conflist::net_dir::{ConfigFile, Content};
use crate::conflist::saved_state::{Original, SavedState};
use crate::conflist::{self, Conflist, Entry};

/// Plans to make a conflist with `entry` from `file`. `configs` are all network configs of the net
/// dir that are not standalone. The error is the rest of a sentence that starts with the file's
/// name.
pub(super) fn convert(
    file: &ConfigFile,
    content: &Content,
    configs: &[&ConfigFile],
    entry: &Entry,
    saved: &SavedState,
) -> Result<Step, String> {
    let without_entry = conflist::wrap(&content.text).map_err(|error| error.to_string())?;
    let name = choose_name(file, configs, saved)?;
    let chainable = Conflist::parse_chainable(&without_entry).map_err(|error| error.to_string())?;
    let text = chainable.with_entry(entry);
    let mut original = Original::new(&file.name, content, without_entry);
    if let Some(existing) = find_by_name(configs, &name)
        && let Some(text) = text_without_entry(existing)
        && text != original.without_entry
    {
        original.replaced_without_entry = Some(text);
    }
    Ok(Step::Convert { conflist: name, text, original })
}

/// Chooses the name of the conflist to make from `file`. Returns the name of the conflist that the
/// agent made from `file` before, or else an unused name. Never returns the name of another
/// conflist, because overwriting that one would lose a network config. Fails if other conflists
/// have both names that are possible.
fn choose_name(
    file: &ConfigFile,
    configs: &[&ConfigFile],
    saved: &SavedState,
) -> Result<String, String> {
    let names = conflist_names(&file.name);
    // If the agent made conflists with both names, the runtime loads the one with the second name,
    // which sorts first.
    for name in names.iter().rev() {
        if let Some(conflist) = find_by_name(configs, name)
            && is_made_from(conflist, &file.name, saved)
        {
            return Ok(name.clone());
        }
    }
    if let Some(unused) = names.iter().find(|name| find_by_name(configs, name).is_none()) {
        return Ok(unused.clone());
    }
    let mut existing: Vec<&str> = names.iter().map(String::as_str).collect();
    existing.retain(|name| find_by_name(configs, name).is_some());
    let (verb, pronoun) = if existing.len() == 1 { ("exists", "it") } else { ("exist", "them") };
    Err(format!(
        "is not converted, because {} already {verb} and this agent did not make {pronoun} from \
         this file; rename or remove one of these files",
        existing.join(" and ")
    ))
}

fn find_by_name<'f>(files: &[&'f ConfigFile], name: &str) -> Option<&'f ConfigFile> {
    files.iter().find(|file| file.name == name).copied()
}

/// Returns the names that the conflist made from the file `conf` can have, in order of preference.
/// Empty if `conf` is a conflist itself.
///
/// The second name is used for `10-x.conf` if another program has written a conflist
/// `10-x.conflist`. `10-x.conf.conflist` sorts between the two, so once `10-x.conf` is removed, the
/// runtime loads `10-x.conf.conflist`.
pub(super) fn conflist_names(conf: &str) -> Vec<String> {
    match conf.rsplit_once('.') {
        Some((stem, extension)) if extension != "conflist" => {
            vec![format!("{stem}.conflist"), format!("{conf}.conflist")]
        }
        _ => Vec::new(),
    }
}

/// Returns whether `file` has this name, or a name of a conflist that is made from the file `name`.
pub(super) fn is_named_or_converted(file: &ConfigFile, name: &str) -> bool {
    file.name == name || conflist_names(name).contains(&file.name)
}

/// Returns whether the agent made `conflist` from the file `conf`, and no other program has written
/// the conflist since. Both files exist if the primary CNI has written `conf` again, or if the
/// agent stopped before it removed `conf`.
fn is_made_from(conflist: &ConfigFile, conf: &str, saved: &SavedState) -> bool {
    let Some(without_entry) = text_without_entry(conflist) else {
        return false;
    };
    match saved.original(&conflist.name, &without_entry) {
        Some(original) => original.name == conf,
        None => false,
    }
}

/// Returns the text of a conflist without the plugin entry. `None` if `file` is not a conflist.
pub(super) fn text_without_entry(file: &ConfigFile) -> Option<String> {
    Some(file.conflist()?.without_entry())
}
