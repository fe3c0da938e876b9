//! Exchanges or creates a file that another program may write at the same time.
//!
//! A rename would discard what the other program wrote after the agent's read. An exchange keeps
//! the replaced file under the temporary name. If its content is not what the agent read, it is put
//! back.

use std::fs;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::error::Error;
use super::read;
use super::temporary::{Temporary, sync_dir};

/// Largest number of exchanges to put back the content of another program. One exchange is enough
/// unless that program writes again in between.
const MAX_EXCHANGES: usize = 8;

/// Replaces the target of `new`, which must hold `before`, with `new`, which holds `content`.
/// Fails with [`Error::Raced`] if the target is missing or did not hold `before`.
pub(super) fn replace(new: Temporary, before: &[u8], content: &[u8]) -> Result<(), Error> {
    match exchange_files(&new.path, &new.target) {
        Ok(()) => {}
        // Another program has removed the file, so it must not be created again.
        Err(Errno::NOENT) => return Err(raced_error(&new.target)),
        // This file system has no exchange, so the file is replaced by a plain rename.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => return new.rename(),
        Err(errno) => return Err(Error::from_io("replace", &new.target, errno.into())),
    }
    let replaced = read_bytes(&new.path);
    // If the target was a symbolic link, there is no content of its own to compare, so the exchange
    // counts as a success.
    if is_link(&new.path) || replaced.as_deref() == Some(before) {
        return sync_dir(&new.target);
    }
    put_back(&new, replaced, content)?;
    Err(raced_error(&new.target))
}

/// Puts back `replaced`, the content of another program that the exchange in [`replace`] took from
/// the target. That exchange left `content` in the target. The exchange is repeated until it takes
/// out exactly what the previous exchange left, because this shows that nobody wrote in between.
fn put_back(new: &Temporary, mut replaced: Option<Vec<u8>>, content: &[u8]) -> Result<(), Error> {
    let mut expected = content.to_vec();
    for _ in 0..MAX_EXCHANGES {
        let restored = replaced.unwrap_or_default();
        exchange_files(&new.path, &new.target)
            .map_err(|errno| Error::from_io("restore", &new.target, errno.into()))?;
        replaced = read_bytes(&new.path);
        if replaced.as_ref() == Some(&expected) {
            break;
        }
        expected = restored;
    }
    Ok(())
}

/// Renames `from` to `to`. Fails with [`Error::Raced`] if `to` exists.
pub(super) fn rename_without_replacing(from: &Path, to: &Path) -> Result<(), Error> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(raced_error(to)),
        // This file system cannot check for `to` in the rename, so it is checked before.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if fs::symlink_metadata(to).is_ok() {
                return Err(raced_error(to));
            }
            fs::rename(from, to).map_err(|source| Error::from_io("create", to, source))
        }
        Err(errno) => Err(Error::from_io("create", to, errno.into())),
    }
}

fn read_bytes(path: &Path) -> Option<Vec<u8>> {
    let (bytes, _) = read(path).ok()?;
    Some(bytes)
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
}

fn raced_error(path: &Path) -> Error {
    Error::Raced { path: path.to_owned() }
}

fn exchange_files(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::files::{FileAccess, create};

    /// Replaces `path` with `new`, as if the agent had read `before` from it.
    fn replace_with_new(path: &Path) -> Result<(), Error> {
        let new = Temporary::new(path).unwrap();
        let new = new.fill(FileAccess::own(0o600), |file| file.write_all(b"new")).unwrap();
        replace(new, b"before", b"new")
    }

    #[test]
    fn content_that_another_program_wrote_in_between_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-x.conflist");
        fs::write(&path, "before").unwrap();
        replace_with_new(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::write(&path, "foreign").unwrap();
        let raced = replace_with_new(&path).unwrap_err();
        assert!(matches!(raced, Error::Raced { .. }), "{raced}");
        assert_eq!(fs::read(&path).unwrap(), b"foreign");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn create_does_not_replace_an_existing_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-x.conf");
        let access = FileAccess::own(0o600);
        create(&path, b"foreign", access, &path).unwrap();
        let raced = create(&path, b"new", access, &path).unwrap_err();
        assert!(matches!(raced, Error::Raced { .. }), "{raced}");
        assert_eq!(fs::read(&path).unwrap(), b"foreign");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
