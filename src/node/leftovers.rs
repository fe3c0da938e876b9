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

/// Network config of the old install script's interface mode, in which the plugin was not chained.
const OLD_CONFIG: &str = "01-linkerd-cni.conf";
/// Suffix of the file that an upstream agent writes and then renames.
const UNFINISHED: &str = ".install";
/// Time without a change after which an upstream agent no longer writes a file with the suffix
/// [`UNFINISHED`].
const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// Removes leftovers once, after the start of an agent.
#[derive(Debug, Default)]
pub struct LeftoversRemoval {
    is_complete: bool,
}

/// Outcome of [`LeftoversRemoval::run`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LeftoversOutcome {
    pub failures: Vec<String>,
    /// When to repeat the removal, because an upstream agent may be writing a file now.
    pub repeat_at: Option<Instant>,
}

impl LeftoversRemoval {
    /// Returns whether all leftovers are removed.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Removes all leftovers except files that an upstream agent may be writing now: without its
    /// file, that agent cannot install, and ends. Accepts missing directories.
    pub fn run(&mut self, settings: &NodeSettings) -> LeftoversOutcome {
        let Swept { failures, spared_any } = sweep_all(settings, ABANDONED_AFTER);
        self.is_complete = failures.is_empty() && !spared_any;
        let repeat_at = if spared_any { Some(Instant::now() + ABANDONED_AFTER) } else { None };
        LeftoversOutcome { failures, repeat_at }
    }
}

/// Removes all leftovers, and returns the failures. Accepts missing directories.
pub fn remove_all(settings: &NodeSettings) -> Vec<String> {
    sweep_all(settings, Duration::ZERO).failures
}

/// Removes the leftovers that have not changed for the time `abandoned_after`.
fn sweep_all(settings: &NodeSettings, abandoned_after: Duration) -> Swept {
    let bin_dir = sweep(&settings.bin_dir, abandoned_after, is_leftover_in_bin_dir);
    let net_dir =
        sweep(&settings.net_dir, abandoned_after, |name| is_leftover_in_net_dir(settings, name));
    Swept {
        failures: [bin_dir.failures, net_dir.failures].concat(),
        spared_any: bin_dir.spared_any || net_dir.spared_any,
    }
}

fn is_leftover_in_bin_dir(name: &str) -> bool {
    name.strip_suffix(UNFINISHED) == Some(PLUGIN)
}

/// Returns whether a file of this name in the CNI net dir is to be removed: [`OLD_CONFIG`], or a
/// kubeconfig or conflist that an upstream agent wrote and did not rename.
fn is_leftover_in_net_dir(settings: &NodeSettings, name: &str) -> bool {
    if name == OLD_CONFIG {
        // The user may have chosen this name for the standalone config, which is in use.
        return settings.mode.standalone_config() != Some(name);
    }
    match name.strip_suffix(UNFINISHED) {
        Some(target) => target == settings.kubeconfig_name || target.ends_with(".conflist"),
        None => false,
    }
}

/// Removes the sockets for plugin records whose agents are dead: this agent's, and that of an agent
/// without a run dir. Returns the failures.
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
struct Swept {
    failures: Vec<String>,
    /// Whether a file stays because it was changed just now.
    spared_any: bool,
}

/// Removes the temporary files and the leftovers in `dir`. A file with the suffix [`UNFINISHED`]
/// stays if it has changed within the time `abandoned_after`, because an upstream agent may be
/// writing it.
fn sweep(dir: &Path, abandoned_after: Duration, is_left_over: impl Fn(&str) -> bool) -> Swept {
    let mut swept = Swept::default();
    let names = match files::file_names(dir) {
        Ok(names) => names,
        Err(error) if error.is_missing() => return swept,
        Err(error) => {
            swept.failures.push(error.to_string());
            return swept;
        }
    };
    for name in names.iter().filter(|name| files::is_temporary(name) || is_left_over(name)) {
        let path = dir.join(name);
        if name.ends_with(UNFINISHED) && has_changed_within(&path, abandoned_after) {
            swept.spared_any = true;
            continue;
        }
        match files::remove(&path) {
            // Keep directories: no agent creates directories with these names.
            Err(_) if path.is_dir() => {}
            Ok(true) => info!("removed {}, left by an earlier agent", path.display()),
            Ok(false) => {}
            Err(error) => swept.failures.push(error.to_string()),
        }
    }
    swept
}

/// Returns whether the file at `path` has changed within the last `time`. A change in the future
/// does not count: the node's clock was set back.
fn has_changed_within(path: &Path, time: Duration) -> bool {
    let changed = files::changed_at(path);
    changed.and_then(|changed| changed.elapsed().ok()).is_some_and(|age| age < time)
}
