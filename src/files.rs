//! Files on the host: read with a bound, replaced whole or not at all.
//!
//! A new content goes to a temporary file in the same directory (a runtime only notices
//! renames that start there), is synced and renamed over the old one, so that no reader
//! sees half a file and a running binary is never truncated.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

mod aside;
mod attributes;
mod exchange;
pub mod regular;
mod remedy;

pub use aside::Aside;
pub use remedy::remedy;

/// Larger configurations are not read. The API server's limit for an object is 1.5 MB.
pub const LIMIT: u64 = 5 << 20;

/// How the names of all our temporary files start. They end in `.tmp`, which no runtime
/// loads.
pub const TEMPORARY: &str = ".linkerd-cni.";

/// Whether a file of this name is such a one.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY) && name.ends_with(".tmp")
}

/// Why something on the host could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {act} {}: {source}{}", path.display(), remedy(act, source))]
    Io {
        act: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} {what}", path.display())]
    Unfit { path: PathBuf, what: &'static str },
    /// Somebody wrote the file since it was looked at. Look again.
    #[error("{} changed in the meantime", path.display())]
    Raced { path: PathBuf },
}

impl Error {
    /// Whether the reason is that there is no such file or directory.
    pub fn is_missing(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Names what failed and where.
fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { act, path, source }
}

/// Who may do what with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Access {
    /// That of an existing file.
    pub fn of(metadata: &Metadata) -> Access {
        Access {
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
        }
    }

    /// `mode`, owned by whoever runs the agent.
    pub fn own(mode: u32) -> Access {
        Access {
            mode,
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
        }
    }
}

/// Opens a regular file for reading.
fn open(path: &Path) -> Result<(File, Metadata), Error> {
    let opened = regular::open(path).map_err(failed("read", path))?;
    opened.ok_or_else(|| Error::Unfit {
        path: path.to_owned(),
        what: "is not a regular file",
    })
}

/// Reads a regular file of at most [`LIMIT`] bytes, and its access.
pub fn read(path: &Path) -> Result<(Vec<u8>, Access), Error> {
    let (file, metadata) = open(path)?;
    let mut bytes = Vec::new();
    file.take(LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(failed("read", path))?;
    if bytes.len() as u64 > LIMIT {
        return Err(Error::Unfit {
            path: path.to_owned(),
            what: "is larger than 5 MiB",
        });
    }
    Ok((bytes, Access::of(&metadata)))
}

/// Whether the regular file at `path`, however large, has `bytes` in it.
pub fn holds(path: &Path, bytes: &[u8]) -> Result<bool, Error> {
    let (mut file, _) = open(path)?;
    let mut buffer = vec![0; 64 << 10];
    let mut kept = 0;
    loop {
        let filled = fill(&mut file, &mut buffer[kept..]).map_err(failed("read", path))?;
        let end = kept + filled;
        if buffer[..end].windows(bytes.len()).any(|part| part == bytes) {
            return Ok(true);
        }
        if filled == 0 {
            return Ok(false);
        }
        // What a later part may complete.
        let from = end.saturating_sub(bytes.len());
        buffer.copy_within(from..end, 0);
        kept = end - from;
    }
}

/// Replaces `path` by a file with `bytes`.
pub fn write(path: &Path, bytes: &[u8], access: Access) -> Result<(), Error> {
    let temporary = Temporary::beside(path)?;
    temporary.fill(access, |file| file.write_all(bytes))?;
    temporary.rename()
}

/// Makes `path` as [`write`] does, with the extended attributes of `like`, if there is
/// nothing of that name.
pub fn create(path: &Path, bytes: &[u8], access: Access, like: &Path) -> Result<(), Error> {
    let temporary = Temporary::beside(path)?;
    temporary.fill(access, |file| file.write_all(bytes))?;
    attributes::copy(like, &temporary.path);
    exchange::add(temporary)
}

/// An error unless `path` still holds `bytes`.
pub fn unchanged(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let raced = || Error::Raced {
        path: path.to_owned(),
    };
    match read(path) {
        Ok((there, _)) if there == bytes => Ok(()),
        Ok(_) => Err(raced()),
        Err(error) if error.is_missing() => Err(raced()),
        Err(error) => Err(error),
    }
}

/// Replaces `path` as [`write`] does, with its extended attributes, if it still holds
/// `before`. What somebody else writes at the same time is not lost.
pub fn rewrite(path: &Path, before: &[u8], bytes: &[u8], access: Access) -> Result<(), Error> {
    let temporary = Temporary::beside(path)?;
    temporary.fill(access, |file| file.write_all(bytes))?;
    attributes::copy(path, &temporary.path);
    unchanged(path, before)?;
    exchange::replace(temporary, before, bytes)
}

/// Replaces `to` by a copy of `from`, with its mode.
pub fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let mut source = File::open(from).map_err(failed("read", from))?;
    let mode = source.metadata().map_err(failed("read", from))?.mode() & 0o7777;
    let temporary = Temporary::beside(to)?;
    temporary.fill(Access::own(mode), |file| {
        io::copy(&mut source, file).map(|_| ())
    })?;
    temporary.rename()
}

