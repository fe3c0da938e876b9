//! Which configurations to change and how, decided from what is there. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::mode::Mode;
use super::net_dir::{Content, Found, Kind};
use super::saved_state;
use super::saved_state::{Journal, Origin};
use super::{Entry, List};
use crate::conflist;
use crate::files::Access;

mod own;

pub use unchain::{Undo, unchain};

/// The least that makes our plugin part of every network.
#[derive(Debug, Default)]
pub struct Chaining {
    pub steps: Vec<Step>,
    /// What another mode, or a network that is gone, left. Only planned once the file of
    /// this mode is right.
    pub undo: Vec<Undo>,
    /// Files that are left alone, and why.
    pub skipped: BTreeMap<String, String>,
    /// Lists that carry us or are about to.
    pub lists: BTreeSet<String>,
    /// Why the network that is to carry our current entry does not.
    pub bare: Option<String>,
    /// What may be as it should be, or may not: nobody can tell from here.
    pub doubt: Option<String>,
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
    /// Write the file `name`, which is ours as a whole, perhaps as a copy of `of`.
    Own {
        name: String,
        text: String,
        access: Access,
        of: Option<String>,
    },
}

/// Decides how to put `entry` where `mode` wants it among the configurations that were
/// `found`.
pub fn chain(mode: &Mode, found: &[Found], entry: &Entry, journal: &Journal) -> Chaining {
    let theirs: Vec<&Found> = found
        .iter()
        .filter(|file| mode.own() != Some(&file.name) && !own::is(file, journal))
        .collect();
    let mut plan = match mode {
        Mode::Every => every(&theirs, entry, journal),
        Mode::Only(name) => only(name, &theirs, entry, journal),
        Mode::Standalone(name) => own::standalone(name, found, entry, journal),
        Mode::Copy(name) => own::copy(name, found, &theirs, entry, journal),
    };
    if plan.steps.is_empty() && plan.bare.is_none() {
        plan.undo = unchain::leftovers(mode, found, journal);
    }
    plan
}

/// Every list and every `.conf` as upstream does, a `.json` only if it is what the
/// runtime loads.
fn every(theirs: &[&Found], entry: &Entry, journal: &Journal) -> Chaining {
    let mut plan = Chaining::default();
    let loaded = first(theirs);
    for file in theirs {
        if file.kind != Kind::Json || loaded.is_some_and(|loaded| loaded.name == file.name) {
            plan.take_up(theirs, file, entry, journal);
        }
    }
    plan.bare = match loaded {
        None => Some(nothing(theirs)),
        Some(file) if carries(file, entry) => None,
        Some(file) => Some(format!(
            "the runtime loads {}, which does not carry our entry{}",
            file.name,
            plan.because(&file.name)
        )),
    };
    plan
}

/// The file `name` alone, and the list that a `.conf` becomes.
fn only(name: &str, theirs: &[&Found], entry: &Entry, journal: &Journal) -> Chaining {
    let mut plan = Chaining::default();
    let single = Kind::of(name).is_some_and(|kind| kind != Kind::List);
    let list = single.then(|| list_name(name));
    let is_it = |file: &&&Found| file.name == name || list.as_ref() == Some(&file.name);
    let named: Vec<&&Found> = theirs.iter().filter(is_it).collect();
    for file in &named {
        plan.take_up(theirs, file, entry, journal);
    }
    plan.bare = match named.first() {
        None => Some(format!(
            "there is no {name} yet, which cniConfFileName says to chain to{}",
            others(theirs)
        )),
        Some(file) if carries(file, entry) => None,
        Some(file) => Some(format!(
            "{} does not carry our entry{}",
            file.name,
            plan.because(&file.name)
        )),
    };
    plan.doubt = first(theirs)
        .filter(|loaded| plan.bare.is_none() && !named.iter().any(|file| file.name == loaded.name))
        .map(|loaded| {
            format!(
                "the runtime loads {}; linkerd-cni is called only if that calls {name}, to which \
                 cniConfFileName chains it",
                loaded.name
            )
        });
    plan
}

/// Why no network is loaded.
fn nothing(theirs: &[&Found]) -> String {
    match theirs.is_empty() {
        true => "there is no network configuration yet".into(),
        false => "there is no valid network configuration yet".into(),
    }
}

