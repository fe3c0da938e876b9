//! Removes files that a killed agent, upstream's agent or upstream's old install script left on the
//! node.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use tracing::info;

use crate::conflist::PLUGIN;
use crate::files;
use crate::node::settings::NodeSettings;
use crate::record::SOCKET_NAME;

/// Network config of the old install script's interface mode, in which the plugin was not chained.
const OLD_CONFIG: &str = "01-linkerd-cni.conf";

/// Removes all such files, and returns the failures. Accepts missing directories.
pub fn remove(settings: &NodeSettings) -> Vec<files::Error> {
    let mut failures = Vec::new();
    sweep(&settings.bin_dir, &mut failures, |name| name.strip_suffix(".install") == Some(PLUGIN));
    sweep(&settings.net_dir, &mut failures, |name| {
        let installed = name
            .strip_suffix(".install")
            .is_some_and(|name| name == settings.kubeconfig_name || name.ends_with(".conflist"));
        installed || is_old_config(settings, name)
    });
    failures
}

/// Returns whether `name` is the network config of the old install script. The user may have chosen
/// this name for the standalone config.
pub fn is_old_config(settings: &NodeSettings, name: &str) -> bool {
    name == OLD_CONFIG && settings.mode.own_config() != Some(OLD_CONFIG)
}

/// Removes the sockets for plugin records whose agents are dead: this agent's, and that of an agent without
/// a run dir. Returns the failures.
pub fn remove_dead_sockets(settings: &NodeSettings) -> impl Iterator<Item = files::Error> {
    let paths = BTreeSet::from([settings.record_socket(), settings.net_dir.join(SOCKET_NAME)]);
    paths.into_iter().filter_map(|path| remove_dead_socket(&path).err())
}

fn remove_dead_socket(path: &Path) -> Result<(), files::Error> {
    let is_socket = files::metadata(path)?.is_some_and(|file| file.file_type().is_socket());
    let connected = || UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    let is_dead = is_socket
        && connected().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if is_dead && files::remove(path)? {
        info!("removed {}, left by an earlier agent", path.display());
    }
    Ok(())
}

/// Removes all files in `dir` that are temporary or for which `is_left_over` is true.
fn sweep(dir: &Path, failures: &mut Vec<files::Error>, is_left_over: impl Fn(&str) -> bool) {
    let names = match files::file_names(dir) {
        Err(error) if error.is_missing() => return,
        Err(error) => return failures.push(error),
        Ok(names) => names,
    };
    for name in names {
        let path = dir.join(&name);
        if !files::is_temporary(&name) && !is_left_over(&name) {
            continue;
        }
        match remove_file(&path) {
            Ok(true) => info!("removed {}, left by an earlier agent", path.display()),
            Ok(false) => {}
            Err(error) => failures.push(error),
        }
    }
}

/// Removes a file. Keeps a directory, as no agent creates directories of these names.
fn remove_file(path: &Path) -> Result<bool, files::Error> {
    match files::metadata(path)? {
        Some(metadata) if metadata.is_dir() => Ok(false),
        _ => files::remove(path),
    }
}
