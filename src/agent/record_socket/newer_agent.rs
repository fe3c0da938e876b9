//! Finds out from the record socket whether a newer agent runs on this node.
//!
//! Each agent binds the socket when it starts, and so replaces the file of the agent before. So the
//! file at the path is the socket of the agent that started last. Every other agent sees that the
//! file is not its own and that another process reads it, and knows that a newer agent runs. This
//! needs no clock, and no file that stays when a process ends. An agent without a run dir has its
//! socket in the CNI net dir. If such an agent runs, this agent replaces that socket, too.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CHECK_INTERVAL;
use crate::files::{self, BoundSocket};
use crate::node::NodeSettings;
use crate::record::SOCKET_NAME;

/// A socket that this agent has bound to a path.
pub struct OwnedSocket {
    pub path: PathBuf,
    pub socket: Arc<UnixDatagram>,
    /// Device and inode of the socket's file. If the file at the path has others, it was replaced.
    pub file: (u64, u64),
}

impl OwnedSocket {
    pub fn bind(path: &Path) -> Result<OwnedSocket, files::Error> {
        let BoundSocket { socket, file } = files::bind_socket(path, CHECK_INTERVAL)?;
        let file = (file.dev(), file.ino());
        Ok(OwnedSocket { path: path.to_owned(), socket: Arc::new(socket), file })
    }

    pub fn is_in_place(&self) -> bool {
        Some(self.file) == device_and_inode(&self.path)
    }

    /// Returns whether the path leads to a socket that another process reads. Then a newer agent
    /// runs.
    pub fn is_replaced(&self) -> bool {
        !self.is_in_place() && has_reader(&self.path)
    }
}

/// Returns where an agent without a run dir has its socket. `None` if this agent has no run dir
/// either.
pub fn socket_path_in_net_dir(node: &NodeSettings) -> Option<PathBuf> {
    if node.run_dir.is_some() { Some(node.net_dir.join(SOCKET_NAME)) } else { None }
}

/// Returns device and inode of the file at the path. Does not follow a symbolic link.
pub fn device_and_inode(path: &Path) -> Option<(u64, u64)> {
    let file = fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Returns whether a process has the socket at the path open.
pub fn has_reader(path: &Path) -> bool {
    UnixDatagram::unbound().is_ok_and(|socket| socket.connect(path).is_ok())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn of_two_agents_that_start_at_once_only_one_owns_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SOCKET_NAME);
        for round in 0..100 {
            let barrier = Barrier::new(2);
            let bind = || {
                barrier.wait();
                OwnedSocket::bind(&path).unwrap()
            };
            let (one, other) = thread::scope(|scope| {
                let other = scope.spawn(bind);
                (bind(), other.join().unwrap())
            });
            let in_place = [one.is_in_place(), other.is_in_place()];
            assert_ne!(in_place[0], in_place[1], "{round}");
            assert_eq!([one.is_replaced(), other.is_replaced()], [!in_place[0], !in_place[1]]);
        }
    }
}