/// What is there instead, for a name that may have been mistyped.
fn others(theirs: &[&Found]) -> String {
    let names: Vec<&str> = theirs.iter().map(|file| file.name.as_str()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" (there is {})", names.join(", ")),
    }
}

impl Chaining {
    /// Plans what `file` needs, if anything.
    fn take_up(&mut self, theirs: &[&Found], file: &Found, entry: &Entry, journal: &Journal) {
        match step(theirs, file, entry, journal) {
            Ok(Some(step)) => {
                self.lists.insert(step.list().to_owned());
                self.steps.push(step);
            }
            Ok(None) => {
                self.lists.insert(file.name.clone());
            }
            Err(why) => {
                self.skipped.insert(file.name.clone(), why);
            }
        }
    }

    /// Why `name` was skipped, in brackets.
    fn because(&self, name: &str) -> String {
        let why = self.skipped.get(name);
        why.map_or_else(String::new, |why| format!(" ({why})"))
    }
}

impl Step {
    /// The name of the file that the step starts from.
    pub fn source(&self) -> &str {
        match self {
            Step::Patch { name, .. } | Step::Own { name, .. } => name,
            Step::Convert { conf, .. } => conf,
        }
    }

    /// The name of the list that the step writes.
    pub fn list(&self) -> &str {
        match self {
            Step::Patch { name, .. } | Step::Own { name, .. } => name,
            Step::Convert { list, .. } => list,
        }
    }
}

fn step(
    theirs: &[&Found],
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
    if let Some(beside) = theirs.iter().find(|other| other.name == name)
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

/// The same among files of others.
fn first<'f>(theirs: &[&'f Found]) -> Option<&'f Found> {
    theirs.iter().copied().find(|file| loadable(file))
}

/// Whether a runtime would load the file.
fn loadable(file: &Found) -> bool {
    let Ok(content) = &file.content else {
        return false;
    };
    match file.kind {
        Kind::List => List::read(&content.text).and_then(|list| list.loadable()),
        Kind::Conf | Kind::Json => conflist::conf_loadable(&content.text),
    }
    .is_ok()
}

fn carries(file: &Found, entry: &Entry) -> bool {
    let text = file.content.as_ref().map(|content| content.text.as_str());
    file.kind == Kind::List
        && text.is_ok_and(|text| List::parse(text).is_ok_and(|list| list.carries(entry)))
}

/// Whether the network config `text` calls our plugin.
pub fn names_us(text: &str) -> bool {
    conflist::plugin_entry(text).is_some()
}

/// Whether the network config that has to carry the plugin entry in this `mode` has one:
/// the active one, or the one that `cniConfFileName` names.
pub fn is_chained(mode: &Mode, found: &[Found]) -> bool {
    let chained = |file: &Found| {
        let content = file.content.as_ref();
        content.is_ok_and(|content| names_us(&content.text))
    };
    match mode {
        Mode::Only(name) => found
            .iter()
            .any(|file| (file.name == *name || file.name == list_name(name)) && chained(file)),
        Mode::Every | Mode::Standalone(_) | Mode::Copy(_) => loaded(found).is_some_and(chained),
    }
}

/// What to remember of `content` before `step` is taken, if the list alone would not do.
pub fn record(
    step: &Step,
    content: &Content,
    found: &[Found],
    journal: &Journal,
) -> Option<Origin> {
    let (name, bare) = match step {
        Step::Convert { conf, bare, .. } => (conf, bare.clone()),
        Step::Patch { name, .. } => {
            content.link.as_ref()?;
            (name, List::read(&content.text).ok()?.without())
        }
        Step::Own { .. } => return None,
    };
    let there = found.iter().find(|file| file.name == step.list());
    let made = there.filter(|list| list.name != *name && made_from(list, name, journal));
    let was = made.and_then(|list| {
        let text = &list.content.as_ref().ok()?.text;
        Some(List::read(text).ok()?.without())
    });
    Some(Origin {
        was: was.filter(|was| *was != bare),
        bare,
        name: name.clone(),
        content: match &content.link {
            Some(target) => saved_state::Content::Link(target.clone()),
            None => saved_state::Content::Text(content.text.clone()),
        },
        mode: content.access.mode,
        uid: content.access.uid,
        gid: content.access.gid,
    })
}

#[cfg(test)]
mod tests;
mod unchain;
