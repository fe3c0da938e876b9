//! Uninstalls the plugin from this node.
//!
//! No new pod can start while a network config names a missing plugin binary. So the files are
//! removed in the reverse order of an install:
//! 1. the plugin entries in the network configs,
//! 2. the kubeconfig,
//! 3. the plugin binaries,
//! 4. the saved state, which the first step needs, the record of a withdrawal, and the node's copy of
//!    its pods.
//!
//! Another agent on the same node may chain the plugin again at any time. So steps 2 to 4 begin
//! only when no network config has named the plugin for a while. Their files are first renamed. If
//! a network config then names the plugin, the files get their names back at once. If not, they are
//! removed. Meanwhile the lock keeps other agents from writing to the node. The plugin binary stays
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
use super::{Mounts, NodeSettings, OVERWRITTEN, withdrawal};
use crate::conflist::PLUGIN;
use crate::conflist::net_dir::{self, ConfigFile, RuntimeReaction};
use crate::conflist::plan;
use crate::conflist::saved_state::{self, SavedState};
use crate::deadline::Deadline;
use crate::files::{self, StagedRemoval};
use crate::pod_copy;

/// How often the plugin entry is removed if another program chains the plugin again each time. The
/// number is small, because after each removal meshed pods start without redirect rules for a
/// moment. It is also below the number of removals at which another agent of this project reports
/// contention.
const MAX_REMOVALS: usize = 3;
/// Time for which no network config may name the plugin before kubeconfig and plugin binaries are
/// renamed. In this time the container runtime loads the network config without the plugin entry.
const QUIET_BEFORE: Duration = Duration::from_millis(400);
/// Time for which the renamed files can still be put back before they are removed.
const QUIET_AFTER: Duration = Duration::from_millis(250);
/// Time between two reads of the network configs while waiting. Reading them takes some 0.1 ms.
const POLL_PERIOD: Duration = Duration::from_millis(2);
/// Longest wait while a network config names the plugin and this agent cannot remove its entry. For
/// example, Multus needs about a second to regenerate its config, which has a copy of the conflist.
const FOREIGN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two attempts to unchain within [`FOREIGN_TIMEOUT`].
const FOREIGN_PERIOD: Duration = Duration::from_millis(20);

/// Added to the failures of an uninstall that leaves files because of a network config.
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
    let mut locker = NodeLocker::new(settings);
    let lock = locker.take();
    let mut failures = leftovers::remove_all(settings, lock.is_exclusive);
    drop(lock);
    // If the mount of the bin dir is stale, the plugin binary on the node cannot be removed. The
    // network configs can still be unchained, so the uninstall goes on.
    failures.extend(mounts.stale());
    // The sockets of dead agents are removed even if kubeconfig and plugin binaries have to stay,
    // because no plugin needs them.
    failures.extend(leftovers::remove_dead_sockets(settings));
    let uninstall = Uninstall {
        settings,
        locker,
        end: Deadline::after(FOREIGN_TIMEOUT),
        saved_state: SavedState::default(),
        failures,
        attempt_failures: Vec::new(),
    };
    uninstall.finish_or_fail()
}

struct Uninstall<'s> {
    settings: &'s NodeSettings,
    locker: NodeLocker,
    /// When to stop waiting for a network config from which this agent cannot remove the entry.
    end: Deadline,
    saved_state: SavedState,
    failures: Vec<String>,
    /// Failures of the last attempt alone, because each attempt repeats what failed before.
    attempt_failures: Vec<String>,
}

