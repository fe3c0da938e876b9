//! One step of the plan, taken on the host.

use std::path::Path;

use crate::conflist::net_dir::{ConfigFile, Content};
use crate::conflist::plan;
use crate::conflist::plan::Step;
use crate::conflist::saved_state::SavedState;
use crate::files;

/// What the file of that name held when it was looked at, if that could be read.
pub(super) fn content<'f>(found: &'f [ConfigFile], name: &str) -> Option<&'f Content> {
    let file = found.iter().find(|file| file.name == name)?;
    file.content.as_ref().ok()
}

/// Takes one step: first what removal will need, then the list, then what it replaces.
pub(super) fn take(
    dir: &Path,
    found: &[ConfigFile],
    step: &Step,
    journal: &mut SavedState,
) -> Result<(), files::Error> {
    if let Step::Own {
        name,
        text,
        access,
        of,
    } = step
    {
        if journal.own.get(name) != Some(of) {
            journal.own.insert(name.clone(), of.clone());
            journal.save(dir)?;
        }
        let path = dir.join(name);
        return match content(found, name) {
            Some(there) if there.link.is_none() => {
                files::rewrite(&path, there.text.as_bytes(), text.as_bytes(), *access)
            }
            _ => files::write(&path, text.as_bytes(), *access),
        };
    }
    let Some(before) = content(found, step.source()) else {
        return Ok(());
    };
    if let Some(origin) = plan::record(step, before, found, journal)
        && journal.lists.get(step.list()) != Some(&origin)
    {
        journal.lists.insert(step.list().to_owned(), origin);
        journal.save(dir)?;
    }
    match step {
        Step::Patch { name, text } => {
            let path = dir.join(name);
            files::rewrite(
                &path,
                before.text.as_bytes(),
                text.as_bytes(),
                before.access,
            )
        }
        Step::Convert {
            conf, list, text, ..
        } => {
            let conf = dir.join(conf);
            let (path, new) = (dir.join(list), text.as_bytes());
            match content(found, list) {
                Some(there) if there.text == *text => {}
                Some(there) => files::rewrite(&path, there.text.as_bytes(), new, before.access)?,
                None => files::create(&path, new, before.access, &conf)?,
            }
            files::unchanged(&conf, before.text.as_bytes())?;
            files::remove(&conf).map(|_| ())
        }
        Step::Own { .. } => Ok(()),
    }
}
