//! Applies one step of a chaining plan to the net dir.

use std::path::Path;

use crate::conflist::net_dir::{ConfigFile, Content};
use crate::conflist::plan;
use crate::conflist::plan::Step;
use crate::conflist::saved_state::SavedState;
use crate::files;

/// Returns the content of the file `name` at the time of the scan, if it could be read.
pub(super) fn content<'f>(found: &'f [ConfigFile], name: &str) -> Option<&'f Content> {
    let file = found.iter().find(|file| file.name == name)?;
    file.content.as_ref().ok()
}

/// Applies `step` to the files in `dir`, which held `found` at the time of the scan.
///
/// The order survives SIGKILL: first the saved state that uninstall needs, then the conflist,
/// and last the removal of the file that the conflist replaces.
///
/// # Errors
/// If a file cannot be written; [`files::Error::Raced`] if another program wrote it since the
/// scan.
pub(super) fn apply(
    dir: &Path,
    found: &[ConfigFile],
    step: &Step,
    saved_state: &mut SavedState,
) -> Result<(), files::Error> {
    if let Step::Own { name, text, access, of } = step {
        if saved_state.own.get(name) != Some(of) {
            saved_state.own.insert(name.clone(), of.clone());
            saved_state.save(dir)?;
        }
        let path = dir.join(name);
        return match content(found, name) {
            Some(file) if file.link.is_none() => {
                files::rewrite(&path, file.text.as_bytes(), text.as_bytes(), *access)
            }
            _ => files::write(&path, text.as_bytes(), *access),
        };
    }
    let Some(before) = content(found, step.source()) else {
        return Ok(());
    };
    if let Some(origin) = plan::record(step, before, found, saved_state)
        && saved_state.lists.get(step.list()) != Some(&origin)
    {
        saved_state.lists.insert(step.list().to_owned(), origin);
        saved_state.save(dir)?;
    }
    match step {
        Step::Patch { name, text } => {
            let path = dir.join(name);
            files::rewrite(&path, before.text.as_bytes(), text.as_bytes(), before.access)
        }
        Step::Convert { conf, list, text, .. } => {
            let conf = dir.join(conf);
            let (path, new) = (dir.join(list), text.as_bytes());
            match content(found, list) {
                Some(file) if file.text == *text => {}
                Some(file) => files::rewrite(&path, file.text.as_bytes(), new, before.access)?,
                None => files::create(&path, new, before.access, &conf)?,
            }
            files::unchanged(&conf, before.text.as_bytes())?;
            files::remove(&conf).map(|_| ())
        }
        Step::Own { .. } => Ok(()),
    }
}
