//! Permission bits and owner of a file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Permission bits and owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Access {
    /// Returns the access of an existing file.
    pub fn of(metadata: &Metadata) -> Access {
        Access { mode: metadata.mode() & 0o7777, uid: metadata.uid(), gid: metadata.gid() }
    }

    /// Returns the access of a file with the permission bits `mode` and the user and group of this
    /// process.
    pub fn own(mode: u32) -> Access {
        Access { mode, uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() }
    }
}
