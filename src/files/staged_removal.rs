//! Removes a file in two steps, so that the removal can be undone at once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::exchange::rename_without_replacing;
use super::temporary::{sync_dir, temporary_path};
use super::{check_unchanged, metadata, read, remove};

/// A file that was renamed to a temporary name in its directory. If the process is killed before
/// [`StagedRemoval::undo`], the file is lost, because the next agent removes all temporary files.
#[derive(Debug)]
pub struct StagedRemoval {
    temporary_path: PathBuf,
    path: PathBuf,
}

impl StagedRemoval {
    /// Renames the file `path` to a temporary name; `None` if `path` is missing. If the rename
    /// fails, for example on a full disk, the file is removed.
    pub fn start(path: &Path) -> Result<Option<StagedRemoval>, Error> {
        let temporary_path = temporary_path(path)?;
        let is_file = metadata(path).is_ok_and(|file| file.is_some_and(|file| !file.is_dir()));
        let is_renamed = is_file && fs::rename(path, &temporary_path).is_ok();
        // A directory is not renamed, because `remove` returns an error that names the remedy.
        if is_renamed || remove(path)? {
            return Ok(Some(StagedRemoval { temporary_path, path: path.to_owned() }));
        }
        Ok(None)
    }

    /// Returns the path of the file before its removal.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the file back to its original name, unless a file of that name was created since.
    pub fn undo(&self) -> Result<(), Error> {
        match rename_without_replacing(&self.temporary_path, &self.path) {
            Err(Error::Raced { .. }) => remove_if_exists(&self.temporary_path),
            // An agent that started in between has removed all temporary files. Agents remove them
            // only while they hold the node's lock, unless the file system has no locks.
            Err(error) if error.is_missing() => Ok(()),
            result => result,
        }
    }

    /// Syncs the directory, so that the result of [`StagedRemoval::undo`] survives a power failure.
    pub fn sync(&self) -> Result<(), Error> {
        sync_dir(&self.path)
    }

    /// Removes the file for good.
    pub fn finish(self) -> Result<(), Error> {
        remove_if_exists(&self.temporary_path)?;
        sync_dir(&self.path)
    }
}

/// Removes `path`, which must still hold `before`. Content that another program writes at the same
/// time is not lost, because the file is first renamed, and gets its name back if it holds other
/// content. Only a SIGKILL between the two renames loses such content.
/// Fails with [`Error::Raced`] if `path` does not hold `before`.
pub fn remove_unchanged(path: &Path, before: &[u8]) -> Result<(), Error> {
    check_unchanged(path, before)?;
    if let Some(removal) = StagedRemoval::start(path)? {
        if read(&removal.temporary_path).is_ok_and(|(content, _)| content == before) {
            return removal.finish();
        }
        // The temporary file holds other content, or is missing because another agent has removed
        // it, or because `start` could not rename the file. `undo` succeeds in each case.
        removal.undo()?;
        removal.sync()?;
    }
    Err(Error::Raced { path: path.to_owned() })
}

/// Removes a file, which may be missing.
fn remove_if_exists(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::from_io("remove", path, error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("linkerd-cni");
        fs::write(&path, "plugin").unwrap();
        (dir, path)
    }

    fn count_files(dir: &tempfile::TempDir) -> usize {
        fs::read_dir(dir.path()).unwrap().count()
    }

    #[test]
    fn staged_removal_is_undone_or_finished() {
        let (dir, path) = plugin();
        let removal = StagedRemoval::start(&path).unwrap().unwrap();
        assert!(!path.exists());
        removal.undo().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"plugin");
        StagedRemoval::start(&path).unwrap().unwrap().finish().unwrap();
        assert_eq!(count_files(&dir), 0);
        assert!(StagedRemoval::start(&path).unwrap().is_none());
    }

    #[test]
    fn content_that_another_program_wrote_is_not_removed() {
        let (dir, path) = plugin();
        let raced = remove_unchanged(&path, b"what the agent read").unwrap_err();
        assert!(matches!(raced, Error::Raced { .. }), "{raced}");
        assert_eq!(fs::read(&path).unwrap(), b"plugin");
        assert_eq!(count_files(&dir), 1);
        remove_unchanged(&path, b"plugin").unwrap();
        assert_eq!(count_files(&dir), 0);
        let raced = remove_unchanged(&path, b"plugin").unwrap_err();
        assert!(matches!(raced, Error::Raced { .. }), "{raced}");
    }

    #[test]
    fn undo_keeps_a_file_that_another_agent_installed_since() {
        for is_temporary_removed in [false, true] {
            let (dir, path) = plugin();
            let removal = StagedRemoval::start(&path).unwrap().unwrap();
            fs::write(&path, "newer plugin").unwrap();
            if is_temporary_removed {
                fs::remove_file(&removal.temporary_path).unwrap();
            }
            removal.undo().unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"newer plugin");
            assert_eq!(count_files(&dir), 1);
        }
    }

    #[test]
    fn directory_at_the_path_is_rejected_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("linkerd-cni");
        fs::create_dir(&path).unwrap();
        let error = StagedRemoval::start(&path).unwrap_err();
        assert!(error.to_string().contains("remove the directory"), "{error}");
        assert!(path.is_dir());
    }
}
