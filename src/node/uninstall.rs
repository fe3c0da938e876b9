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
//! removed. A lock keeps reconcile passes of
//! other agents apart from that. The plugin binary stays if existing pods need it: see
//! `kept_binary`.

mod kept_binary;
mod net_dir_watch;
mod node_files;

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::OVERWRITTEN;
use super::leftovers;
use super::lock::NodeLocker;
use super::mounts::Mounts;
use super::settings::NodeSettings;
use super::unchain_step;
use crate::conflist::PLUGIN;
use crate::conflist::net_dir;
use crate::conflist::plan;
use crate::conflist::saved_state::{SavedState, StateFile};
use crate::files;
use net_dir_watch::{NetDirWatch, PluginReference};
use node_files::NodeFiles;

/// Attempts to read the saved state, and to write a network config that another program writes at
/// the same time.
const ATTEMPTS: usize = 5;
/// Time between two attempts to read the saved state.
const READ_RETRY: Duration = Duration::from_millis(100);
/// How often the plugin entry is removed if another program chains the plugin again each time.
/// After each removal, meshed pods start without redirect rules for a moment. Kept below the number
/// of removals at which another agent of this project reports contention.
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
/// program keeps chaining the plugin. `conflists` names the conflists that had the plugin entry. A
/// failure does not stop the uninstall, except that kubeconfig and plugin binaries stay while a
/// network config names the plugin.
///
/// # Errors
/// All failures, as texts for logs. A net dir that is no longer the node's is one: its network
/// configs may name the plugin, so everything stays in place.
pub fn run(
    settings: &NodeSettings,
    conflists: &BTreeSet<String>,
    mounts: &Mounts,
) -> Result<UninstallOutcome, Vec<String>> {
    if let Some(why) = mounts.stale_net_dir() {
        return Err(still_named(vec![why]));
    }
    let watch = NetDirWatch::start(&settings.net_dir, &settings.kubeconfig_name);
    let mut node_lock = NodeLocker::new(&settings.net_dir);
    let lock = node_lock.take();
    let left = leftovers::remove(settings);
    drop(lock);
    let mut failures: Vec<String> = left.iter().map(ToString::to_string).collect();
    // The network configs stop naming the plugin. Its binary stays in the node's directory.
    failures.extend(mounts.stale_bin_dir());
    // Removed even if kubeconfig and plugin binaries have to stay. An agent without a socket of its
    // own removes it with the leftovers.
    if settings.plugin_socket
        && let Err(error) = leftovers::remove_dead_socket(settings)
    {
        failures.push(error.to_string());
    }
    let end = Instant::now() + FOREIGN_TIMEOUT;
    for removal in 1..=MAX_REMOVALS {
        let mut retried_failures = Vec::new();
        let reference = match attempt(
            settings,
            conflists,
            &watch,
            end,
            &mut node_lock,
            &mut retried_failures,
            &mut failures,
        ) {
            Ok(reference) => reference,
            Err(why) => {
                failures.extend(retried_failures);
                failures.extend(why);
                return Err(still_named(failures));
            }
        };
        match reference {
            PluginReference::Missing => {
                failures.extend(retried_failures);
                break;
            }
            PluginReference::Foreign(config) if Instant::now() >= end => {
                failures.extend(retried_failures);
                failures.push(format!(
                    "{} names {PLUGIN}, or cannot be read; correct or remove that file, then run \
                     `linkerd2-cni-install uninstall` on this node",
                    config.display()
                ));
                return Err(still_named(failures));
            }
            PluginReference::Removable(list) | PluginReference::Foreign(list)
                if removal == MAX_REMOVALS =>
            {
                warn!("{}", rechained(&list));
                failures.extend(retried_failures);
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
        "{} {OVERWRITTEN}, which chains {PLUGIN} again, so plugin \
         entry, kubeconfig and plugin binary are left in place; if no Linkerd CNI agent should run \
         on this node, stop that writer, then run `linkerd2-cni-install uninstall` on this node",
        list.display()
    )
}

/// Adds that kubeconfig and plugin binaries stay, and why.
fn still_named(mut failures: Vec<String>) -> Vec<String> {
    failures.push(format!(
        "kubeconfig and plugin binary are left in place, because a network config still names {PLUGIN}, or may name it"
    ));
    failures
}

/// Removes the plugin entry from all network configs, and then the other files unless a network
/// config names the plugin again. The next attempt repeats the steps that failed in
/// `retried_failures`, so these count only if there is no next attempt. `failures` always count.
fn attempt(
    settings: &NodeSettings,
    conflists: &BTreeSet<String>,
    watch: &NetDirWatch<'_>,
    end: Instant,
    node_lock: &mut NodeLocker,
    retried_failures: &mut Vec<String>,
    failures: &mut Vec<String>,
) -> Result<PluginReference, Vec<String>> {
    let lock = node_lock.take();
    let (saved_state, why) = load_saved_state(&settings.net_dir);
    retried_failures.extend(why);
    unchain(settings, &saved_state, conflists)?;
    drop(lock);
    let in_words = |error: files::Error| vec![error.to_string()];
    let needed_by = kept_binary::needed_by(settings);
    let paths = node_files::paths(settings, &saved_state, needed_by.is_some());
    let quiet = match node_files::exist(&paths) {
        true => QUIET_BEFORE,
        false => Duration::ZERO,
    };
    let reference = watch.until_quiet(&saved_state, quiet, end).map_err(in_words)?;
    if reference != PluginReference::Missing {
        return Ok(reference);
    }
    // Until the files are removed or put back.
    let _lock = node_lock.take();
    let reference = watch.until_quiet(&saved_state, Duration::ZERO, end).map_err(in_words)?;
    if reference != PluginReference::Missing {
        return Ok(reference);
    }
    let files = NodeFiles::stage(settings, paths, retried_failures);
    let quiet = quiet.min(QUIET_AFTER);
    // The deadline is now: while the files are renamed, a network config that names the plugin
    // makes new pods fail, so the files have to get their names back at once.
    let reference = watch.until_quiet(&saved_state, quiet, Instant::now());
    match &reference {
        Ok(PluginReference::Missing) => {
            files.finish(retried_failures);
            if let Some(program) = needed_by {
                report_kept_binary(settings, program);
            }
            warn_of_invalid_conflists(settings, &saved_state, conflists);
        }
        _ => files.undo(failures),
    }
    reference.map_err(in_words)
}

/// Says that the plugin binary stays for `program`, and when it can be removed.
fn report_kept_binary(settings: &NodeSettings, program: &str) {
    let binary = settings.bin_dir.join(PLUGIN);
    if matches!(files::metadata(&binary), Ok(Some(_))) {
        info!(
            "{} is left in place: {program} needs the plugin to delete the pods that exist now; remove \
             the file when the last of them is deleted",
            binary.display()
        );
    }
}

/// Removes the plugin entry from all network configs. If another program keeps writing a config at
/// the same time, that config is left to the caller's next attempt.
fn unchain(
    settings: &NodeSettings,
    saved_state: &SavedState,
    conflists: &BTreeSet<String>,
) -> Result<(), Vec<String>> {
    let dir = &settings.net_dir;
    for _ in 0..ATTEMPTS {
        let found = match net_dir::scan_with_backups(dir, &settings.kubeconfig_name) {
            Ok(found) => found,
            Err(error) if error.is_missing() => return Ok(()),
            Err(error) => return Err(vec![error.to_string()]),
        };
        let (mut raced, mut failures) = (false, Vec::new());
        for step in plan::unchain(&found, saved_state, conflists).into_iter().flatten() {
            let before = |name: &str| {
                let file = found.iter().find(|file| file.name == name)?;
                file.content.as_ref().ok()
            };
            match unchain_step::apply(dir, &step, before) {
                Ok(()) => {
                    info!("removed the plugin entry from {}", dir.join(step.file_name()).display())
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

/// Warns of each conflist among `conflists` that another program has made invalid. It does not name
/// the plugin, so it does not keep the agent from uninstalling.
fn warn_of_invalid_conflists(
    settings: &NodeSettings,
    saved_state: &SavedState,
    conflists: &BTreeSet<String>,
) {
    let found = net_dir::scan(&settings.net_dir, &settings.kubeconfig_name).unwrap_or_default();
    for why in plan::unchain(&found, saved_state, conflists).into_iter().filter_map(Result::err) {
        warn!("{}/{why}; the file is left unchanged", settings.net_dir.display());
    }
}

/// Loads the saved state. Retries, because a read error may be temporary.
fn load_saved_state(dir: &Path) -> (SavedState, Option<String>) {
    for _ in 1..ATTEMPTS {
        let loaded = SavedState::load(dir);
        if loaded.0.file != StateFile::Unreadable {
            return loaded;
        }
        thread::sleep(READ_RETRY);
    }
    SavedState::load(dir)
}
