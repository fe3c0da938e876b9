//! Exchanges or creates a file that another program may write at the same time.
//!
//! A rename would discard what the other program wrote after the agent's read. An exchange keeps
//! the replaced file under the temporary name. If its content is not what the agent read, it is put
//! back.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::error::{Error, failed};
use super::read;
use super::temporary::{Temporary, sync_dir};

/// Largest number of exchanges to put back the content of another program. One exchange is enough
/// unless that program writes again in between.
const MAX_EXCHANGES: usize = 8;

/// Replaces the target of `new`, which must hold `before`, with `new`, which holds `content`.
/// Fails with [`Error::Raced`] if the target is missing or did not hold `before`.
pub(super) fn replace(new: Temporary, before: &[u8], content: &[u8]) -> Result<(), Error> {
    match swap(&new.path, &new.target) {
        Ok(()) => {}
        // Another program has removed the file, so it must not be created again.
        Err(Errno::NOENT) => return Err(raced(&new.target)),
        // This file system has no exchange, so the file is replaced by a plain rename.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => return new.rename(),
        Err(errno) => return Err(failed("replace", &new.target)(errno.into())),
    }
    let replaced = read_bytes(&new.path);
    // If the target was a symbolic link, there is no content of its own to compare, so the exchange
    // counts as a success.
    if is_link(&new.path) || replaced.as_deref() == Some(before) {
        return sync_dir(&new.target);
    }
    put_back(&new, replaced, content)?;
    Err(raced(&new.target))
}

/// Puts back the content that another program wrote. The exchange in [`replace`] has taken
/// `taken_out` from the target and put `content` there. The exchange is repeated until it takes out
/// exactly what the previous exchange put in, because this shows that nobody wrote in between.
fn put_back(new: &Temporary, mut taken_out: Option<Vec<u8>>, content: &[u8]) -> Result<(), Error> {
    let mut put_in = content.to_vec();
    for _ in 0..MAX_EXCHANGES {
        let foreign = taken_out.unwrap_or_default();
        swap(&new.path, &new.target)
            .map_err(|errno| failed("restore", &new.target)(io::Error::from(errno)))?;
        taken_out = read_bytes(&new.path);
        if taken_out.as_ref() == Some(&put_in) {
            break;
        }
        put_in = foreign;
    }
    Ok(())
}

/// Renames `from` to `to`. Fails with [`Error::Raced`] if `to` exists.
pub(super) fn rename_new(from: &Path, to: &Path) -> Result<(), Error> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(raced(to)),
        // This file system cannot check for `to` in the rename, so it is checked before.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if fs::symlink_metadata(to).is_ok() {
                return Err(raced(to));
            }
            fs::rename(from, to).map_err(failed("create", to))
        }
        Err(errno) => Err(failed("create", to)(errno.into())),
    }
}

fn read_bytes(path: &Path) -> Option<Vec<u8>> {
    let (bytes, _) = read(path).ok()?;
    Some(bytes)
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
}

fn raced(path: &Path) -> Error {
    Error::Raced { path: path.to_owned() }
}

fn swap(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::files::{FileAccess, create};

    /// Replaces `path` with `new`, as if the agent had read `before` from it.
    fn replace_with_new(path: &Path) -> Result<(), Error> {
        let new = Temporary::beside(path).unwrap();
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
