//! Undoing everything, in the order that never leaves a network naming a plugin that is
//! gone: network configuration, kubeconfig, programs, and last what we noted for it.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tracing::info;

use super::binaries::Binaries;
use super::conflist::PLUGIN;
use super::environment::Settings;
use super::files;
use super::journal::{self, Content, Journal};
use super::leftovers;
use super::netdir::{self, Found};
use super::plan::{self, Undo};
use super::records;

/// How often the configurations are looked at anew because somebody else wrote them, or
/// because they cannot be read,
const TRIES: usize = 5;
/// which may pass.
const PAUSE: Duration = Duration::from_millis(100);

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
    let (journal, why) = journal(&settings.net_dir);
    failures.all.extend(why);
    unchain(settings, &journal, lists, &mut failures);
    let left = leftovers::tidy(settings);
    failures.all.extend(left.iter().map(ToString::to_string));
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
    // One that cannot be read still says what a later try can give back.
    let journal = (!journal.unread).then_some(journal::NAME);
    for name in journal.into_iter().chain([records::NAME]) {
        if let Err(error) = files::remove(&settings.net_dir.join(name)) {
            failures.all.push(error.to_string());
        }
    }
    failures.all
}

fn unchain(
    settings: &Settings,
    journal: &Journal,
    lists: &BTreeSet<String>,
    failures: &mut Failures,
) {
    let dir = &settings.net_dir;
    for tries in 1..=TRIES {
        let found = match netdir::scan(dir, &settings.kubeconfig_name) {
            Ok(found) => found,
            Err(error) if error.is_missing() => return,
            Err(error) => {
                failures.chained = true;
                return failures.all.push(error.to_string());
            }
        };
        let (mut raced, mut damaged) = (false, Vec::new());
        for undo in plan::unchain(&found, journal, lists) {
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
                Err(why) => damaged.push(why),
            }
        }
        let hidden: Vec<&Found> = found.iter().filter(|file| is_hidden(dir, file)).collect();
        if tries < TRIES && !hidden.is_empty() {
            thread::sleep(PAUSE);
        } else if tries == TRIES || !raced {
            failures.chained |= !hidden.is_empty();
            failures.all.extend(damaged);
            for file in hidden {
                // Of the lists that carried us that was said.
                if let (Err(why), false) = (&file.content, lists.contains(&file.name)) {
                    failures.all.push(format!("{} {why}", file.name));
                }
            }
            return;
        }
    }
}

/// Whether a runtime may read there what we cannot, our plugin's name.
fn is_hidden(dir: &Path, file: &Found) -> bool {
    if file.content.is_ok() {
        return false;
    }
    match files::holds(&dir.join(&file.name), PLUGIN.as_bytes()) {
        Ok(holds) => holds,
        Err(files::Error::Unfit { .. }) => false,
        Err(error) => !error.is_missing(),
    }
}

/// The journal, for which a fault of the disk that passes is waited for.
fn journal(dir: &Path) -> (Journal, Option<String>) {
    for _ in 1..TRIES {
        let loaded = Journal::load(dir);
        if !loaded.0.unread {
            return loaded;
        }
        thread::sleep(PAUSE);
    }
    Journal::load(dir)
}

/// Takes one step back. `before` is what a file held when that was decided.
pub fn take<'f>(
    dir: &Path,
    undo: &Undo,
    before: impl Fn(&str) -> Option<&'f netdir::Content>,
) -> Result<(), files::Error> {
    let unchanged = |list: &str| match before(list) {
        Some(there) => files::unchanged(&dir.join(list), there.text.as_bytes()),
        None => Ok(()),
    };
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
            unchanged(list)?;
            match &origin.content {
                Content::Text(text) => {
                    files::create(&path, text.as_bytes(), origin.access(), &dir.join(list))?;
                }
                Content::Link(target) => files::link(&path, target)?,
            }
            // The original is there before the list goes: the node is never without.
            match origin.name == *list {
                true => Ok(()),
                false => {
                    unchanged(list)?;
                    files::remove(&dir.join(list)).map(|_| ())
                }
            }
        }
        Undo::Drop { list } => {
            unchanged(list)?;
            files::remove(&dir.join(list)).map(|_| ())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::install::files::Access;
    use crate::install::journal::Origin;

    const MADE: &str = "made from the conf";

    fn origin() -> Origin {
        Origin {
            bare: MADE.into(),
            was: None,
            name: "20-net.conf".into(),
            content: Content::Text("the conf".into()),
            mode: 0o600,
            uid: Access::own(0).uid,
            gid: Access::own(0).gid,
        }
    }

    #[test]
    fn what_somebody_wrote_since_the_look_is_neither_replaced_nor_removed() {
        let list = "20-net.conflist".to_owned();
        let seen = netdir::Content {
            text: MADE.into(),
            access: Access::own(0o600),
            link: None,
        };
        let restore = Undo::Restore {
            list: list.clone(),
            origin: origin(),
        };
        let drop = Undo::Drop { list };
        for (undo, name) in [
            (&restore, "20-net.conflist"),
            (&restore, "20-net.conf"),
            (&drop, "20-net.conflist"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("20-net.conflist"), MADE).unwrap();
            fs::write(dir.path().join(name), "theirs").unwrap();
            let before = fs::read_dir(dir.path()).unwrap().count();
            let raced = take(dir.path(), undo, |_| Some(&seen)).unwrap_err();
            assert!(matches!(raced, files::Error::Raced { .. }), "{raced}");
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"theirs");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before);
        }
    }
}
