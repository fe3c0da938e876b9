//! Removes what a killed agent, upstream's agent or upstream's old install script left on the node.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use tracing::info;

use crate::conflist::PLUGIN;
use crate::conflist::saved_state::SavedState;
use crate::files;
use crate::node::NodeSettings;
use crate::record::SOCKET_NAME;

/// Network config of upstream's old install script, in the mode in which it did not chain the
/// plugin.
const OLD_CONFIG: &str = "01-linkerd-cni.conf";
/// Suffix of the name under which an upstream agent writes a file before it renames the file.
const UNFINISHED_SUFFIX: &str = ".install";
/// Time without a change after which a file with [`UNFINISHED_SUFFIX`] counts as abandoned: no
/// upstream agent is writing it any more.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// Removes the leftovers once after the start of an agent, and remembers whether that is complete.
#[derive(Debug, Default)]
pub struct LeftoversRemoval {
    is_complete: bool,
}

/// Outcome of [`LeftoversRemoval::attempt`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LeftoversOutcome {
    pub failures: Vec<String>,
    /// When to attempt the removal again, because a file was left that another agent may be writing
    /// now.
    pub repeat_at: Option<Instant>,
}

impl LeftoversRemoval {
    /// Returns whether all leftovers are removed.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Removes all leftovers except files that another agent may be writing now. If such a file
    /// were removed, an upstream agent could not install, and would end. Without the node lock
    /// (`is_locked`), an agent of this project may be writing, too. A standalone config that the
    /// `saved` state lists is in use. A missing directory is not a failure.
    pub fn attempt(
        &mut self,
        settings: &NodeSettings,
        saved: &SavedState,
        is_locked: bool,
    ) -> LeftoversOutcome {
        let leftover = |name: &str| classify(name, saved, is_locked);
        let Removal { failures, spared_any } = remove_abandoned(settings, leftover);
        self.is_complete = failures.is_empty() && !spared_any;
        let repeat_at = if spared_any { Some(Instant::now() + ABANDONED_AFTER) } else { None };
        LeftoversOutcome { failures, repeat_at }
    }
}

/// Removes all leftovers, even if they have changed just now. Without the node lock (`is_locked`),
/// temporary files that an agent of this project may be writing now stay. Returns the failures. A
/// missing directory is not a failure.
pub fn remove_all(settings: &NodeSettings, is_locked: bool) -> Vec<String> {
    let leftover = |name: &str| {
        if files::is_temporary(name) && !is_locked {
            Leftover::AbandonedAfter(ABANDONED_AFTER)
        } else {
            Leftover::Abandoned
        }
    };
    remove_abandoned(settings, leftover).failures
}

/// Returns whether another agent may need the leftover `name` after the start of this one.
fn classify(name: &str, saved: &SavedState, is_locked: bool) -> Leftover {
    if saved.standalone_configs.contains(name) {
        return Leftover::InUse;
    }
    if is_locked && !name.ends_with(UNFINISHED_SUFFIX) {
        return Leftover::Abandoned;
    }
    Leftover::AbandonedAfter(ABANDONED_AFTER)
}

/// Whether another agent may need a leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftover {
    Abandoned,
    /// Another agent may be writing the file. It is abandoned if it has not changed for this time.
    AbandonedAfter(Duration),
    /// The file is no leftover.
    InUse,
}

/// Removes the leftovers in bin dir and net dir that are abandoned. `leftover` says so by the name
/// of the file.
fn remove_abandoned(settings: &NodeSettings, leftover: impl Fn(&str) -> Leftover) -> Removal {
    let bin_dir = remove_in_dir(&settings.bin_dir, &leftover, is_leftover_in_bin_dir);
    let net_dir =
        remove_in_dir(&settings.net_dir, &leftover, |name| is_leftover_in_net_dir(settings, name));
    Removal {
        failures: [bin_dir.failures, net_dir.failures].concat(),
        spared_any: bin_dir.spared_any || net_dir.spared_any,
    }
}

fn is_leftover_in_bin_dir(name: &str) -> bool {
    name.strip_suffix(UNFINISHED_SUFFIX) == Some(PLUGIN)
}

/// Returns whether the file `name` in the CNI net dir is a leftover: [`OLD_CONFIG`], or a
/// kubeconfig or conflist that an upstream agent has written and not renamed.
fn is_leftover_in_net_dir(settings: &NodeSettings, name: &str) -> bool {
    if name == OLD_CONFIG {
        // The user may have chosen this name for the standalone config. Then the file is in use.
        return settings.mode.standalone_config() != Some(name);
    }
    match name.strip_suffix(UNFINISHED_SUFFIX) {
        Some(target) => target == settings.kubeconfig_name || target.ends_with(".conflist"),
        None => false,
    }
}

