//! Exchanges or creates a file that another program may write at the same time.
//!
//! A rename would discard what the other program wrote after the agent's read. An exchange keeps
//! the replaced file under the temporary name. If its content is not what the agent read, it is put
//! back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::error::{Error, failed};
use super::read;
use super::temporary::{Temporary, sync_dir};

/// Maximum number of exchanges to put foreign content back. One is enough unless another program writes
/// again.
const TRIES: usize = 8;

/// Replaces the target of `new`, which must hold `before`, with `new`, which holds `content`.
/// Fails with [`Error::Raced`] if the target is missing or did not hold `before`.
pub(super) fn replace(new: Temporary, before: &[u8], content: &[u8]) -> Result<(), Error> {
    match swap(&new.path, &new.target) {
        Ok(()) => {}
        // Another program removed the file. Do not create it again.
        Err(Errno::NOENT) => return Err(raced(new.target.clone())),
        // This file system does not support the rename flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => return new.rename(),
        Err(errno) => return Err(failed("replace", &new.target)(errno.into())),
    }
    // A symbolic link has no content of its own to compare.
    let read_bytes = |path: &Path| read(path).map(|(bytes, _)| bytes);
    let is_link = fs::symlink_metadata(&new.path).is_ok_and(|metadata| metadata.is_symlink());
    let mut replaced = read_bytes(&new.path);
    if is_link || replaced.as_ref().is_ok_and(|bytes| bytes == before) {
        return sync_dir(&new.target);
    }
    // Put back what another program wrote, until an exchange takes out exactly what the previous
    // exchange put in: then nobody wrote in between.
    let mut put_in = content.to_vec();
    for _ in 0..TRIES {
        let put_back = replaced.unwrap_or_default();
        swap(&new.path, &new.target)
            .map_err(|errno| failed("restore", &new.target)(io::Error::from(errno)))?;
        replaced = read_bytes(&new.path);
        if replaced.as_ref().is_ok_and(|bytes| *bytes == put_in) {
            break;
        }
        put_in = put_back;
    }
    Err(raced(new.target.clone()))
}

/// Fails with [`Error::Raced`] if `to` exists.
pub(super) fn rename_new(from: &Path, to: &Path) -> Result<(), Error> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(raced(to.to_owned())),
        // This file system does not support the rename flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match fs::symlink_metadata(to) {
            Ok(_) => Err(raced(to.to_owned())),
            Err(_) => fs::rename(from, to).map_err(failed("create", to)),
        },
        Err(errno) => Err(failed("create", to)(errno.into())),
    }
}

fn raced(path: PathBuf) -> Error {
    Error::Raced { path }
}

fn swap(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FileAccess;

    #[test]
    fn content_that_another_program_wrote_in_between_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-x.conflist");
        let put = |now: &str| {
            fs::write(&path, now).unwrap();
            let new = Temporary::beside(&path).unwrap();
            let write = |file: &mut fs::File| io::Write::write_all(file, b"new");
            let new = new.fill(FileAccess::own(0o600), None, write).unwrap();
            replace(new, b"before", b"new")
        };
        put("before").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let raced = put("foreign").unwrap_err();
        assert!(matches!(raced, Error::Raced { .. }), "{raced}");
        assert_eq!(fs::read(&path).unwrap(), b"foreign");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_existing_file_is_not_replaced_by_create() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-x.conf");
        let make = |text: &[u8]| super::super::create(&path, text, FileAccess::own(0o600), &path);
        make(b"foreign").unwrap();
        let raced = make(b"new").unwrap_err();
        assert!(matches!(raced, Error::Raced { .. }), "{raced}");
        assert_eq!(fs::read(&path).unwrap(), b"foreign");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
