//! Opens a path that other programs control: regular files only, never blocking on a FIFO.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens `path` for reading; `None` if it is not a regular file. Does not block, even if `path` is a
/// FIFO.
pub fn open(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then_some((file, metadata)))
}
