//! Errors of operations on files of the host.

use std::io;
use std::path::{Path, PathBuf};

use super::remedy::remedy;

/// Why an operation on a file of the host failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {act} {}: {source}{}", path.display(), remedy(act, source))]
    Io {
        act: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file does not fit the operation, for example because of its type or size.
    #[error("{} {what}", path.display())]
    Unfit { path: PathBuf, what: &'static str },
    /// Another program wrote the file since it was read. The caller should read it again.
    #[error("{} changed in the meantime", path.display())]
    Raced { path: PathBuf },
}

impl Error {
    /// Returns whether the file or directory is missing.
    pub fn is_missing(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Adds the operation and the path to an I/O error.
pub(super) fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { act, path, source }
}
