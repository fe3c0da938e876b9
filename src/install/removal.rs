//! Undoing everything, in the order that never leaves a network naming a plugin that is
//! gone: network configuration, kubeconfig, programs, and last what we noted for it.

use std::collections::BTreeSet;
use std::path::Path;

use tracing::info;

use super::binaries::Binaries;
use super::conflist::PLUGIN;
use super::environment::Settings;
use super::files;
use super::journal::{self, Content, Journal};
use super::leftovers;
use super::netdir;
use super::plan::{self, Undo};
use super::records;

/// How often the configurations are looked at anew because somebody else wrote them.
const TRIES: usize = 5;

/// What could not be undone.
#[derive(Debug, Default)]
struct Failures {
    all: Vec<String>,
    /// A network still names us, so programs and kubeconfig must stay.
    chained: bool,
}

/// Removes all that any agent put onto the host. `lists` are the configurations that
/// carried us. What fails does not stop the rest; the failures are returned.
pub fn undo(settings: &Settings, lists: &BTreeSet<String>) -> Vec<String> {
    let mut failures = Failures::default();
    unchain(settings, lists, &mut failures);
    if let Err(error) = leftovers::tidy(settings) {
        failures.all.push(error.to_string());
    }
    if failures.chained {
        failures.all.push(format!(
            "kubeconfig and programs are left in place, since a network still names {PLUGIN}"
        ));
        return failures.all;
    }
    let programs = Binaries::wanted(settings).unwrap_or_else(|_| vec![PLUGIN.to_owned()]);
    let programs = programs.iter().map(|name| settings.bin_dir.join(name));
    for path in [settings.kubeconfig()].into_iter().chain(programs) {
        match files::remove(&path) {
            Ok(true) => info!("Removed {}", path.display()),
            Ok(false) => {}
            Err(error) => failures.all.push(error.to_string()),
        }
    }
    for name in [journal::NAME, records::NAME] {
        if let Err(error) = files::remove(&settings.net_dir.join(name)) {
            failures.all.push(error.to_string());
        }
    }
    failures.all
}

fn unchain(settings: &Settings, lists: &BTreeSet<String>, failures: &mut Failures) {
    let dir = &settings.net_dir;
    let journal = Journal::load(dir).unwrap_or_else(|why| {
        failures.all.push(why);
        Journal::default()
    });
    for tries in 1..=TRIES {
        let found = match netdir::scan(dir, &settings.kubeconfig_name) {
            Ok(found) => found,
            Err(error) if error.is_missing() => return,
            Err(error) => {
                failures.chained = true;
                return failures.all.push(error.to_string());
            }
        };
        let mut raced = false;
        for undo in plan::unchain(&found, &journal, lists) {
            let before = |name: &str| {
                let file = found.iter().find(|file| file.name == name)?;
                file.content.as_ref().ok()
            };
            match undo {
                Ok(undo) => match take(dir, &undo, before) {
                    Ok(()) => info!("Removed {PLUGIN} from {}", dir.join(undo.list()).display()),
                    Err(files::Error::Raced { .. }) if tries < TRIES => raced = true,
                    Err(error) => {
                        failures.chained = true;
                        failures.all.push(error.to_string());
                    }
                },
                Err(why) if tries == 1 => failures.all.push(why),
                Err(_) => {}
            }
        }
        if !raced {
            return;
        }
    }
}

/// Takes one step back. `before` is what a file held when that was decided.
pub fn take<'f>(
    dir: &Path,
    undo: &Undo,
    before: impl Fn(&str) -> Option<&'f netdir::Content>,
) -> Result<(), files::Error> {
    match undo {
        Undo::Cut { name, text } => match before(name) {
            Some(there) => {
                let (old, new) = (there.text.as_bytes(), text.as_bytes());
                files::rewrite(&dir.join(name), old, new, there.access)
            }
            None => Ok(()),
        },
        Undo::Restore { list, origin } => {
            let path = dir.join(&origin.name);
            match &origin.content {
                Content::Text(text) => files::write(&path, text.as_bytes(), origin.access())?,
                Content::Link(target) => files::link(&path, target)?,
            }
            // The original is there before the list goes: the node is never without.
            match origin.name == *list {
                true => Ok(()),
                false => files::remove(&dir.join(list)).map(|_| ()),
            }
        }
        Undo::Drop { list } => files::remove(&dir.join(list)).map(|_| ()),
    }
}
