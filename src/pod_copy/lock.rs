//! The lock by which a live agent shows that it keeps the node's copy of its pods.
//!
//! It is a lock of the open file, which several agents can hold at once for reading. The plugin asks
//! the kernel whether a lock for writing would conflict, and takes none itself.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, c_int, c_short};

use super::{LOCK, dir};
use crate::files;

/// Held by an agent while it keeps the copy. Released by drop, and by the end of the process.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    pub fn take(run_dir: &Path) -> Result<Lock, files::Error> {
        let path = dir(run_dir).join(LOCK);
        let failed = |source| files::Error::Io { act: "lock", path: path.clone(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_RDLCK)))
            .map_err(|errno| failed(errno.into()))?;
        Ok(Lock(file))
    }

    /// Whether plugins find the lock: its file was not removed or replaced.
    pub fn is_in_place(&self, run_dir: &Path) -> bool {
        let identity = |file: io::Result<fs::Metadata>| file.map(|file| (file.dev(), file.ino()));
        let there = identity(fs::symlink_metadata(dir(run_dir).join(LOCK)));
        matches!((there, identity(self.0.metadata())), (Ok(there), Ok(own)) if there == own)
    }
}

impl Drop for Lock {
    /// Releases the lock itself: a child that is just being started has the file open, too.
    fn drop(&mut self) {
        let _ = fcntl(&self.0, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_UNLCK)));
    }
}

/// Whether a live agent keeps the copy: a missing file is that of a pod which it has not seen yet.
pub fn is_kept(run_dir: &Path) -> bool {
    let Ok(file) = File::open(dir(run_dir).join(LOCK)) else { return false };
    let mut lock = whole_file(libc::F_WRLCK);
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)).is_ok()
        && c_int::from(lock.l_type) == libc::F_RDLCK
}

/// Describes a lock of this type on the whole file. `l_pid` must be 0 for a lock of an open file.
fn whole_file(kind: c_int) -> libc::flock {
    libc::flock {
        l_type: kind as c_short,
        l_whence: libc::SEEK_SET as c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}
