//! Temporary files that replace a file atomically.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::UNIX_EPOCH;

use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};
use tracing::warn;

use super::FileAccess;
use super::error::Error;

/// Prefix of the names of all temporary files. The names end in `.tmp`, so that no runtime loads
/// such a file as a network config.
pub const TEMPORARY_PREFIX: &str = ".linkerd-cni.";

/// Returns whether `name` is that of a temporary file.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY_PREFIX) && name.ends_with(".tmp")
}

/// Syncs the directory of `path`, so that a rename or removal there survives a power failure.
pub(super) fn sync_dir(path: &Path) -> Result<(), Error> {
    let dir = path.parent().unwrap_or(path);
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|source| Error::from_io("sync", dir, source))
}

/// Returns an unused path in the directory of `path`. The name has the time in it, because the
/// process ID is 1 in every agent container.
pub(super) fn temporary_path(path: &Path) -> Result<PathBuf, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Some(dir) = path.parent() else {
        return Err(Error::Unusable { path: path.to_owned(), why: "has no directory" });
    };
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    let nanos = UNIX_EPOCH.elapsed().map_or(0, |time| time.subsec_nanos());
    Ok(dir.join(format!("{TEMPORARY_PREFIX}{pid}.{nanos}.{count}.tmp")))
}

/// A temporary file beside the file that it will replace. Dropping it removes the file.
pub struct Temporary {
    pub(super) path: PathBuf,
    /// The file to replace. Errors name the target, because `path` differs at each attempt.
    pub(super) target: PathBuf,
    /// The file whose extended attributes are copied. `None`: the directory's default attributes.
    xattr_source: Option<PathBuf>,
}

impl Temporary {
    /// Chooses the path of a temporary file in the directory of `target`. [`Temporary::fill`]
    /// creates the file.
    pub(super) fn new(target: &Path) -> Result<Temporary, Error> {
        let path = temporary_path(target)?;
        Ok(Temporary { path, target: target.to_owned(), xattr_source: None })
    }

    /// Lets [`Temporary::fill`] copy the extended attributes of the file `original`.
    pub(super) fn with_xattrs_from(mut self, original: &Path) -> Temporary {
        self.xattr_source = Some(original.to_owned());
        self
    }

    /// Creates the file, writes `content` to it, sets `access` and syncs it to disk.
    pub(super) fn fill(
        self,
        access: FileAccess,
        content: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<Temporary, Error> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.path)
            .map_err(|source| Error::from_io("create", &self.target, source))?;
        content(&mut file).map_err(|source| Error::from_io("write", &self.target, source))?;
        self.finish(&file, access)
            .map_err(|source| Error::from_io("write", &self.target, source))?;
        Ok(self)
    }

    /// Sets mode, extended attributes and owner of the file, and syncs the file to disk.
    fn finish(&self, file: &File, access: FileAccess) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(access.mode))?;
        if let Some(original) = &self.xattr_source {
            copy_xattrs(original, &self.path);
        }
        // The owner is set last, because changing the file of another user needs CAP_FOWNER.
        self.set_owner(file, access)?;
        file.sync_all()
    }

    /// Sets the owner of the file. Without CAP_CHOWN this process stays the owner, because a
    /// missing network config would be worse than one with another owner.
    fn set_owner(&self, file: &File, access: FileAccess) -> io::Result<()> {
        let current = file.metadata()?;
        let FileAccess { uid, gid, .. } = access;
        if current.uid() == uid && current.gid() == gid {
            return Ok(());
        }
        match fchown(file, Some(uid), Some(gid)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let path = self.target.display();
                warn!(
                    "{path} gets the owner {}:{} instead of {uid}:{gid}: {error}; \
                     to keep owners, add the capability CHOWN to the container",
                    current.uid(),
                    current.gid()
                );
                Ok(())
            }
            result => result,
        }
    }

    /// Returns the path of the temporary file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the file over the one that it replaces, and syncs the directory.
    pub fn rename(self) -> Result<(), Error> {
        fs::rename(&self.path, &self.target)
            .map_err(|source| Error::from_io("replace", &self.target, source))?;
        sync_dir(&self.target)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename, no file has this name, so the error of the removal is ignored.
        let _ = fs::remove_file(&self.path);
    }
}

/// Longest list of names of extended attributes to copy, and longest value, in bytes.
const XATTR_LIMIT: usize = 16 << 10;

/// Attributes with a hash or signature of the file's content (IMA, EVM). They are not copied, as
/// they would be wrong for other content.
const CONTENT_XATTRS: [&[u8]; 2] = [b"security.ima", b"security.evm"];

/// Copies extended attributes, such as an SELinux label or an ACL. A failure (unsupported, or not
/// permitted) is ignored, so that `to` keeps the default of its directory.
fn copy_xattrs(from: &Path, to: &Path) {
    let mut list = vec![0; XATTR_LIMIT];
    let Ok(length) = llistxattr(from, &mut list) else {
        return;
    };
    // The list has a NUL after each name.
    let list = list.get(..length).unwrap_or_default();
    for name in list.split(|byte| *byte == 0) {
        if name.is_empty() || CONTENT_XATTRS.contains(&name) {
            continue;
        }
        let mut value = vec![0; XATTR_LIMIT];
        let Ok(length) = lgetxattr(from, name, &mut value) else {
            continue;
        };
        let value = value.get(..length).unwrap_or_default();
        let _ = lsetxattr(to, name, value, XattrFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_xattrs_copies_extended_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        let to = dir.path().join("to");
        fs::write(&from, "x").unwrap();
        fs::write(&to, "x").unwrap();
        // Both kinds of attributes are tried, because some file systems have only the `trusted`
        // ones.
        let name = ["user.owner", "trusted.owner"]
            .into_iter()
            .find(|name| lsetxattr(&from, *name, b"cni", XattrFlags::empty()).is_ok());
        assert!(name.is_some() || std::env::var_os("CI").is_none(), "no extended attributes");
        copy_xattrs(&from, &to);
        let mut value = [0; 8];
        let copied = name.map(|name| lgetxattr(&to, name, &mut value).unwrap());
        assert_eq!(copied.map(|length| &value[..length]), name.map(|_| &b"cni"[..]));
    }
}
