//! Records on the node why an uninstall failed, so that the agent that starts next can report it.
//!
//! The agent that uninstalls often cannot report its failure: its log is deleted with its pod, and
//! after `helm uninstall` the API server rejects its Events, because its token is no longer valid.

use std::path::{Path, PathBuf};

use tracing::warn;

use super::NodeSettings;
use super::uninstall::Failure;
use crate::files::{self, FileAccess};
use crate::quote::one_line;

/// Name of the record in the run dir. Like the whole run dir, the record is lost when the node
/// restarts.
const NAME: &str = "uninstall-failed";
/// Longest reason that is reported, in characters, so that it fits into an Event.
const TEXT_LIMIT: usize = 600;

/// An uninstall that failed.
pub struct FailedUninstall {
    /// When the uninstall ended, in the format of RFC 3339.
    pub date: String,
    pub why: String,
    /// The record, which [`forget`] removes once the failure is reported.
    pub record: PathBuf,
}

/// Records the failures of an uninstall. If the uninstall succeeded, removes the record of an
/// earlier one. An uninstall that left its files for another writer, which chained the plugin
/// again, counts as a success: the files belong to that writer. Does nothing if there is no run
/// dir.
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

/// Reads the record of the last uninstall, if that failed. The record stays until [`forget`]:
/// if this agent ends before it could report the failure, the next agent reports it.
pub fn read(settings: &NodeSettings) -> Option<FailedUninstall> {
    let record = settings.run_dir.as_ref()?.join(NAME);
    let (bytes, _) = files::read(&record).ok()?;
    let metadata = files::metadata(&record).ok()??;
    let written = metadata.modified().ok()?;
    let text = one_line(&String::from_utf8_lossy(&bytes));
    Some(FailedUninstall {
        date: humantime::format_rfc3339_seconds(written).to_string(),
        why: text.chars().take(TEXT_LIMIT).collect(),
        record,
    })
}

/// Removes the `record` of a failure that was reported.
pub fn forget(record: &Path) {
    if let Err(error) = files::remove(record) {
        warn!("{error}");
    }
}
