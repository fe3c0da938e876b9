//! What an earlier life, upstream's agent or the old shell script may have left behind.

use std::path::Path;

use tracing::info;

use crate::agent::settings::Settings;
use crate::conflist::PLUGIN;
use crate::files;

/// The configuration of the shell script's interface mode, from before chaining.
const OLD_CONFIG: &str = "01-linkerd-cni.conf";

/// Removes it all, and returns what could not be. A missing directory has nothing in it.
pub fn tidy(settings: &Settings) -> Vec<files::Error> {
    let mut failures = Vec::new();
    sweep(&settings.bin_dir, &mut failures, |name| {
        name.strip_suffix(".install") == Some(PLUGIN)
    });
    // Somebody may have given that name to a file of today's.
    let old = settings.conf_name.as_deref() != Some(OLD_CONFIG);
    sweep(&settings.net_dir, &mut failures, |name| {
        let installed = name
            .strip_suffix(".install")
            .is_some_and(|name| name == settings.kubeconfig_name || name.ends_with(".conflist"));
        installed || old && name == OLD_CONFIG
    });
    failures
}

fn sweep(dir: &Path, failures: &mut Vec<files::Error>, is_left_over: impl Fn(&str) -> bool) {
    let names = match files::names(dir) {
        Err(error) if error.is_missing() => return,
        Err(error) => return failures.push(error),
        Ok(names) => names,
    };
    for name in names {
        let path = dir.join(&name);
        if !files::is_temporary(&name) && !is_left_over(&name) {
            continue;
        }
        match remove(&path) {
            Ok(true) => info!("Removed {}, which an earlier agent left", path.display()),
            Ok(false) => {}
            Err(error) => failures.push(error),
        }
    }
}

/// No agent ever left a directory.
fn remove(path: &Path) -> Result<bool, files::Error> {
    match files::look(path)? {
        Some(there) if there.is_dir() => Ok(false),
        _ => files::remove(path),
    }
}
