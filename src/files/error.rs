//! Errors of operations on files of the host, and what an operator can do about them.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Errors of opening a path at which no program finds a file, whatever its permissions.
const NO_FILE: [Errno; 6] =
    [Errno::NOENT, Errno::NXIO, Errno::NODEV, Errno::LOOP, Errno::NOTDIR, Errno::NAMETOOLONG];

/// Why an operation on a file failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {act} {}: {source}{}", path.display(), remedy(source))]
    Io { act: &'static str, path: PathBuf, source: io::Error },
    /// The file cannot be used, for example because of its type. `why` is the rest of the sentence
    /// that starts with the path.
    #[error("{} {why}", path.display())]
    Unusable { path: PathBuf, why: &'static str },
    #[error("{} is larger than 5 MiB", path.display())]
    TooLarge { path: PathBuf },
    /// Another program wrote the file since it was read. The caller should read it again.
    #[error("another program has changed {}", path.display())]
    Raced { path: PathBuf },
}

impl Error {
    /// Returns the error "cannot `act` `path`".
    pub(super) fn from_io(act: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { act, path: path.to_owned(), source }
    }

    /// Returns whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Returns whether no program can read a file at the path: the path is missing, is not a
    /// regular file, or is a symbolic link that leads nowhere.
    pub fn is_no_file(&self) -> bool {
        match self {
            Error::Io { source, .. } => {
                Errno::from_io_error(source).is_some_and(|errno| NO_FILE.contains(&errno))
            }
            Error::Unusable { .. } => true,
            Error::TooLarge { .. } | Error::Raced { .. } => false,
        }
    }

    /// Returns the error as the rest of a sentence that starts with the path.
    pub fn without_path(&self) -> String {
        match self {
            Error::Io { act, source, .. } => {
                format!("cannot be {act}: {source}{}", remedy(source))
            }
            Error::Unusable { why, .. } => (*why).to_owned(),
            Error::TooLarge { .. } => "is larger than 5 MiB".to_owned(),
            Error::Raced { .. } => "was changed by another program".to_owned(),
        }
    }
}

/// Returns what an operator can do about `error`, to append to the text of the error. Empty if that
/// text already shows what to do.
fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => "; free space or inodes on the node's disk",
        Some(Errno::ROFS) => {
            "; remount the node's file system writable, or set the chart's platform, destCNINetDir \
             or destCNIBinDir to a writable directory"
        }
        // Root gets this error for files that are immutable or append-only, and in such
        // directories, so the remedy is about these two attributes.
        Some(Errno::PERM) => {
            "; if lsattr -d shows the attribute i or a of this file or its directory on the node, \
             remove the attribute with chattr -i -a"
        }
        Some(Errno::ACCESS) => {
            "; if the node enforces SELinux, set the chart's seLinuxOptions (such as type: spc_t) \
             or privileged=true"
        }
        Some(Errno::BUSY) => "; unmount what the node has mounted at this path",
        Some(Errno::ISDIR) => "; remove the directory at this path of the node",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_the_node_causes_have_a_remedy() {
        for (errno, part) in [
            (Errno::NOSPC, "free space"),
            (Errno::DQUOT, "free space"),
            (Errno::ROFS, "destCNIBinDir"),
            (Errno::ACCESS, "seLinuxOptions"),
            (Errno::PERM, "chattr -i -a"),
            (Errno::BUSY, "unmount"),
            (Errno::ISDIR, "remove the directory"),
        ] {
            let text = remedy(&errno.into());
            assert!(text.starts_with("; ") && text.contains(part), "{text}");
        }
        for errno in [Errno::NOENT, Errno::IO] {
            assert_eq!(remedy(&errno.into()), "");
        }
    }
}