impl Uninstall<'_> {
    /// Attempts the uninstall until kubeconfig and plugin binaries are removed or have to stay.
    /// Returns all failures.
    fn finish_or_fail(mut self) -> Result<(), Failure> {
        let removed = self.attempt_until_removed();
        let mut failures = [self.failures, self.attempt_failures].concat();
        let Err(why_kept) = removed else {
            if failures.is_empty() {
                return Ok(());
            }
            return Err(Failure::Failed(failures));
        };
        let is_only_chained_again =
            failures.is_empty() && matches!(why_kept, Failure::ChainedAgain(_));
        failures.extend(why_kept.into_texts());
        failures.push(STILL_NAMED.into());
        if is_only_chained_again {
            return Err(Failure::ChainedAgain(failures));
        }
        Err(Failure::Failed(failures))
    }

    /// Repeats the attempt while a network config names the plugin. Fails with the reason why
    /// kubeconfig and plugin binaries have to stay.
    fn attempt_until_removed(&mut self) -> Result<(), Failure> {
        let mut removals = 0;
        loop {
            self.attempt_failures.clear();
            let Some(NamingConfig { path, can_unchain }) =
                self.attempt().map_err(Failure::Failed)?
            else {
                return Ok(());
            };
            if !can_unchain {
                if self.end.has_passed() {
                    return Err(still_named(&path));
                }
                thread::sleep(FOREIGN_PERIOD);
                continue;
            }
            removals += 1;
            if removals == MAX_REMOVALS {
                return Err(chained_again(&path));
            }
            info!("{} names {PLUGIN} again", path.display());
        }
    }

    /// Unchains the plugin from all network configs. Then removes the other files, unless a network
    /// config names the plugin again. Returns that network config.
    fn attempt(&mut self) -> Result<Option<NamingConfig>, Vec<String>> {
        let lock = self.locker.take();
        self.saved_state = SavedState::load(&self.settings.net_dir);
        self.attempt_failures.extend(self.saved_state.unusable.clone());
        let configs = self.unchain()?;
        drop(lock);
        let needed_by = kept_binary::needed_by(self.settings, &configs);
        let paths = self.paths_to_remove(needed_by.is_some());
        let mut quiet_before = QUIET_BEFORE;
        let mut quiet_after = QUIET_AFTER;
        let is_removed = paths.iter().all(|path| matches!(files::metadata(path), Ok(None)));
        if is_removed {
            // An earlier attempt has removed the files, so there is nothing to wait for.
            quiet_before = Duration::ZERO;
            quiet_after = Duration::ZERO;
        }
        if let Some(naming) = self.watch_for_naming_config(quiet_before)? {
            return Ok(Some(naming));
        }
        // This agent keeps the lock until the files are removed or put back. Another agent may have
        // chained the plugin before this one got the lock, so the network configs are read again.
        let lock = self.locker.take();
        if let Some(naming) = self.watch_for_naming_config(Duration::ZERO)? {
            return Ok(Some(naming));
        }
        let staged = self.stage(paths);
        let naming = self.watch_for_naming_config(quiet_after);
        if let Ok(None) = naming {
            self.finish(staged, &lock);
            self.report_kept_files(needed_by);
            self.report_unreadable(&configs);
        } else {
            self.put_back(&staged);
        }
        naming
    }

    /// Reads the network configs, also those that Cilium has renamed. Returns none if the net dir
    /// is missing.
    fn configs(&self) -> Result<Vec<ConfigFile>, Vec<String>> {
        match net_dir::scan_with_backups(&self.settings.net_dir, &self.settings.kubeconfig_name) {
            Ok(found) => Ok(found),
            Err(error) if error.is_missing() => Ok(Vec::new()),
            Err(error) => Err(vec![error.to_string()]),
        }
    }

    /// Removes the plugin entry from all network configs. A config that another program writes at
    /// the same time is left to the next attempt. Returns the network configs, as they were before.
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

    /// Reads the network configs every [`POLL_PERIOD`], for the time `quiet`, and at least once.
    /// Returns the first network config that names the plugin, or `None` if no config names it in
    /// this time.
    fn watch_for_naming_config(
        &self,
        quiet: Duration,
    ) -> Result<Option<NamingConfig>, Vec<String>> {
        let end = Deadline::after(quiet);
        loop {
            let configs = self.configs()?;
            let naming = find_naming_config(&self.settings.net_dir, &configs, &self.saved_state);
            if naming.is_some() || end.has_passed() {
                return Ok(naming);
            }
            thread::sleep(POLL_PERIOD.min(end.remaining()));
        }
    }

    /// Returns the paths of the files to remove, in the order in which they are removed.
    fn paths_to_remove(&self, keep_binary: bool) -> Vec<PathBuf> {
        let settings = self.settings;
        let mut paths = vec![settings.kubeconfig()];
        let binaries = Binaries::in_image(settings).unwrap_or_else(|_| vec![PLUGIN.to_owned()]);
        for name in binaries {
            if name != PLUGIN || !keep_binary {
                paths.push(settings.bin_dir.join(name));
            }
        }
        // A saved state that this agent cannot read stays, because a later uninstall may be able to
        // read it and restore the original files.
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

    /// Gives all renamed files their names back, in the order of an install.
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

    /// Removes the renamed files, the record of a withdrawal, the node's copy of its pods, and the
    /// file of the `lock`.
    fn finish(&mut self, staged: Vec<StagedRemoval>, lock: &NodeLock) {
        for removal in staged {
            let path = removal.path().to_owned();
            match removal.finish() {
                Ok(()) => info!("removed {}", path.display()),
                Err(error) => self.attempt_failures.push(error.to_string()),
            }
        }
        if let Err(error) = withdrawal::remove(self.settings) {
            self.attempt_failures.push(error.to_string());
        }
        if let Some(run_dir) = &self.settings.run_dir {
            for error in pod_copy::clear(run_dir) {
                self.attempt_failures.push(error.to_string());
            }
            if let Err(error) = lock.remove_file(run_dir) {
                self.attempt_failures.push(error.to_string());
            }
        }
    }

    /// Logs which files a successful uninstall leaves on the node, and why.
    fn report_kept_files(&self, binary_needed_by: Option<&str>) {
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

    /// Logs which network configs the uninstall could not read. It did not wait for them, because
    /// they cannot name the plugin.
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

/// Returns the failure of an uninstall after which another program chained the plugin again in the
/// network config at `path`.
fn chained_again(path: &Path) -> Failure {
    let path = path.display();
    Failure::ChainedAgain(vec![format!(
        "{path} {OVERWRITTEN}, which chains {PLUGIN} again; if no Linkerd CNI agent should run on \
         this node, stop that writer, then run `linkerd2-cni-install uninstall` on this node"
    )])
}

/// Returns the failure of an uninstall that could not remove the plugin entry from the network
/// config at `path`.
fn still_named(path: &Path) -> Failure {
    let path = path.display();
    Failure::Failed(vec![format!(
        "{path} names {PLUGIN}, or cannot be read; correct or remove that file, then run \
         `linkerd2-cni-install uninstall` on this node"
    )])
}

fn exists(path: &Path) -> bool {
    matches!(files::metadata(path), Ok(Some(_)))
}

/// A network config in the CNI net dir that names the plugin.
struct NamingConfig {
    path: PathBuf,
    /// Whether [`plan::unchain`] can remove the plugin entry. It cannot if the config is unreadable
    /// or half written, or names the plugin only in a copy of a conflist that it contains.
    can_unchain: bool,
}

/// Returns a network config among `found` that names the plugin. Prefers one from which the plugin
/// can be unchained. Ignores files that Cilium has renamed, because no runtime loads them.
fn find_naming_config(
    dir: &Path,
    found: &[ConfigFile],
    saved_state: &SavedState,
) -> Option<NamingConfig> {
    let steps = plan::unchain(found, saved_state);
    let mut with_entry = None;
    let mut without_entry = None;
    for file in found {
        if file.is_renamed() || !net_dir::may_name_plugin(file) {
            continue;
        }
        let can_unchain = steps.iter().any(|step| step.target() == file.name);
        let naming = NamingConfig { path: dir.join(&file.name), can_unchain };
        if can_unchain {
            with_entry = Some(naming);
        } else {
            without_entry = Some(naming);
        }
    }
    with_entry.or(without_entry)
}