/// Replaces `path` by a symbolic link to `target`.
pub fn link(path: &Path, target: &Path) -> Result<(), Error> {
    let temporary = Temporary::beside(path)?;
    symlink(target, &temporary.path).map_err(failed("link", path))?;
    temporary.rename()
}

/// Replaces `path` by a socket for datagrams, for its owner only, which waits at most
/// `patience` for each.
pub fn socket(path: &Path, patience: Duration) -> Result<UnixDatagram, Error> {
    let temporary = Temporary::beside(path)?;
    let socket = UnixDatagram::bind(&temporary.path).map_err(failed("make", path))?;
    fs::set_permissions(&temporary.path, Permissions::from_mode(0o600))
        .and_then(|()| socket.set_read_timeout(Some(patience)))
        .map_err(failed("make", path))?;
    temporary.rename()?;
    Ok(socket)
}

/// Removes `path`; whether there was something to remove.
pub fn remove(path: &Path) -> Result<bool, Error> {
    match fs::remove_file(path) {
        Ok(()) => sync_dir(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("remove", path)(error)),
    }
}

/// The names in `dir`, in the order in which runtimes sort them.
pub fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let entry = entry.map_err(failed("list", dir))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// What is at `path` itself, if anything; a link is not followed.
pub fn look(path: &Path) -> Result<Option<Metadata>, Error> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Where the symbolic link at `path` points.
pub fn target(path: &Path) -> Result<PathBuf, Error> {
    fs::read_link(path).map_err(failed("read", path))
}

/// Whether two files have the same bytes. Neither is held in memory.
pub fn same(one: &Path, other: &Path) -> Result<bool, Error> {
    let mut first = File::open(one).map_err(failed("read", one))?;
    let mut second = File::open(other).map_err(failed("read", other))?;
    let (mut a, mut b) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    loop {
        let n = fill(&mut first, &mut a).map_err(failed("read", one))?;
        let m = fill(&mut second, &mut b).map_err(failed("read", other))?;
        if a[..n] != b[..m] {
            return Ok(false);
        }
        if n == 0 {
            return Ok(true);
        }
    }
}

fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Makes a rename or removal in `path`'s directory last.
fn sync_dir(path: &Path) -> Result<(), Error> {
    let dir = path.parent().unwrap_or(path);
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(failed("sync", dir))
}

/// A new name for a temporary file in the directory of `path`. In a container every agent
/// is process 1, so the time tells two of them apart.
fn temporary_path(path: &Path) -> Result<PathBuf, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let dir = path.parent().ok_or_else(|| Error::Unfit {
        path: path.to_owned(),
        what: "has no directory",
    })?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    let nanos = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |time| time.subsec_nanos());
    Ok(dir.join(format!("{TEMPORARY}{pid}.{nanos}.{count}.tmp")))
}

/// A file that is not there yet under its name. Dropped, it goes.
struct Temporary {
    path: PathBuf,
    /// What errors name, since it is the same at each try.
    target: PathBuf,
}

impl Temporary {
    fn beside(path: &Path) -> Result<Temporary, Error> {
        Ok(Temporary {
            path: temporary_path(path)?,
            target: path.to_owned(),
        })
    }

    fn fill(
        &self,
        access: Access,
        content: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), Error> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.path)
            .map_err(failed("create", &self.target))?;
        content(&mut file)
            .and_then(|()| {
                let now = file.metadata()?;
                if (now.uid(), now.gid()) != (access.uid, access.gid) {
                    fchown(&file, Some(access.uid), Some(access.gid))?;
                }
                file.set_permissions(Permissions::from_mode(access.mode))?;
                file.sync_all()
            })
            .map_err(failed("write", &self.target))
    }

    fn rename(self) -> Result<(), Error> {
        fs::rename(&self.path, &self.target).map_err(failed("replace", &self.target))?;
        sync_dir(&self.target)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is nothing under this name any more.
        let _ = fs::remove_file(&self.path);
    }
}