/// Removes sockets for plugin records that no agent reads any more: at the path that this agent
/// uses, and at the path that an agent without a run dir uses. Returns the failures.
pub fn remove_dead_sockets(settings: &NodeSettings) -> Vec<String> {
    let mut failures = Vec::new();
    for path in BTreeSet::from([settings.record_socket(), settings.net_dir.join(SOCKET_NAME)]) {
        if let Err(error) = remove_dead_socket(&path) {
            failures.push(error.to_string());
        }
    }
    failures
}

fn remove_dead_socket(path: &Path) -> Result<(), files::Error> {
    let Some(file) = files::metadata(path)? else {
        return Ok(());
    };
    let is_dead_socket = file.file_type().is_socket() && is_refused(path);
    if is_dead_socket && files::remove(path)? {
        info!("removed {}, left by an earlier agent", path.display());
    }
    Ok(())
}

/// Returns whether no process reads from the socket at `path`.
fn is_refused(path: &Path) -> bool {
    match UnixDatagram::unbound().and_then(|socket| socket.connect(path)) {
        Ok(()) => false,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

/// Outcome of the removal in one or more directories.
#[derive(Default)]
struct Removal {
    failures: Vec<String>,
    /// Whether a file was left because it has changed just now.
    spared_any: bool,
}

/// Removes the temporary files in `dir`, and the files for whose names `is_leftover` returns true.
/// Leaves a file that is not abandoned according to `leftover`.
fn remove_in_dir(
    dir: &Path,
    leftover: impl Fn(&str) -> Leftover,
    is_leftover: impl Fn(&str) -> bool,
) -> Removal {
    let mut removal = Removal::default();
    let names = match files::file_names(dir) {
        Ok(names) => names,
        Err(error) if error.is_missing() => return removal,
        Err(error) => {
            removal.failures.push(error.to_string());
            return removal;
        }
    };
    for name in names {
        if !files::is_temporary(&name) && !is_leftover(&name) {
            continue;
        }
        let path = dir.join(&name);
        match leftover(&name) {
            Leftover::InUse => continue,
            Leftover::AbandonedAfter(time) if has_changed_within(&path, time) => {
                removal.spared_any = true;
                continue;
            }
            Leftover::Abandoned | Leftover::AbandonedAfter(_) => {}
        }
        if let Err(error) = remove_leftover(&path) {
            removal.failures.push(error.to_string());
        }
    }
    removal
}

fn remove_leftover(path: &Path) -> Result<(), files::Error> {
    match files::remove(path) {
        Ok(true) => info!("removed {}, left by an earlier agent", path.display()),
        Ok(false) => {}
        // A directory cannot be removed like a file. That is not a failure: no agent creates
        // directories with these names, so the directory is another program's.
        Err(_) if path.is_dir() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Returns whether the file at `path` has changed within the last `time`. A change in the future
/// does not count: the node's clock was set back since, and the age of the change is unknown.
fn has_changed_within(path: &Path, time: Duration) -> bool {
    let Some(changed) = files::changed_at(path) else {
        return false;
    };
    match changed.elapsed() {
        Ok(age) => age < time,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TEMPORARY: &str = ".linkerd-cni.1.2.3.tmp";
    const UNFINISHED: &str = "10-net.conflist.install";

    #[test]
    fn a_file_that_another_agent_may_be_writing_or_uses_stays() {
        let mut saved = SavedState::default();
        let after = Leftover::AbandonedAfter(ABANDONED_AFTER);
        for (name, is_locked, expected) in [
            (TEMPORARY, true, Leftover::Abandoned),
            // Without the lock, an agent of this project may be writing, too.
            (TEMPORARY, false, after),
            // An upstream agent takes no lock.
            (UNFINISHED, true, after),
            (UNFINISHED, false, after),
            (OLD_CONFIG, true, Leftover::Abandoned),
        ] {
            assert_eq!(classify(name, &saved, is_locked), expected, "{name}, {is_locked}");
        }
        // The standalone config of an agent with another mode. It is removed once the plugin is
        // chained in this agent's mode.
        saved.standalone_configs.insert(OLD_CONFIG.to_owned());
        assert_eq!(classify(OLD_CONFIG, &saved, true), Leftover::InUse);
    }

    #[test]
    fn a_leftover_is_removed_unless_it_has_just_changed() {
        for (leftover, stays) in [
            (Leftover::Abandoned, false),
            (Leftover::AbandonedAfter(Duration::ZERO), false),
            (Leftover::AbandonedAfter(Duration::from_secs(3600)), true),
            (Leftover::InUse, true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(TEMPORARY), "").unwrap();
            let removal = remove_in_dir(dir.path(), |_| leftover, |_| false);
            assert_eq!(removal.failures, [""; 0]);
            assert_eq!(dir.path().join(TEMPORARY).exists(), stays, "{leftover:?}");
            let is_spared = stays && leftover != Leftover::InUse;
            assert_eq!(removal.spared_any, is_spared, "{leftover:?}");
        }
    }
}
