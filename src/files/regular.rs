//! Regular files of others' naming, in whose place there may be anything.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens `path` for reading; `None` if it is no regular file. A pipe there does not make
/// the caller wait.
pub fn open(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then_some((file, metadata)))
}
