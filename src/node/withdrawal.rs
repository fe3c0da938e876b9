//! The record of a withdrawal: the agent took the plugin entry out of the network configs, because
//! the container runtime could not run the plugin.
//!
//! The record is written before the entry is removed. So an agent that is killed in between, or that
//! starts later, removes the entry, or does not add it again. The record counts only for the chain
//! that it names: after a change of the plugin binary, its directory or the plugin entry, the agent
//! chains the plugin again.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::NodeSettings;
use crate::files::{self, FileAccess};
use crate::kube::redact;

/// Name of the record in the run dir. Like the whole run dir, the record is lost when the node
/// restarts.
const NAME: &str = "withdrawn";

/// The Event that shows that the container runtime could not run the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Namespace and name of the pod that the runtime could not start.
    pub pod: String,
    pub failure: RunFailure,
    /// The runtime's words, on one line and cut.
    pub message: String,
}

/// How the container runtime failed to run the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RunFailure {
    /// The runtime looks for the plugin in other directories.
    NotFound,
    /// The kernel did not start the plugin.
    NotStarted,
}

/// A chain that the agent has withdrawn, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawal {
    /// [`ChainDigest`](super::chain_digest::ChainDigest) of the chain.
    pub chain: String,
    pub evidence: Evidence,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] files::Error),
    #[error("{} is not the record of a withdrawal: {problem}; remove the file", path.display())]
    Invalid { path: PathBuf, problem: String },
    #[error("no directory is mounted in which to record it: mount LINKERD_CNI_RUN_DIR")]
    NoRunDir,
}

/// Returns the path of the record. `None` if there is no run dir.
pub fn path(settings: &NodeSettings) -> Option<PathBuf> {
    Some(settings.run_dir.as_ref()?.join(NAME))
}

/// Reads the record. `None` if there is none.
pub fn read(settings: &NodeSettings) -> Result<Option<Withdrawal>, Error> {
    let Some(path) = path(settings) else { return Ok(None) };
    let bytes = match files::read(&path) {
        Ok((bytes, _)) => bytes,
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match redact::decode_object(&bytes) {
        Ok(withdrawal) => Ok(Some(withdrawal)),
        Err(error) => Err(Error::Invalid { path, problem: redact::describe_json_error(&error) }),
    }
}

/// Writes the record.
pub fn record(settings: &NodeSettings, withdrawal: &Withdrawal) -> Result<(), Error> {
    let Some(path) = path(settings) else { return Err(Error::NoRunDir) };
    let text = serde_json::to_vec(withdrawal)
        .map_err(|error| Error::Invalid { path: path.clone(), problem: error.to_string() })?;
    Ok(files::write(&path, &text, FileAccess::own(0o600))?)
}

/// Removes the record, if there is one.
pub fn remove(settings: &NodeSettings) -> Result<(), files::Error> {
    if let Some(path) = path(settings) {
        files::remove(&path)?;
    }
    Ok(())
}
