//! Reads, replaces, exchanges and removes files on the host. Reads are bounded, and replacements
//! are atomic. Also notices mounted directories that are no longer the node's.
//!
//! New content is written to a temporary file in the same directory, synced and renamed over the
//! old file. So readers never see half a file, and a running binary is never truncated. The
//! temporary file is in the same directory because runtimes notice only renames within it.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::OFlag;
use nix::unistd::{getegid, geteuid};
use serde::{Deserialize, Serialize};

mod error;
mod exchange;
mod linked_dir;
mod mounted_dir;
mod node_path;
mod staged_removal;
mod temporary;

pub use error::Error;
pub use linked_dir::LinkedDir;
pub use mounted_dir::MountedDir;
pub use node_path::path_in_container;
pub use staged_removal::{StagedRemoval, remove_unchanged};
pub use temporary::{TEMPORARY_PREFIX, Temporary, is_temporary};

use temporary::sync_dir;

/// Largest file that [`read`] reads, in bytes. The limit keeps a huge file out of memory. The files
/// that the agent needs are far smaller.
pub const LIMIT: u64 = 5 << 20;
/// Size of the parts in which [`have_equal_content`] reads files of any size, in bytes.
const PART: u64 = 16 << 10;

/// Permissions and owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAccess {
    /// Permission bits, including setuid, setgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl FileAccess {
    /// Returns the access of a file with this metadata.
    pub fn from_metadata(metadata: &Metadata) -> FileAccess {
        FileAccess { mode: metadata.mode() & 0o7777, uid: metadata.uid(), gid: metadata.gid() }
    }

    /// Returns the access of a file that this process creates with the permission bits `mode`.
    pub fn own(mode: u32) -> FileAccess {
        FileAccess { mode, uid: geteuid().as_raw(), gid: getegid().as_raw() }
    }
}

/// Reads a regular file of at most [`LIMIT`] bytes, with its access. Fails for other files. Never
/// blocks, even if `path` is a FIFO.
pub fn read(path: &Path) -> Result<(Vec<u8>, FileAccess), Error> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
        .map_err(|source| Error::from_io("read", path, source))?;
    let metadata = file.metadata().map_err(|source| Error::from_io("read", path, source))?;
    if !metadata.is_file() {
        return Err(Error::Unusable { path: path.to_owned(), why: "is not a regular file" });
    }
    let mut bytes = Vec::new();
    file.take(LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| Error::from_io("read", path, source))?;
    if bytes.len() as u64 > LIMIT {
        return Err(Error::TooLarge { path: path.to_owned() });
    }
    Ok((bytes, FileAccess::from_metadata(&metadata)))
}

/// Creates a file, or replaces the file if it exists.
pub fn write(path: &Path, bytes: &[u8], access: FileAccess) -> Result<(), Error> {
    Temporary::new(path)?.fill(access, |file| file.write_all(bytes))?.rename()
}

/// Creates a file with the extended attributes of the file `xattr_source`. Fails with
/// [`Error::Raced`] if `path` exists.
pub fn create(
    path: &Path,
    bytes: &[u8],
    access: FileAccess,
    xattr_source: &Path,
) -> Result<(), Error> {
    let new = Temporary::new(path)?.with_xattrs_from(xattr_source);
    let new = new.fill(access, |file| file.write_all(bytes))?;
    exchange::rename_without_replacing(&new.path, path)?;
    sync_dir(path)
}

/// Checks that `path` still holds `bytes`, which were read from it before. Fails with
/// [`Error::Raced`] if another program has written or removed the file since.
pub fn check_unchanged(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    match read(path) {
        Ok((current, _)) if current == bytes => Ok(()),
        Ok(_) => Err(Error::Raced { path: path.to_owned() }),
        Err(error) if error.is_missing() => Err(Error::Raced { path: path.to_owned() }),
        Err(error) => Err(error),
    }
}

/// Replaces `path`, which must still hold `before`, and keeps its extended attributes. Content that
/// another program writes at the same time is not lost.
/// Fails with [`Error::Raced`] if `path` does not hold `before`.
pub fn replace(path: &Path, before: &[u8], bytes: &[u8], access: FileAccess) -> Result<(), Error> {
    let new = Temporary::new(path)?.with_xattrs_from(path);
    let new = new.fill(access, |file| file.write_all(bytes))?;
    check_unchanged(path, before)?;
    exchange::replace(new, before, bytes)
}

