//! Removes what a killed agent, upstream's agent or upstream's old install script left on the node.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use tracing::info;

use crate::conflist::PLUGIN;
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
    /// When to attempt the removal again, because a file was left that an upstream agent may be
    /// writing now.
    pub repeat_at: Option<Instant>,
}

impl LeftoversRemoval {
    /// Returns whether all leftovers are removed.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Removes all leftovers except files that an upstream agent may be writing now. If such a file
    /// were removed, that agent could not install, and would end. A missing directory is not a
    /// failure.
    pub fn attempt(&mut self, settings: &NodeSettings) -> LeftoversOutcome {
        let Removal { failures, spared_any } = remove_abandoned(settings, ABANDONED_AFTER);
        self.is_complete = failures.is_empty() && !spared_any;
        let repeat_at = if spared_any { Some(Instant::now() + ABANDONED_AFTER) } else { None };
        LeftoversOutcome { failures, repeat_at }
    }
}

/// Removes all leftovers, even if they have changed just now. Returns the failures. A missing
/// directory is not a failure.
pub fn remove_all(settings: &NodeSettings) -> Vec<String> {
    remove_abandoned(settings, Duration::ZERO).failures
}

/// Removes the leftovers in bin dir and net dir that have not changed for the time
/// `abandoned_after`.
fn remove_abandoned(settings: &NodeSettings, abandoned_after: Duration) -> Removal {
    let bin_dir = remove_in_dir(&settings.bin_dir, abandoned_after, is_leftover_in_bin_dir);
    let net_dir = remove_in_dir(&settings.net_dir, abandoned_after, |name| {
        is_leftover_in_net_dir(settings, name)
    });
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
    let is_socket = files::metadata(path)?.is_some_and(|file| file.file_type().is_socket());
    if is_socket && is_refused(path) && files::remove(path)? {
        info!("removed {}, left by an earlier agent", path.display());
    }
    Ok(())
}

/// Returns whether no process reads from the socket at `path`.
fn is_refused(path: &Path) -> bool {
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Outcome of the removal in one or more directories.
#[derive(Default)]
struct Removal {
    failures: Vec<String>,
    /// Whether a file was left because it has changed just now.
    spared_any: bool,
}

/// Removes the temporary files and the leftovers in `dir`. A file with [`UNFINISHED_SUFFIX`] is
/// left if it has changed within the time `abandoned_after`, because an upstream agent may be
/// writing it.
fn remove_in_dir(
    dir: &Path,
    abandoned_after: Duration,
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
    for name in names.iter().filter(|name| files::is_temporary(name) || is_leftover(name)) {
        let path = dir.join(name);
        if name.ends_with(UNFINISHED_SUFFIX) && has_changed_within(&path, abandoned_after) {
            removal.spared_any = true;
            continue;
        }
        match files::remove(&path) {
            // A directory cannot be removed like a file. That is not a failure: no agent creates
            // directories with these names, so the directory is another program's.
            Err(_) if path.is_dir() => {}
            Ok(true) => info!("removed {}, left by an earlier agent", path.display()),
            Ok(false) => {}
            Err(error) => removal.failures.push(error.to_string()),
        }
    }
    removal
}

/// Returns whether the file at `path` has changed within the last `time`. A change in the future
/// does not count: the node's clock was set back since, and the age of the change is unknown.
fn has_changed_within(path: &Path, time: Duration) -> bool {
    let changed = files::changed_at(path);
    changed.and_then(|changed| changed.elapsed().ok()).is_some_and(|age| age < time)
}
