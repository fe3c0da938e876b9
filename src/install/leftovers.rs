//! What an earlier life, upstream's agent or the old shell script may have left behind.

use std::path::Path;

use tracing::info;

use super::conflist::PLUGIN;
use super::environment::Settings;
use super::files;

/// The configuration of the shell script's interface mode, from before chaining.
const OLD_CONFIG: &str = "01-linkerd-cni.conf";

/// Removes it all. A missing directory has nothing in it.
pub fn tidy(settings: &Settings) -> Result<(), files::Error> {
    sweep(&settings.bin_dir, |name| {
        name.strip_suffix(".install") == Some(PLUGIN)
    })?;
    sweep(&settings.net_dir, |name| {
        let installed = name
            .strip_suffix(".install")
            .is_some_and(|name| name == settings.kubeconfig_name || name.ends_with(".conflist"));
        installed || name == OLD_CONFIG
    })
}

fn sweep(dir: &Path, is_left_over: impl Fn(&str) -> bool) -> Result<(), files::Error> {
    let names = match files::names(dir) {
        Err(error) if error.is_missing() => return Ok(()),
        names => names?,
    };
    for name in names {
        let temporary = files::is_temporary(&name);
        let path = dir.join(&name);
        if (temporary || is_left_over(&name)) && files::remove(&path)? {
            info!("Removed {}, which an earlier agent left", path.display());
        }
    }
    Ok(())
}
