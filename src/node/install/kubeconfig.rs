//! Writes the plugin's kubeconfig to the host.

use std::path::Path;
use std::time::Instant;

use tracing::info;

use super::StepOutcome;
use crate::files::{self, FileAccess};
use crate::kube::kubeconfig;
use crate::node::NodeSettings;
use crate::node::contention::{LimitedWriter, WriteError, WrittenFile};
use crate::node::observed::{Observed, has_host_name};
use crate::node::upstream_kubeconfig::UpstreamKubeconfig;

/// File mode of the kubeconfig: it contains a token, so only root may read it.
const MODE: u32 = 0o600;

/// Outcome of [`replace_host_name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostName {
    /// No kubeconfig has a host name, or no plugin on the host uses the kubeconfig.
    Absent,
    Replaced,
    /// The kubeconfig with the host name stays. Then upstream's plugin has to stay on the host too,
    /// because this project's plugin does not resolve names.
    Stays,
}

/// Replaces a kubeconfig that has a host name by `desired`, the kubeconfig of this agent, which has
/// an address. Call this before the plugin binary is replaced: only upstream's plugin resolves a
/// name, but both plugins can use an address. `desired` is `None` if no kubeconfig may be written.
pub fn replace_host_name(
    settings: &NodeSettings,
    observed: &Observed,
    desired: Option<&str>,
    upstream: &mut UpstreamKubeconfig,
    writer: &mut LimitedWriter,
) -> HostName {
    if !observed.has_plugin || !observed.has_host_name() {
        return HostName::Absent;
    }
    let outcome = install(settings, desired, upstream, writer);
    let still_has_name = match kubeconfig::read(&settings.kubeconfig()) {
        Ok(found) => has_host_name(&found),
        Err(_) => false,
    };
    if outcome.problem.is_some() || still_has_name { HostName::Stays } else { HostName::Replaced }
}

/// Writes the `desired` kubeconfig if the kubeconfig on the host differs in content, owner or mode.
/// If `desired` is `None`, the kubeconfig on the host stays as it is.
pub fn install(
    settings: &NodeSettings,
    desired: Option<&str>,
    upstream: &mut UpstreamKubeconfig,
    writer: &mut LimitedWriter,
) -> StepOutcome {
    let Some(desired) = desired else {
        return StepOutcome::default();
    };
    let path = settings.kubeconfig();
    match is_current(&path, desired) {
        Ok(true) => return StepOutcome::default(),
        Ok(false) => {}
        Err(error) => return StepOutcome::failed(error.to_string()),
    }
    let file = WrittenFile::Kubeconfig(path.clone());
    // The write is limited only if it repeats the same content. So a renewed token is written at
    // once.
    let key = desired;
    let written = writer.write(&file, key, Instant::now(), || {
        upstream.before_write(&path, desired);
        files::write(&path, desired.as_bytes(), FileAccess::own(MODE))
    });
    match written {
        Ok(()) => {
            info!("wrote kubeconfig {}", path.display());
            StepOutcome::written(1)
        }
        Err(WriteError::Limited(until)) => StepOutcome::limited(&file, until),
        Err(WriteError::Failed(error)) => StepOutcome::failed(error.to_string()),
    }
}

/// Returns whether the file at `path` has the `desired` content, and the owner and mode that this
/// agent gives it.
fn is_current(path: &Path, desired: &str) -> Result<bool, files::Error> {
    let Some(metadata) = files::metadata(path)? else {
        return Ok(false);
    };
    if !metadata.is_file() || FileAccess::from_metadata(&metadata) != FileAccess::own(MODE) {
        return Ok(false);
    }
    Ok(files::read(path).is_ok_and(|(bytes, _)| bytes == desired.as_bytes()))
}
