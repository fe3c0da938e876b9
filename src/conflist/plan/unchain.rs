//! How to take us out again: all of it at the end, and what another mode left before.

use std::collections::BTreeSet;

use super::{list_name, own};
use crate::conflist::List;
use crate::conflist::mode::Mode;
use crate::conflist::net_dir::{Found, Kind};
use crate::conflist::saved_state;
use crate::conflist::saved_state::{Journal, Origin};

/// How to take our plugin out of one list.
#[derive(Debug, PartialEq, Eq)]
pub enum Undo {
    /// Write `text`, which is the list without our entry.
    Cut { name: String, text: String },
    /// Bring the file back that the list was made from.
    Restore { list: String, origin: Origin },
    /// The list was made from a file that its owner has written anew, or the file is ours
    /// as a whole.
    Drop { list: String },
}

impl Undo {
    /// The name of the list that carries us.
    pub fn list(&self) -> &str {
        match self {
            Undo::Cut { name, .. } => name,
            Undo::Restore { list, .. } | Undo::Drop { list } => list,
        }
    }
}

/// Decides how to take our plugin out of all that was `found`. `ours` are the lists that
/// carried us: where one cannot be read any more, that is an error.
pub fn unchain(
    found: &[Found],
    journal: &Journal,
    ours: &BTreeSet<String>,
) -> Vec<Result<Undo, String>> {
    let files = found.iter();
    files
        .filter_map(|file| undo(found, file, journal, ours).transpose())
        .collect()
}

/// What another mode than `mode` left, now that its own file is right.
pub fn leftovers(mode: &Mode, found: &[Found], journal: &Journal) -> Vec<Undo> {
    let is_left = |file: &&Found| match mode {
        Mode::Every => own::is(file, journal),
        Mode::Only(name) => {
            file.name != *name && (own::is(file, journal) || file.name != list_name(name))
        }
        Mode::Standalone(name) | Mode::Copy(name) => file.name != *name,
    };
    let nothing = BTreeSet::new();
    let left = found.iter().filter(is_left);
    left.filter_map(|file| undo(found, file, journal, &nothing).ok().flatten())
        .collect()
}

fn undo(
    found: &[Found],
    file: &Found,
    journal: &Journal,
    ours: &BTreeSet<String>,
) -> Result<Option<Undo>, String> {
    let damaged = |why: String| match ours.contains(&file.name) {
        true => Err(format!("{} {why}", file.name)),
        false => Ok(None),
    };
    if own::is(file, journal) {
        let list = file.name.clone();
        return Ok(Some(Undo::Drop { list }));
    }
    if file.kind != Kind::List {
        return Ok(None);
    }
    let content = match &file.content {
        Ok(content) => content,
        Err(why) => return damaged(why.clone()),
    };
    let list = match List::read(&content.text) {
        Ok(list) => list,
        Err(error) => return damaged(error.to_string()),
    };
    let bare = list.without();
    if let Some(origin) = journal.origin(&file.name, &bare) {
        if let (saved_state::Content::Link(target), Some(link)) = (&origin.content, &content.link)
            && target == link
        {
            return Ok(None);
        }
        let name = file.name.clone();
        let anew = origin.name != name && found.iter().any(|other| other.name == origin.name);
        return Ok(Some(match anew {
            true => Undo::Drop { list: name },
            false => Undo::Restore {
                list: name,
                origin: origin.clone(),
            },
        }));
    }
    Ok(list.names_us().then(|| Undo::Cut {
        name: file.name.clone(),
        text: bare,
    }))
}
