//! Uninstalls the plugin from this node.
//!
//! A network config that names a missing plugin binary breaks every new pod. So the order is that
//! of an install, backwards:
//! 1. the plugin entries in the network configs,
//! 2. the kubeconfig,
//! 3. the plugin binaries,
//! 4. the saved state, which the first step needs, and the node's copy of its pods.
//!
//! Another agent on the same node may chain the plugin again at any time. So steps 2 to 4 wait
//! until no network config has named the plugin for a while. Their files are first renamed, and
//! get their names back at once if a network config then names the plugin. Otherwise they are
//! removed. A lock keeps reconcile passes of other agents apart from that. The plugin binary stays
//! if existing pods need it: see `kept_binary`.

mod kept_binary;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tracing::{info, warn};

use super::binaries::Binaries;
use super::leftovers;
use super::lock::{NodeLock, NodeLocker};
use super::network_config_steps::{NetDir, content};
use super::{Mounts, NodeSettings, OVERWRITTEN};
use crate::conflist::PLUGIN;
use crate::conflist::net_dir::{self, ConfigFile, RuntimeReaction};
use crate::conflist::plan;
use crate::conflist::saved_state::{self, SavedState};
use crate::deadline::Deadline;
use crate::files::{self, StagedRemoval};
use crate::pod_copy;

/// How often the plugin entry is removed if another program chains the plugin again each time.
/// After each removal, meshed pods start without redirect rules for a moment. Kept below the number
/// of removals at which another agent of this project reports contention.
const MAX_REMOVALS: usize = 3;
/// How long no network config may name the plugin before kubeconfig and plugin binaries are
/// renamed. In this time the container runtime loads the network config without the plugin entry.
const QUIET_BEFORE: Duration = Duration::from_millis(400);
/// How long the renamed files can still be put back before they are removed.
const QUIET_AFTER: Duration = Duration::from_millis(250);
/// Time between two reads of the network configs while waiting. It takes some 0.1 ms to read them.
const POLL_PERIOD: Duration = Duration::from_millis(2);
/// How long to wait while a network config names the plugin in a way that this agent cannot undo.
/// Multus regenerates its config, with a copy of the conflist, in about a second.
const FOREIGN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two attempts to unchain within [`FOREIGN_TIMEOUT`].
const FOREIGN_PERIOD: Duration = Duration::from_millis(20);

/// Added to the failures of an uninstall that a network config prevents.
const STILL_NAMED: &str = "kubeconfig and plugin binary are left in place, because a network \
                           config still names linkerd-cni, or may name it";

/// Why files of the plugin stay on the node. The texts are for logs.
#[derive(Debug)]
pub enum Failure {
    /// Another writer, such as the agent of another release, chained the plugin again after each
    /// removal. The files stay for it.
    ChainedAgain(Vec<String>),
    Failed(Vec<String>),
}

impl Failure {
    pub fn into_texts(self) -> Vec<String> {
        match self {
            Failure::ChainedAgain(texts) | Failure::Failed(texts) => texts,
        }
    }
}

/// Removes everything that this agent and earlier agents wrote to this node. Kubeconfig and plugin
/// binaries stay while a network config names the plugin, or if the mounted net dir is no longer
/// the node's. A failure does not stop the other steps. Returns all failures.
pub fn run(settings: &NodeSettings, mounts: &Mounts) -> Result<(), Failure> {
    if let Some(why) = mounts.stale_net_dir() {
        return Err(Failure::Failed(vec![why, STILL_NAMED.into()]));
    }
    let mut lock = NodeLocker::new(settings);
    let held = lock.take();
    let mut failures = leftovers::remove_all(settings);
    drop(held);
    // A stale mount hides the node's bin dir, so the plugin binary stays there. The uninstall goes
    // on, so that no network config names the plugin.
    failures.extend(mounts.stale());
    // No plugin needs a dead agent's sockets, even if kubeconfig and plugin binaries have to stay.
    failures.extend(leftovers::remove_dead_sockets(settings));
    let end = Deadline::after(FOREIGN_TIMEOUT);
    let (saved_state, attempt_failures) = (SavedState::default(), Vec::new());
    Uninstall { settings, lock, end, saved_state, failures, attempt_failures }.run()
}

struct Uninstall<'s> {
    settings: &'s NodeSettings,
    lock: NodeLocker,
    /// When to stop waiting for a network config that this agent cannot unchain.
    end: Deadline,
    saved_state: SavedState,
    failures: Vec<String>,
    /// Failures of the last attempt. The next attempt repeats what failed.
    attempt_failures: Vec<String>,
}

