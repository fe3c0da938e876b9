//! Keeps on the node why an uninstall failed, for the agent that starts next.
//!
//! The log of an agent that uninstalls ends with its pod. After `helm uninstall` the API server
//! accepts no Event of it either, as its token has ended.

use tracing::warn;

use super::NodeSettings;
use super::uninstall::Failure;
use crate::files::{self, FileAccess};
use crate::quote::one_line;

/// File name in the run dir. The file is gone after a restart of the node, as the plugin's records
/// are.
const NAME: &str = "uninstall-failed";
/// Longest text that is reported, in characters, so that it fits into an Event.
const TEXT_LIMIT: usize = 600;

/// An uninstall that failed.
pub struct FailedUninstall {
    /// When it ended; RFC 3339.
    pub date: String,
    pub why: String,
}

/// Records the failures of the last uninstall, or that it succeeded. It did if another writer
/// chained the plugin again, because the files are that writer's. An agent without a run dir has no
/// place for the record.
pub fn record(settings: &NodeSettings, result: &Result<(), Failure>) {
    let Some(run_dir) = &settings.run_dir else { return };
    let path = run_dir.join(NAME);
    let recorded = match result {
        Ok(()) | Err(Failure::ChainedAgain(_)) => files::remove(&path).map(|_| ()),
        Err(Failure::Failed(failures)) => {
            files::write(&path, failures.join("; ").as_bytes(), FileAccess::own(0o600))
        }
    };
    if let Err(error) = recorded {
        warn!("cannot record how the uninstall ended: {error}");
    }
}

/// Returns why the last uninstall failed, and removes the record.
pub fn take(settings: &NodeSettings) -> Option<FailedUninstall> {
    let path = settings.run_dir.as_ref()?.join(NAME);
    let (bytes, _) = files::read(&path).ok()?;
    let written = files::metadata(&path).ok()??.modified().ok()?;
    if let Err(error) = files::remove(&path) {
        warn!("{error}");
    }
    let text = one_line(&String::from_utf8_lossy(&bytes));
    Some(FailedUninstall {
        date: humantime::format_rfc3339_seconds(written).to_string(),
        why: text.chars().take(TEXT_LIMIT).collect(),
    })
}
