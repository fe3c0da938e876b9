//! The file that is ours as a whole: a standalone configuration, or a copy of the
//! network's own with us in it.

use super::{Chaining, Step, Undo, loadable, loaded, nothing};
use crate::conflist;
use crate::conflist::mode;
use crate::conflist::net_dir::{Content, Found, Kind};
use crate::conflist::saved_state::Journal;
use crate::conflist::{Entry, List, PLUGIN, plugin_types};
use crate::files::Access;

/// Other programs than a runtime have no need to read it.
const MODE: u32 = 0o600;

/// Whether `file` is ours as a whole. Where the journal was lost, the names tell that
/// nobody else would take.
pub fn is(file: &Found, journal: &Journal) -> bool {
    journal.own.contains_key(&file.name)
        || [mode::STANDALONE, mode::COPY].contains(&&*file.name) && names_us(file)
}

/// Whether our plugin is called in the file.
fn names_us(file: &Found) -> bool {
    let Ok(content) = &file.content else {
        return false;
    };
    let types = plugin_types(&content.text);
    let is_ours = |kind: &String| kind == PLUGIN;
    match file.kind {
        Kind::List => types.iter().any(is_ours),
        // A `.conf` with another plugin in it is a network.
        Kind::Conf | Kind::Json => !types.is_empty() && types.iter().all(is_ours),
    }
}

/// Keeps the standalone configuration `name`.
pub fn standalone(name: &str, found: &[Found], entry: &Entry, journal: &Journal) -> Chaining {
    let wanted = Content {
        text: match Kind::of(name) {
            Some(Kind::List) => entry.as_list(),
            _ => entry.as_conf(),
        },
        access: Access::own(MODE),
        link: None,
    };
    let mut plan = Chaining::default();
    plan.keep(name, found, wanted, None, journal);
    let first = loaded(found).filter(|loaded| loaded.name == name);
    let others = found.iter().any(|file| file.name != name && loadable(file));
    if first.is_some() && others {
        plan.doubt = Some(format!(
            "{name} comes before all other configurations here: a runtime that reads this \
             directory would give pods no network but that; set cniConfFileName to a later name"
        ));
    }
    plan
}

/// Keeps the copy `name` of the network that the runtime would load without it.
pub fn copy(
    name: &str,
    found: &[Found],
    theirs: &[&Found],
    entry: &Entry,
    journal: &Journal,
) -> Chaining {
    let mut plan = Chaining::default();
    let there = found.iter().find(|file| file.name == name);
    plan.bare = taken(there, journal);
    if plan.bare.is_some() {
        return plan;
    }
    let source = match source(theirs, journal.own.get(name).and_then(Option::as_deref)) {
        Source::Whole(file) => file,
        Source::Damaged(file) => {
            plan.bare = Some(format!(
                "{} cannot be read as a network now, so {name} is a copy of what it was",
                file.name
            ));
            return plan;
        }
        Source::None => {
            plan.bare = Some(nothing(theirs));
            let ours = there.filter(|file| is(file, journal));
            plan.undo.extend(ours.map(|file| Undo::Drop {
                list: file.name.clone(),
            }));
            return plan;
        }
    };
    let wanted = match wanted(source, entry) {
        Ok(wanted) => wanted,
        Err(why) => {
            plan.bare = Some(format!("{} {why}", source.name));
            return plan;
        }
    };
    plan.keep(name, found, wanted, Some(source.name.clone()), journal);
    if plan.bare.is_none() && loaded(found).is_some_and(|loaded| loaded.name != name) {
        plan.bare = Some(format!(
            "the runtime loads {}, which comes before {name}: set cniConfFileName to a name that \
             comes first",
            source.name
        ));
    }
    plan
}

/// What there is to copy.
enum Source<'f> {
    Whole(&'f Found),
    /// What was copied is there, but not whole.
    Damaged(&'f Found),
    None,
}

/// The first network, unless the one that was copied, `of`, comes before it and is only
/// being written.
fn source<'f>(theirs: &[&'f Found], of: Option<&str>) -> Source<'f> {
    for file in theirs {
        if loadable(file) {
            return Source::Whole(file);
        }
        if of == Some(&file.name) {
            return Source::Damaged(file);
        }
    }
    Source::None
}

/// The chain of `source` and `entry`, for those who may read `source`.
fn wanted(source: &Found, entry: &Entry) -> Result<Content, String> {
    let there = source.content.as_ref().map_err(Clone::clone)?;
    let says = |error: conflist::Error| error.to_string();
    let bare = match source.kind {
        Kind::List => there.text.clone(),
        Kind::Conf | Kind::Json => conflist::wrap(&there.text).map_err(says)?,
    };
    Ok(Content {
        text: List::parse(&bare).map_err(says)?.with(entry),
        access: there.access,
        link: None,
    })
}

/// Why the file that is to be ours is somebody else's, if it is.
fn taken(there: Option<&Found>, journal: &Journal) -> Option<String> {
    let file = there.filter(|file| !journal.own.contains_key(&file.name) && !names_us(file))?;
    Some(format!(
        "{} is not ours: set cniConfFileName to a name that is not taken",
        file.name
    ))
}

impl Chaining {
    /// Plans that the file `name` is `wanted`, if it is not and is no one else's.
    fn keep(
        &mut self,
        name: &str,
        found: &[Found],
        wanted: Content,
        of: Option<String>,
        journal: &Journal,
    ) {
        let there = found.iter().find(|file| file.name == name);
        if let Some(why) = taken(there, journal) {
            self.bare = Some(why);
            return;
        }
        let is_right = |file: &Found| file.content.as_ref() == Ok(&wanted);
        if there.is_some_and(is_right) && journal.own.get(name) == Some(&of) {
            return;
        }
        self.bare = Some(format!("{name} is not what it should be"));
        self.steps.push(Step::Own {
            name: name.to_owned(),
            text: wanted.text,
            access: wanted.access,
            of,
        });
    }
}

#[cfg(test)]
mod tests;