/// Copies `from`, with its permission bits, to a temporary file beside `to`.
/// [`Temporary::rename`] replaces `to` with the copy.
pub fn stage_copy(from: &Path, to: &Path) -> Result<Temporary, Error> {
    let mut source = File::open(from).map_err(|source| Error::from_io("read", from, source))?;
    let mode =
        source.metadata().map_err(|source| Error::from_io("read", from, source))?.mode() & 0o7777;
    Temporary::new(to)?.fill(FileAccess::own(mode), |file| {
        io::copy(&mut source, file)?;
        Ok(())
    })
}

/// Replaces `path` with a symbolic link to `target`.
pub fn write_link(path: &Path, target: &Path) -> Result<(), Error> {
    let temporary = Temporary::new(path)?;
    symlink(target, &temporary.path).map_err(|source| Error::from_io("link", path, source))?;
    temporary.rename()
}

/// A datagram socket, with the metadata of its file.
#[derive(Debug)]
pub struct BoundSocket {
    pub socket: UnixDatagram,
    pub file: Metadata,
}

/// Replaces `path` with a datagram socket that only its owner can access. Each receive fails after
/// `receive_timeout`.
pub fn bind_socket(path: &Path, receive_timeout: Duration) -> Result<BoundSocket, Error> {
    let temporary = Temporary::new(path)?;
    let socket = UnixDatagram::bind(&temporary.path)
        .map_err(|source| Error::from_io("bind", path, source))?;
    fs::set_permissions(&temporary.path, Permissions::from_mode(0o600))
        .map_err(|source| Error::from_io("bind", path, source))?;
    socket
        .set_read_timeout(Some(receive_timeout))
        .map_err(|source| Error::from_io("bind", path, source))?;
    // Read before the rename: afterwards the path may lead to the socket of another process.
    let file = fs::symlink_metadata(&temporary.path)
        .map_err(|source| Error::from_io("bind", path, source))?;
    temporary.rename()?;
    Ok(BoundSocket { socket, file })
}

/// Renames a file. A file at `to` is replaced.
pub fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to).map_err(|source| Error::from_io("rename", from, source))?;
    sync_dir(to)
}

/// Removes a file. Returns `false` if it does not exist.
pub fn remove(path: &Path) -> Result<bool, Error> {
    match fs::remove_file(path) {
        Ok(()) => {
            sync_dir(path)?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::from_io("remove", path, error)),
    }
}

/// Returns the names in `dir`, sorted as runtimes sort the names of network configs: in byte order.
pub fn file_names(dir: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(|source| Error::from_io("list", dir, source))? {
        let entry = entry.map_err(|source| Error::from_io("list", dir, source))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Returns the metadata of `path`, `None` if it does not exist. Does not follow a symbolic link.
pub fn metadata(path: &Path) -> Result<Option<Metadata>, Error> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::from_io("read", path, error)),
    }
}

/// Returns when the content, access or name of the file at `path` changed last. `None` if the file
/// does not exist or its metadata cannot be read.
pub fn changed_at(path: &Path) -> Option<SystemTime> {
    let Ok(Some(metadata)) = metadata(path) else { return None };
    let seconds = u64::try_from(metadata.ctime()).ok()?;
    let nanoseconds = u32::try_from(metadata.ctime_nsec()).ok()?;
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}

/// Returns the target of the symbolic link `path`.
pub fn link_target(path: &Path) -> Result<PathBuf, Error> {
    fs::read_link(path).map_err(|source| Error::from_io("read", path, source))
}

/// Returns whether two files have equal content, without holding either in memory.
pub fn have_equal_content(first_path: &Path, second_path: &Path) -> Result<bool, Error> {
    let mut first_file =
        File::open(first_path).map_err(|source| Error::from_io("read", first_path, source))?;
    let mut second_file =
        File::open(second_path).map_err(|source| Error::from_io("read", second_path, source))?;
    loop {
        let first_part = read_part(&mut first_file, first_path)?;
        let second_part = read_part(&mut second_file, second_path)?;
        if first_part != second_part {
            return Ok(false);
        }
        if first_part.is_empty() {
            return Ok(true);
        }
    }
}

/// Reads the next [`PART`] bytes of `file`, or fewer at its end.
fn read_part(file: &mut File, path: &Path) -> Result<Vec<u8>, Error> {
    let mut part = Vec::new();
    file.take(PART)
        .read_to_end(&mut part)
        .map_err(|source| Error::from_io("read", path, source))?;
    Ok(part)
}
