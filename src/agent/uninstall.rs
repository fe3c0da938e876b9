//! Undoing everything, in the order that never leaves a network naming a plugin that is
//! gone: network configuration, kubeconfig, programs, and last what we noted for it.
//!
//! Another agent on the same node may chain the plugin again at any time. So kubeconfig
//! and programs are removed only after a time in which no network config named the plugin.
//! They are renamed first and put back at once if a network config names the plugin then.

pub mod leftovers;
mod look;
mod node_files;
pub mod on_stop;

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::settings::Settings;
use crate::conflist::PLUGIN;
use crate::conflist::net_dir;
use crate::conflist::plan;
use crate::conflist::plan::UnchainStep;
use crate::conflist::saved_state::{OriginalContent, SavedState};
use crate::files;
use look::{Looks, Seen};
use node_files::NodeFiles;

/// Attempts to read the saved state, and to write a network config that another program
/// writes at the same time.
const TRIES: usize = 5;
/// Time between two attempts to read the saved state.
const PAUSE: Duration = Duration::from_millis(100);
/// Removals of the plugin entry, if another program chains the plugin again each time.
/// After each one, pods start without redirection for a moment. An agent of this project
/// reports contention only after more removals than these.
const REMOVALS: usize = 3;
/// Time without a network config that names the plugin, before kubeconfig and programs go.
/// It also lets the runtime load the network config without the plugin entry.
const QUIET_BEFORE: Duration = Duration::from_millis(400);
/// Time for which kubeconfig and programs can be put back.
const QUIET_AFTER: Duration = Duration::from_millis(250);
/// Time to wait while a network config names the plugin in a way that this agent cannot
/// undo. Multus takes about a second to generate its config anew.
const PATIENCE: Duration = Duration::from_secs(5);

/// What an uninstall did.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The plugin is no longer installed on this node.
    Removed,
    /// Another program chains the plugin, so it stays installed.
    Kept,
}

/// Removes all that any agent put onto the host, unless another program still chains the
/// plugin. `lists` are the configurations that carried us. What fails does not stop the
/// rest; the failures are returned.
pub fn undo(settings: &Settings, lists: &BTreeSet<String>) -> Result<Outcome, Vec<String>> {
    let looks = Looks::start(&settings.net_dir, &settings.kubeconfig_name);
    let left = leftovers::tidy(settings);
    let mut failures: Vec<String> = left.iter().map(ToString::to_string).collect();
    let end = Instant::now() + PATIENCE;
    for removal in 1..=REMOVALS {
        let mut passing = Vec::new();
        let seen = match attempt(settings, lists, &looks, end, &mut passing, &mut failures) {
            Ok(seen) => seen,
            Err(why) => {
                failures.extend(passing);
                failures.extend(why);
                return Err(still_named(failures));
            }
        };
        match seen {
            Seen::Unnamed => {
                failures.extend(passing);
                break;
            }
            Seen::Foreign(config) if Instant::now() >= end => {
                failures.extend(passing);
                failures.push(format!(
                    "{} names {PLUGIN}; correct or remove that file, then run \
                     `linkerd2-cni-install uninstall` on this node",
                    config.display()
                ));
                return Err(still_named(failures));
            }
            Seen::Chained(list) | Seen::Foreign(list) if removal == REMOVALS => {
                warn!("{}", kept(&list));
                return outcome(Outcome::Kept, failures);
            }
            Seen::Chained(list) => info!("{} names {PLUGIN} again", list.display()),
            Seen::Foreign(_) => {}
        }
    }
    outcome(Outcome::Removed, failures)
}

fn outcome(outcome: Outcome, failures: Vec<String>) -> Result<Outcome, Vec<String>> {
    match failures.is_empty() {
        true => Ok(outcome),
        false => Err(failures),
    }
}

/// Names the conflist that another program writes, and the remedy.
fn kept(list: &Path) -> String {
    format!(
        "another program chains {PLUGIN} in {} again each time that this agent removes it, so \
         plugin binary, kubeconfig and plugin entry stay on this node; if no Linkerd CNI agent is \
         to run here, stop that program, then run `linkerd2-cni-install uninstall` on this node",
        list.display()
    )
}

fn still_named(mut failures: Vec<String>) -> Vec<String> {
    failures.push(format!(
        "kubeconfig and programs are left in place, since a network still names {PLUGIN}"
    ));
    failures
}

