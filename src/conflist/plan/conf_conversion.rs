//! Conflists that the agent makes from a `.conf` or `.json`.

use super::{Inputs, Step};
use crate::conflist::net_dir::{ConfigFile, Content};
use crate::conflist::saved_state::{Original, SavedState};
use crate::conflist::{self, Conflist};

impl Inputs<'_> {
    pub(super) fn convert(&self, file: &ConfigFile, content: &Content) -> Result<Step, String> {
        let describe = |error: conflist::Error| error.to_string();
        let without_entry = conflist::wrap(&content.text).map_err(describe)?;
        let conflist = self.unused_name(file, &content.text)?;
        let text =
            Conflist::parse_chainable(&without_entry).map_err(describe)?.with_entry(self.entry);
        let replaced = self.foreign.iter().find(|other| other.name == conflist);
        let replaced_without_entry = replaced
            .and_then(|replaced| without_entry_of(replaced))
            .filter(|replaced| *replaced != without_entry);
        let mut original = Original::new(&file.name, content, without_entry);
        original.replaced_without_entry = replaced_without_entry;
        Ok(Step::Convert { conflist, text, original })
    }

    /// Returns the name of the conflist to make from `file`, whose content is `text`. Never the name of
    /// a conflist that the agent did not make: overwriting it would lose a network config.
    /// Fails if both names are used, or if a runtime loads the existing conflist instead of `file`.
    fn unused_name(&self, file: &ConfigFile, text: &str) -> Result<String, String> {
        let names = conflist_names(&file.name);
        let existing = |name: &String| self.foreign.iter().find(|other| other.name == *name);
        let is_made = |name: &&String| {
            existing(name).is_some_and(|conflist| is_made_from(conflist, &file.name, self.saved))
        };
        // If the agent made both, the runtime loads the second one.
        if let Some(made) = names.iter().rev().find(is_made) {
            return Ok(made.clone());
        }
        match names.iter().position(|name| existing(name).is_none()) {
            // The second name would make a runtime load a file that it skips now.
            Some(1) if conflist::check_conf_loadable(text).is_err() => {}
            Some(unused) => return Ok(names[unused].clone()),
            None => {}
        }
        let existing: Vec<&str> =
            names.iter().filter(|name| existing(name).is_some()).map(String::as_str).collect();
        let (exist, them) = if existing.len() == 1 { ("exists", "it") } else { ("exist", "them") };
        Err(format!(
            "is not converted, because {} already {exist} and this agent did not make {them} from this \
             file; rename or remove one of these files",
            existing.join(" and ")
        ))
    }
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

/// Whether `file` is `name` or can be made from it.
pub(super) fn is_named(file: &ConfigFile, name: &str) -> bool {
    file.name == name || conflist_names(name).contains(&file.name)
}

/// Returns whether the agent made `conflist` from `conf` and no other program wrote it since. If
/// both exist, the primary CNI wrote `conf` again, or the agent stopped before it removed `conf`.
fn is_made_from(conflist: &ConfigFile, conf: &str, saved: &SavedState) -> bool {
    let original = without_entry_of(conflist)
        .and_then(|without_entry| saved.original(&conflist.name, &without_entry));
    original.is_some_and(|original| original.name == conf)
}

pub(super) fn without_entry_of(file: &ConfigFile) -> Option<String> {
    Some(file.conflist().ok()?.without_entry())
}
