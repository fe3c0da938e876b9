//! Shows whether a newer agent runs on this node, by the record socket.
//!
//! Each agent binds the socket when it starts, so the agent that started last owns it. Each other
//! agent finds another process's socket at the path, which shows that a newer agent runs. This
//! needs no clock and no file that outlives a process. The socket of an agent without a run dir is
//! in the CNI net dir. If such an agent runs, this agent takes over its socket, too.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CHECK_INTERVAL;
use crate::files;
use crate::node::NodeSettings;
use crate::record::SOCKET_NAME;

/// A socket of this agent at a path.
pub struct OwnedSocket {
    pub path: PathBuf,
    pub socket: Arc<UnixDatagram>,
    /// Device and inode of the socket's file, which show whether another agent replaced it.
    pub file: Option<(u64, u64)>,
}

impl OwnedSocket {
    pub fn bind(path: &Path) -> Result<OwnedSocket, files::Error> {
        let socket = Arc::new(files::bind_socket(path, CHECK_INTERVAL)?);
        Ok(OwnedSocket { path: path.to_owned(), socket, file: device_and_inode(path) })
    }

    pub fn is_in_place(&self) -> bool {
        self.file == device_and_inode(&self.path)
    }

    /// Whether the path leads to a socket that another process reads. Then a newer agent runs.
    pub fn is_replaced(&self) -> bool {
        self.file.is_some() && !self.is_in_place() && is_read(&self.path)
    }
}

/// Returns where an agent without a run dir has its socket. `None`: this agent is one.
pub fn net_dir_path(node: &NodeSettings) -> Option<PathBuf> {
    if node.run_dir.is_some() { Some(node.net_dir.join(SOCKET_NAME)) } else { None }
}

/// Returns device and inode of the file at the path, not of the target of a symlink.
pub fn device_and_inode(path: &Path) -> Option<(u64, u64)> {
    let file = fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Whether a process has the socket open.
pub fn is_read(path: &Path) -> bool {
    UnixDatagram::unbound().is_ok_and(|socket| socket.connect(path).is_ok())
}
