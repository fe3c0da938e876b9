//! Which configurations to change and how, decided from what is there. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::conflist::{self, Entry, List};
use super::journal::{self, Journal, Origin};
use super::netdir::{Content, Found, Kind};

/// The least that makes our plugin part of every network.
#[derive(Debug, Default)]
pub struct Chaining {
    pub steps: Vec<Step>,
    /// Files that are left alone, and why.
    pub skipped: BTreeMap<String, String>,
    /// Lists that carry us or are about to.
    pub lists: BTreeSet<String>,
    /// Why the network that a runtime loads does not carry our current entry.
    pub bare: Option<String>,
}

/// One file to write.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Write `text` over the list `name`.
    Patch { name: String, text: String },
    /// Write `text` to `list` and then remove `conf`, a single plugin.
    Convert {
        conf: String,
        list: String,
        text: String,
        bare: String,
    },
}

/// Decides how to put `entry` into the configurations that were `found`: every list and
/// every `.conf` as upstream does, a `.json` only if it is what the runtime loads.
pub fn chain(found: &[Found], entry: &Entry, journal: &Journal) -> Chaining {
    let mut plan = Chaining::default();
    let loaded = loaded(found);
    for file in found {
        if file.kind == Kind::Json && loaded.is_none_or(|loaded| loaded.name != file.name) {
            continue;
        }
        match step(found, file, entry, journal) {
            Ok(Some(step)) => {
                plan.lists.insert(step.list().to_owned());
                plan.steps.push(step);
            }
            Ok(None) => {
                plan.lists.insert(file.name.clone());
            }
            Err(why) => {
                plan.skipped.insert(file.name.clone(), why);
            }
        }
    }
    plan.bare = match loaded {
        None if found.is_empty() => Some("there is no network configuration yet".into()),
        None => Some("there is no valid network configuration yet".into()),
        Some(file) if carries(file, entry) => None,
        Some(file) => Some(format!(
            "the runtime loads {}, which does not carry our entry{}",
            file.name,
            plan.skipped
                .get(&file.name)
                .map_or_else(String::new, |why| format!(" ({why})"))
        )),
    };
    plan
}

impl Step {
    /// The name of the file that the step starts from.
    pub fn source(&self) -> &str {
        match self {
            Step::Patch { name, .. } => name,
            Step::Convert { conf, .. } => conf,
        }
    }

    /// The name of the list that the step writes.
    pub fn list(&self) -> &str {
        match self {
            Step::Patch { name, .. } => name,
            Step::Convert { list, .. } => list,
        }
    }
}

fn step(
    found: &[Found],
    file: &Found,
    entry: &Entry,
    journal: &Journal,
) -> Result<Option<Step>, String> {
    let text = &file.content.as_ref().map_err(Clone::clone)?.text;
    let says = |error: conflist::Error| error.to_string();
    if file.kind == Kind::List {
        let list = List::parse(text).map_err(says)?;
        return Ok((!list.carries(entry)).then(|| Step::Patch {
            name: file.name.clone(),
            text: list.with(entry),
        }));
    }
    let bare = conflist::wrap(text).map_err(says)?;
    let name = list_name(&file.name);
    if let Some(beside) = found.iter().find(|other| other.name == name)
        && !made_from(beside, &file.name, journal)
    {
        // Overwriting it would lose a network (D-13).
        return Err(format!("has {name} beside it, which was not made from it"));
    }
    let text = List::parse(&bare).map_err(says)?.with(entry);
    Ok(Some(Step::Convert {
        conf: file.name.clone(),
        list: name,
        text,
        bare,
    }))
}

/// The list that is made from a `.conf` or `.json`.
fn list_name(conf: &str) -> String {
    let stem = conf.rsplit_once('.').map_or(conf, |(stem, _)| stem);
    format!("{stem}.conflist")
}

/// Whether we made this list from `conf` and nobody wrote it since. Then the network's
/// owner wrote `conf` anew, or we were stopped before we could remove it.
fn made_from(list: &Found, conf: &str, journal: &Journal) -> bool {
    origin(list, journal).is_some_and(|origin| origin.name == conf)
}

fn origin<'j>(list: &Found, journal: &'j Journal) -> Option<&'j Origin> {
    let text = &list.content.as_ref().ok()?.text;
    journal.origin(&list.name, &List::read(text).ok()?.without())
}

/// The configuration that the runtime loads.
pub fn loaded(found: &[Found]) -> Option<&Found> {
    found.iter().find(|file| loadable(file))
}

/// Whether a runtime would load the file.
fn loadable(file: &Found) -> bool {
    let Ok(content) = &file.content else {
        return false;
    };
    match file.kind {
        Kind::List => List::parse(&content.text).and_then(|list| list.loadable()),
        Kind::Conf | Kind::Json => conflist::conf_loadable(&content.text),
    }
    .is_ok()
}

fn carries(file: &Found, entry: &Entry) -> bool {
    let text = file.content.as_ref().map(|content| content.text.as_str());
    file.kind == Kind::List
        && text.is_ok_and(|text| List::parse(text).is_ok_and(|list| list.carries(entry)))
}

/// What to remember of `content` before `step` is taken, if the list alone would not do.
pub fn record(step: &Step, content: &Content) -> Option<Origin> {
    let (name, bare) = match step {
        Step::Convert { conf, bare, .. } => (conf, bare.clone()),
        Step::Patch { name, .. } => {
            content.link.as_ref()?;
            (name, List::read(&content.text).ok()?.without())
        }
    };
    Some(Origin {
        bare,
        name: name.clone(),
        content: match &content.link {
            Some(target) => journal::Content::Link(target.clone()),
            None => journal::Content::Text(content.text.clone()),
        },
        mode: content.access.mode,
        uid: content.access.uid,
        gid: content.access.gid,
    })
}

/// How to take our plugin out of one list.
#[derive(Debug, PartialEq, Eq)]
pub enum Undo {
    /// Write `text`, which is the list without our entry.
    Cut { name: String, text: String },
    /// Bring the file back that the list was made from.
    Restore { list: String, origin: Origin },
    /// The list was made from a file that its owner has written anew.
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
    let lists = found.iter().filter(|file| file.kind == Kind::List);
    lists
        .filter_map(|file| undo(found, file, journal, ours).transpose())
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
    let text = match &file.content {
        Ok(content) => &content.text,
        Err(why) => return damaged(why.clone()),
    };
    let list = match List::read(text) {
        Ok(list) => list,
        Err(error) => return damaged(error.to_string()),
    };
    let bare = list.without();
    if let Some(origin) = journal.origin(&file.name, &bare) {
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

#[cfg(test)]
mod tests;
