//! Removes what a killed agent, upstream's agent or upstream's old install script left on the node.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use tracing::info;

use crate::conflist::PLUGIN;
use crate::files;
use crate::node::NodeSettings;
use crate::record::SOCKET_NAME;

/// Network config of the old install script's interface mode, in which the plugin was not chained.
const OLD_CONFIG: &str = "01-linkerd-cni.conf";
/// Suffix of a file that an upstream agent has not finished.
const UNFINISHED: &str = ".install";

/// Removes all such files, and returns the failures. Accepts missing directories.
pub fn remove(settings: &NodeSettings) -> Vec<String> {
    let mut failures = sweep(&settings.bin_dir, is_left_in_bin_dir);
    failures.extend(sweep(&settings.net_dir, |name| is_left_in_net_dir(settings, name)));
    failures
}

fn is_left_in_bin_dir(name: &str) -> bool {
    name.strip_suffix(UNFINISHED) == Some(PLUGIN)
}

fn is_left_in_net_dir(settings: &NodeSettings, name: &str) -> bool {
    if name == OLD_CONFIG {
        // Keep the old name if the user chose it for the standalone config.
        return settings.mode.standalone() != Some(name);
    }
    match name.strip_suffix(UNFINISHED) {
        Some(written) => written == settings.kubeconfig_name || written.ends_with(".conflist"),
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

/// Removes the files in `dir` that are temporary or left over. Returns the failures.
fn sweep(dir: &Path, is_left_over: impl Fn(&str) -> bool) -> Vec<String> {
    let names = match files::file_names(dir) {
        Err(error) if error.is_missing() => Vec::new(),
        Err(error) => return vec![error.to_string()],
        Ok(names) => names,
    };
    let mut failures = Vec::new();
    for name in names.iter().filter(|name| files::is_temporary(name) || is_left_over(name)) {
        let path = dir.join(name);
        match files::remove(&path) {
            // Keep directories: no agent creates directories with these names.
            Err(_) if path.is_dir() => {}
            Ok(true) => info!("removed {}, left by an earlier agent", path.display()),
            Ok(false) => {}
            Err(error) => failures.push(error.to_string()),
        }
    }
    failures
}