/// Removes the plugin entry, and then all other files unless a network config names the
/// plugin again. The next attempt may correct the failures in `passing`, but not those in
/// `lasting`.
fn attempt(
    settings: &Settings,
    lists: &BTreeSet<String>,
    looks: &Looks<'_>,
    end: Instant,
    passing: &mut Vec<String>,
    lasting: &mut Vec<String>,
) -> Result<Seen, Vec<String>> {
    let (journal, why) = journal(&settings.net_dir);
    passing.extend(why);
    unchain(settings, &journal, lists)?;
    let says = |error: files::Error| vec![error.to_string()];
    let quiet = match node_files::exist(settings, &journal) {
        true => QUIET_BEFORE,
        false => Duration::ZERO,
    };
    let seen = looks.until_quiet(&journal, quiet, end).map_err(says)?;
    if seen != Seen::Unnamed {
        return Ok(seen);
    }
    let files = NodeFiles::take(settings, &journal, passing);
    let quiet = quiet.min(QUIET_AFTER);
    // Any name of the plugin now means that pods fail, so there is nothing to wait for.
    let seen = looks.until_quiet(&journal, quiet, Instant::now());
    match &seen {
        Ok(Seen::Unnamed) => {
            files.discard(passing);
            passing.extend(damaged(settings, &journal, lists));
        }
        _ => files.put_back(lasting),
    }
    seen.map_err(says)
}

/// Removes the plugin entry from all network configs. A config that another program writes
/// at the same time is left to the next look.
fn unchain(
    settings: &Settings,
    journal: &SavedState,
    lists: &BTreeSet<String>,
) -> Result<(), Vec<String>> {
    let dir = &settings.net_dir;
    for _ in 0..TRIES {
        let found = match net_dir::scan(dir, &settings.kubeconfig_name) {
            Ok(found) => found,
            Err(error) if error.is_missing() => return Ok(()),
            Err(error) => return Err(vec![error.to_string()]),
        };
        let (mut raced, mut failures) = (false, Vec::new());
        for undo in plan::unchain(&found, journal, lists).into_iter().flatten() {
            let before = |name: &str| {
                let file = found.iter().find(|file| file.name == name)?;
                file.content.as_ref().ok()
            };
            match take(dir, &undo, before) {
                Ok(()) => info!("Removed {PLUGIN} from {}", dir.join(undo.list()).display()),
                Err(files::Error::Raced { .. }) => raced = true,
                Err(error) => failures.push(error.to_string()),
            }
        }
        if !failures.is_empty() {
            return Err(failures);
        }
        if !raced {
            return Ok(());
        }
    }
    Ok(())
}

/// Lists the conflists among `lists` that are no longer valid.
fn damaged(settings: &Settings, journal: &SavedState, lists: &BTreeSet<String>) -> Vec<String> {
    let found = net_dir::scan(&settings.net_dir, &settings.kubeconfig_name).unwrap_or_default();
    let undos = plan::unchain(&found, journal, lists);
    undos.into_iter().filter_map(Result::err).collect()
}

/// The journal, for which a fault of the disk that passes is waited for.
fn journal(dir: &Path) -> (SavedState, Option<String>) {
    for _ in 1..TRIES {
        let loaded = SavedState::load(dir);
        if !loaded.0.unread {
            return loaded;
        }
        thread::sleep(PAUSE);
    }
    SavedState::load(dir)
}

/// Takes one step back. `before` is what a file held when that was decided.
pub fn take<'f>(
    dir: &Path,
    undo: &UnchainStep,
    before: impl Fn(&str) -> Option<&'f net_dir::Content>,
) -> Result<(), files::Error> {
    let unchanged = |list: &str| match before(list) {
        Some(there) => files::unchanged(&dir.join(list), there.text.as_bytes()),
        None => Ok(()),
    };
    match undo {
        UnchainStep::Cut { name, text } => match before(name) {
            Some(there) => {
                let (old, new) = (there.text.as_bytes(), text.as_bytes());
                files::rewrite(&dir.join(name), old, new, there.access)
            }
            None => Ok(()),
        },
        UnchainStep::Restore { list, origin } => {
            let path = dir.join(&origin.name);
            unchanged(list)?;
            match &origin.content {
                OriginalContent::Text(text) => {
                    files::create(&path, text.as_bytes(), origin.access(), &dir.join(list))?;
                }
                OriginalContent::Link(target) => files::link(&path, target)?,
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
        UnchainStep::Drop { list } => {
            unchanged(list)?;
            files::remove(&dir.join(list)).map(|_| ())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::conflist::saved_state::Origin;
    use crate::files::Access;

    const MADE: &str = "made from the conf";

    fn origin() -> Origin {
        Origin {
            bare: MADE.into(),
            was: None,
            name: "20-net.conf".into(),
            content: OriginalContent::Text("the conf".into()),
            mode: 0o600,
            uid: Access::own(0).uid,
            gid: Access::own(0).gid,
        }
    }

    #[test]
    fn what_somebody_wrote_since_the_look_is_neither_replaced_nor_removed() {
        let list = "20-net.conflist".to_owned();
        let seen = net_dir::Content {
            text: MADE.into(),
            access: Access::own(0o600),
            link: None,
        };
        let restore = UnchainStep::Restore {
            list: list.clone(),
            origin: origin(),
        };
        let drop = UnchainStep::Drop { list };
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
