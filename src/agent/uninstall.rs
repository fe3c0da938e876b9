//! Uninstalls the plugin from this node.
//!
//! A network config that names a missing plugin binary breaks every new pod. So the order is:
//! 1. the plugin entries in the network configs,
//! 2. the kubeconfig,
//! 3. the plugin binaries,
//! 4. the saved state, which the first step needs.
//!
//! Another agent on the same node may chain the plugin again at any time. So steps 2 to 4 wait
//! until no network config has named the plugin for a while. Their files are first renamed, and
//! get their names back at once if a network config then names the plugin. Otherwise they are
//! removed.

pub mod leftovers;
mod net_dir_watch;
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
use net_dir_watch::{NetDirWatch, PluginReference};
use node_files::NodeFiles;

/// Attempts to read the saved state, and to write a network config that another program writes at
/// the same time.
const ATTEMPTS: usize = 5;
/// Time between two attempts to read the saved state.
const READ_RETRY: Duration = Duration::from_millis(100);
/// How often the plugin entry is removed if another program chains the plugin again each time.
/// After each removal, meshed pods start without redirect rules for a moment. Other agents of this
/// project report contention only after more removals than these.
const MAX_REMOVALS: usize = 3;
/// How long no network config may name the plugin before kubeconfig and plugin binaries are
/// renamed. In this time the container runtime loads the network config without the plugin entry.
const QUIET_BEFORE: Duration = Duration::from_millis(400);
/// How long the renamed files can still be put back before they are removed.
const QUIET_AFTER: Duration = Duration::from_millis(250);
/// How long to wait while a network config names the plugin in a way that this agent cannot undo.
/// Multus regenerates its config, with a copy of the conflist, in about a second.
const FOREIGN_TIMEOUT: Duration = Duration::from_secs(5);

/// Result of an uninstall.
#[derive(Debug, PartialEq, Eq)]
pub enum UninstallOutcome {
    /// The plugin is no longer installed on this node.
    Uninstalled,
    /// Another program chains the plugin, so it stays installed.
    LeftInPlace,
}

/// Removes everything that an agent, also an earlier one, wrote to this node, unless another
/// program keeps chaining the plugin. `lists` are the names of the conflists that had the plugin
/// entry. A failure does not stop the uninstall, except that kubeconfig and plugin binaries stay
/// while a network config names the plugin. Returns all failures, as texts for logs.
pub fn run(settings: &Settings, lists: &BTreeSet<String>) -> Result<UninstallOutcome, Vec<String>> {
    let watch = NetDirWatch::start(&settings.net_dir, &settings.kubeconfig_name);
    let left = leftovers::remove(settings);
    let mut failures: Vec<String> = left.iter().map(ToString::to_string).collect();
    let end = Instant::now() + FOREIGN_TIMEOUT;
    for removal in 1..=MAX_REMOVALS {
        let mut temporary = Vec::new();
        let reference = match attempt(settings, lists, &watch, end, &mut temporary, &mut failures) {
            Ok(reference) => reference,
            Err(why) => {
                failures.extend(temporary);
                failures.extend(why);
                return Err(still_named(failures));
            }
        };
        match reference {
            PluginReference::Missing => {
                failures.extend(temporary);
                break;
            }
            PluginReference::Foreign(config) if Instant::now() >= end => {
                failures.extend(temporary);
                failures.push(format!(
                    "{} names {PLUGIN}; correct or remove that file, then run \
                     `linkerd2-cni-install uninstall` on this node",
                    config.display()
                ));
                return Err(still_named(failures));
            }
            PluginReference::Removable(list) | PluginReference::Foreign(list)
                if removal == MAX_REMOVALS =>
            {
                warn!("{}", rechained(&list));
                return outcome(UninstallOutcome::LeftInPlace, failures);
            }
            PluginReference::Removable(list) => info!("{} names {PLUGIN} again", list.display()),
            PluginReference::Foreign(_) => {}
        }
    }
    outcome(UninstallOutcome::Uninstalled, failures)
}

/// Returns the outcome if there are no failures.
fn outcome(
    outcome: UninstallOutcome,
    failures: Vec<String>,
) -> Result<UninstallOutcome, Vec<String>> {
    match failures.is_empty() {
        true => Ok(outcome),
        false => Err(failures),
    }
}

/// Says that another program keeps chaining the plugin in this conflist, and what to do.
fn rechained(list: &Path) -> String {
    format!(
        "{} keeps being overwritten by another writer, which chains {PLUGIN} again, so plugin \
         entry, kubeconfig and plugin binary are left in place; if no Linkerd CNI agent should run \
         on this node, stop that writer, then run `linkerd2-cni-install uninstall` on this node",
        list.display()
    )
}