impl Uninstall<'_> {
    /// Uninstalls the plugin. Returns all failures.
    fn run(mut self) -> Result<(), Failure> {
        let removed = self.attempt_until_removed();
        let mut failures = [self.failures, self.attempt_failures].concat();
        let is_clean = failures.is_empty();
        match removed {
            Ok(()) if is_clean => Ok(()),
            Ok(()) => Err(Failure::Failed(failures)),
            Err(Failure::ChainedAgain(why)) if is_clean => {
                Err(Failure::ChainedAgain([why, vec![STILL_NAMED.into()]].concat()))
            }
            Err(failure) => {
                failures.extend(failure.into_texts());
                failures.push(STILL_NAMED.into());
                Err(Failure::Failed(failures))
            }
        }
    }

    /// Repeats the attempt while a network config names the plugin. Fails with the reason why
    /// kubeconfig and plugin binaries stay.
    fn attempt_until_removed(&mut self) -> Result<(), Failure> {
        let mut removals = 0;
        loop {
            self.attempt_failures.clear();
            let Some(named) = self.attempt().map_err(Failure::Failed)? else {
                return Ok(());
            };
            let path = named.config.display();
            if named.can_unchain {
                removals += 1;
                if removals == MAX_REMOVALS {
                    return Err(Failure::ChainedAgain(vec![format!(
                        "{path} {OVERWRITTEN}, which chains {PLUGIN} again; if no Linkerd CNI \
                         agent should run on this node, stop that writer, then run \
                         `linkerd2-cni-install uninstall` on this node"
                    )]));
                }
                info!("{path} names {PLUGIN} again");
            } else if self.end.has_passed() {
                return Err(Failure::Failed(vec![format!(
                    "{path} names {PLUGIN}, or cannot be read; correct or remove that file, then run \
                     `linkerd2-cni-install uninstall` on this node"
                )]));
            } else {
                thread::sleep(FOREIGN_PERIOD);
            }
        }
    }

    /// Unchains all network configs, and removes the other files unless one names the plugin again.
    fn attempt(&mut self) -> Result<Option<Named>, Vec<String>> {
        let held = self.lock.take();
        self.saved_state = SavedState::load(&self.settings.net_dir);
        self.attempt_failures.extend(self.saved_state.unusable.clone());
        let configs = self.unchain()?;
        drop(held);
        let needed_by = kept_binary::needed_by(self.settings, &configs);
        let paths = self.paths(needed_by.is_some());
        let is_removed = paths.iter().all(|path| matches!(files::metadata(path), Ok(None)));
        let quiet = if is_removed { Duration::ZERO } else { QUIET_BEFORE };
        if let Some(named) = self.until_quiet(quiet)? {
            return Ok(Some(named));
        }
        // This agent holds the lock until the files are removed or put back.
        let held = self.lock.take();
        if let Some(named) = self.until_quiet(Duration::ZERO)? {
            return Ok(Some(named));
        }
        let staged = self.stage(paths);
        let named = self.until_quiet(quiet.min(QUIET_AFTER));
        match named {
            Ok(None) => {
                self.finish(staged, &held);
                self.report_what_stays(needed_by);
                self.report_unreadable(&configs);
            }
            _ => self.put_back(&staged),
        }
        named
    }

    /// Reads the network configs, and those that Cilium has renamed. A missing net dir has none.
    fn configs(&self) -> Result<Vec<ConfigFile>, Vec<String>> {
        match net_dir::scan_with_backups(&self.settings.net_dir, &self.settings.kubeconfig_name) {
            Ok(found) => Ok(found),
            Err(error) if error.is_missing() => Ok(Vec::new()),
            Err(error) => Err(vec![error.to_string()]),
        }
    }

    /// Removes the plugin entry from all network configs. A config that another program writes at
    /// the same time is left to the next attempt. Returns the network configs.
    fn unchain(&mut self) -> Result<Vec<ConfigFile>, Vec<String>> {
        let path = &self.settings.net_dir;
        let found = self.configs()?;
        let seen = |name: &str| content(&found, name);
        let net_dir = NetDir { path, seen, is_locked: true };
        let mut failures = Vec::new();
        for step in plan::unchain(&found, &self.saved_state) {
            match net_dir.apply(&step, &mut self.saved_state) {
                Ok(()) => {
                    info!("removed the plugin entry from {}", path.join(step.target()).display());
                }
                Err(files::Error::Raced { .. }) => {}
                Err(error) => failures.push(error.to_string()),
            }
        }
        if failures.is_empty() { Ok(found) } else { Err(failures) }
    }

    /// Returns a network config that names the plugin, or `None` if no config names it during the
    /// time `quiet`. Reads the network configs every [`POLL_PERIOD`].
    fn until_quiet(&self, quiet: Duration) -> Result<Option<Named>, Vec<String>> {
        let end = Deadline::after(quiet);
        loop {
            let named = find_named(&self.settings.net_dir, &self.configs()?, &self.saved_state);
            if named.is_some() || end.has_passed() {
                return Ok(named);
            }
            thread::sleep(POLL_PERIOD.min(end.remaining()));
        }
    }

    /// Returns the files to remove, in this order.
    fn paths(&self, keep_binary: bool) -> Vec<PathBuf> {
        let settings = self.settings;
        let mut paths = vec![settings.kubeconfig()];
        let binaries = Binaries::in_image(settings).unwrap_or_else(|_| vec![PLUGIN.to_owned()]);
        for name in binaries {
            if name != PLUGIN || !keep_binary {
                paths.push(settings.bin_dir.join(name));
            }
        }
        // Saved state that this agent cannot read is kept: a later uninstall may be able to read it
        // and restore the original files.
        if self.saved_state.unusable.is_none() {
            paths.push(settings.net_dir.join(saved_state::NAME));
        }
        paths
    }

    /// Renames the files at `paths` to temporary names.
    fn stage(&mut self, paths: Vec<PathBuf>) -> Vec<StagedRemoval> {
        let mut staged = Vec::new();
        for path in paths {
            match StagedRemoval::start(&path) {
                Ok(removal) => staged.extend(removal),
                Err(error) => self.attempt_failures.push(error.to_string()),
            }
        }
        staged
    }

    /// Renames all files back, in the order of an install.
    fn put_back(&mut self, staged: &[StagedRemoval]) {
        let mut results = Vec::new();
        results.extend(staged.iter().rev().map(StagedRemoval::undo));
        results.extend(staged.iter().map(StagedRemoval::sync));
        for result in results {
            if let Err(error) = result {
                warn!("{error}");
                self.failures.push(error.to_string());
            }
        }
    }

    /// Removes the renamed files, the node's copy of its pods, and the file of the lock `held`.
    fn finish(&mut self, staged: Vec<StagedRemoval>, held: &NodeLock) {
        for removal in staged {
            let path = removal.path().to_owned();
            match removal.finish() {
                Ok(()) => info!("removed {}", path.display()),
                Err(error) => self.attempt_failures.push(error.to_string()),
            }
        }
        if let Some(run_dir) = &self.settings.run_dir {
            for error in pod_copy::clear(run_dir) {
                self.attempt_failures.push(error.to_string());
            }
            if let Err(error) = held.remove_file(run_dir) {
                self.attempt_failures.push(error.to_string());
            }
        }
    }

    /// Logs which files an uninstall leaves on the node, and why.
    fn report_what_stays(&self, binary_needed_by: Option<&str>) {
        let net_dir = &self.settings.net_dir;
        for name in [saved_state::NAME, saved_state::DAMAGED] {
            let path = net_dir.join(name);
            if exists(&path) {
                warn!("{} is kept: this agent cannot read it", path.display());
            }
        }
        let binary = self.settings.bin_dir.join(PLUGIN);
        if let Some(program) = binary_needed_by
            && exists(&binary)
        {
            info!(
                "{} is left in place: {program} needs the plugin to delete the pods that exist now; \
                 remove the file when the last of them is deleted",
                binary.display()
            );
        }
    }

    /// Logs which network configs the uninstall could not read, and did not wait for.
    fn report_unreadable(&self, configs: &[ConfigFile]) {
        for file in configs {
            let Err(unreadable) = &file.content else {
                continue;
            };
            if unreadable.runtime != RuntimeReaction::Ignores && !unreadable.may_name_plugin {
                let path = self.settings.net_dir.join(&file.name);
                warn!("{} {}, and cannot name {PLUGIN}", path.display(), unreadable.why);
            }
        }
    }
}

fn exists(path: &Path) -> bool {
    matches!(files::metadata(path), Ok(Some(_)))
}

/// A network config in the CNI net dir that names the plugin.
struct Named {
    config: PathBuf,
    /// [`plan::unchain`] can remove the plugin entry. Otherwise this agent cannot undo how the
    /// config names the plugin: it is unreadable, half written, or has a copy of a conflist inside.
    can_unchain: bool,
}

/// Returns a file of `found` that names the plugin, one that can be unchained if there is any.
/// Ignores files that Cilium has renamed, because no runtime loads them.
fn find_named(dir: &Path, found: &[ConfigFile], saved_state: &SavedState) -> Option<Named> {
    let steps = plan::unchain(found, saved_state);
    let mut named = Vec::new();
    for file in found {
        if file.split_name().1.is_empty() && net_dir::may_name_plugin(file) {
            let can_unchain = steps.iter().any(|step| step.target() == file.name);
            named.push(Named { config: dir.join(&file.name), can_unchain });
        }
    }
    // `true` is the larger value.
    named.into_iter().max_by_key(|named| named.can_unchain)
}
