//! Replacing a file that somebody else may write at the same moment.
//!
//! A rename would throw away whatever came between our read and it. An exchange keeps
//! what was there, so that it can be looked at, and put back if it is not what we read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::{Error, Temporary, failed, read, sync_dir};

/// How often what came out is put back; each time takes another writer in between.
const TRIES: usize = 8;

/// Puts `new`, which holds `ours`, in the place of its target, which should hold `before`.
pub fn replace(new: Temporary, before: &[u8], ours: &[u8]) -> Result<(), Error> {
    match swap(&new.path, &new.target) {
        Ok(()) => {}
        // Whoever removed it did not mean it to come back.
        Err(Errno::NOENT) => return Err(raced(new.target.clone())),
        // Not on every file system.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => return new.rename(),
        Err(errno) => return Err(failed("replace", &new.target)(errno.into())),
    }
    // A link was replaced as a whole; it never held anything itself.
    let out = |path: &Path| read(path).map(|(bytes, _)| bytes);
    let link = fs::symlink_metadata(&new.path).is_ok_and(|there| there.is_symlink());
    let mut there = out(&new.path);
    if link || there.as_ref().is_ok_and(|bytes| bytes == before) {
        return sync_dir(&new.target);
    }
    // Somebody wrote in between. Put that back until what comes out is what we put in.
    let mut put_in = ours.to_vec();
    for _ in 0..TRIES {
        let put_back = there.unwrap_or_default();
        swap(&new.path, &new.target)
            .map_err(|errno| failed("put back", &new.target)(io::Error::from(errno)))?;
        there = out(&new.path);
        if there.as_ref().is_ok_and(|bytes| *bytes == put_in) {
            break;
        }
        put_in = put_back;
    }
    Err(raced(new.target.clone()))
}

/// Gives `new` the name of its target, if nothing has it.
pub fn add(new: Temporary) -> Result<(), Error> {
    match renameat_with(CWD, &new.path, CWD, &new.target, RenameFlags::NOREPLACE) {
        Ok(()) => sync_dir(&new.target),
        Err(Errno::EXIST) => Err(raced(new.target.clone())),
        // Not on every file system.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            match fs::symlink_metadata(&new.target) {
                Ok(_) => Err(raced(new.target.clone())),
                Err(_) => new.rename(),
            }
        }
        Err(errno) => Err(failed("create", &new.target)(errno.into())),
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
    use crate::files::Access;

    #[test]
    fn what_came_in_between_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-x.conflist");
        let put = |now: &str| {
            fs::write(&path, now).unwrap();
            let new = Temporary::beside(&path).unwrap();
            let ours = |file: &mut fs::File| io::Write::write_all(file, b"ours");
            new.fill(Access::own(0o600), ours).unwrap();
            replace(new, b"before", b"ours")
        };
        put("before").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        let raced = put("theirs").unwrap_err();
        assert!(matches!(raced, Error::Raced { .. }), "{raced}");
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_somebody_made_first_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-x.conf");
        let make = |text: &[u8]| super::super::create(&path, text, Access::own(0o600), &path);
        make(b"theirs").unwrap();
        let raced = make(b"ours").unwrap_err();
        assert!(matches!(raced, Error::Raced { .. }), "{raced}");
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