/// Adds that kubeconfig and plugin binaries stay, and why.
fn still_named(mut failures: Vec<String>) -> Vec<String> {
    failures.push(format!(
        "kubeconfig and plugin binary are left in place, because a network config still names {PLUGIN}"
    ));
    failures
}

/// Removes the plugin entry from all network configs, and then the other files unless a network
/// config names the plugin again. The next attempt repeats the steps that failed in `temporary`, so
/// these failures count only if there is no next attempt. Failures in `permanent` always count.
fn attempt(
    settings: &Settings,
    lists: &BTreeSet<String>,
    watch: &NetDirWatch<'_>,
    end: Instant,
    temporary: &mut Vec<String>,
    permanent: &mut Vec<String>,
) -> Result<PluginReference, Vec<String>> {
    let (journal, why) = journal(&settings.net_dir);
    temporary.extend(why);
    unchain(settings, &journal, lists)?;
    let in_words = |error: files::Error| vec![error.to_string()];
    let quiet = match node_files::exist(settings, &journal) {
        true => QUIET_BEFORE,
        false => Duration::ZERO,
    };
    let reference = watch.until_quiet(&journal, quiet, end).map_err(in_words)?;
    if reference != PluginReference::Missing {
        return Ok(reference);
    }
    let files = NodeFiles::set_aside(settings, &journal, temporary);
    let quiet = quiet.min(QUIET_AFTER);
    // The deadline is now: while the files are aside, a network config that names the plugin makes
    // new pods fail, so the files have to be put back at once.
    let reference = watch.until_quiet(&journal, quiet, Instant::now());
    match &reference {
        Ok(PluginReference::Missing) => {
            files.discard(temporary);
            temporary.extend(invalid_conflists(settings, &journal, lists));
        }
        _ => files.put_back(permanent),
    }
    reference.map_err(in_words)
}

/// Removes the plugin entry from all network configs. If another program keeps writing a config at
/// the same time, that config is left to the caller's next attempt.
fn unchain(
    settings: &Settings,
    journal: &SavedState,
    lists: &BTreeSet<String>,
) -> Result<(), Vec<String>> {
    let dir = &settings.net_dir;
    for _ in 0..ATTEMPTS {
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
            match apply_undo(dir, &undo, before) {
                Ok(()) => {
                    info!("Removed the plugin entry from {}", dir.join(undo.list()).display())
                }
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

/// Describes each conflist among `lists` that is invalid.
fn invalid_conflists(
    settings: &Settings,
    journal: &SavedState,
    lists: &BTreeSet<String>,
) -> Vec<String> {
    let found = net_dir::scan(&settings.net_dir, &settings.kubeconfig_name).unwrap_or_default();
    let undos = plan::unchain(&found, journal, lists);
    undos.into_iter().filter_map(Result::err).collect()
}

/// Loads the saved state. Retries, because a read error may be temporary.
fn journal(dir: &Path) -> (SavedState, Option<String>) {
    for _ in 1..ATTEMPTS {
        let loaded = SavedState::load(dir);
        if !loaded.0.unread {
            return loaded;
        }
        thread::sleep(READ_RETRY);
    }
    SavedState::load(dir)
}

/// Applies one step of an uninstall in `dir`. `before` returns what a file held when the step was
/// decided. Fails with [`files::Error::Raced`] if another program has changed a file since then.
pub fn apply_undo<'f>(
    dir: &Path,
    undo: &UnchainStep,
    before: impl Fn(&str) -> Option<&'f net_dir::Content>,
) -> Result<(), files::Error> {
    let unchanged = |list: &str| match before(list) {
        Some(content) => files::unchanged(&dir.join(list), content.text.as_bytes()),
        None => Ok(()),
    };
    match undo {
        UnchainStep::Cut { name, text } => match before(name) {
            Some(content) => {
                let (old, new) = (content.text.as_bytes(), text.as_bytes());
                files::rewrite(&dir.join(name), old, new, content.access)
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
            // The original file is restored before the conflist is removed, so that the node
            // always has a network config.
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
    fn a_file_that_another_program_has_changed_is_neither_replaced_nor_removed() {
        let list = "20-net.conflist".to_owned();
        let seen = net_dir::Content { text: MADE.into(), access: Access::own(0o600), link: None };
        let restore = UnchainStep::Restore { list: list.clone(), origin: origin() };
        let drop = UnchainStep::Drop { list };
        for (undo, name) in
            [(&restore, "20-net.conflist"), (&restore, "20-net.conf"), (&drop, "20-net.conflist")]
        {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("20-net.conflist"), MADE).unwrap();
            fs::write(dir.path().join(name), "theirs").unwrap();
            let before = fs::read_dir(dir.path()).unwrap().count();
            let raced = apply_undo(dir.path(), undo, |_| Some(&seen)).unwrap_err();
            assert!(matches!(raced, files::Error::Raced { .. }), "{raced}");
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"theirs");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before);
        }
    }
}
