//! Notices that a symbolic link on the way to a directory of the node was changed since the start,
//! so that the path leads to another directory.

use std::path::{Path, PathBuf};

use super::path_in_container;

/// A directory of the node, and where it was in this container at the start.
#[derive(Debug)]
pub struct LinkedDir {
    root: PathBuf,
    on_node: PathBuf,
    /// Path of the directory in this container at the start.
    in_container: PathBuf,
}

impl LinkedDir {
    /// Returns the node's directory `on_node`, which is mounted below `root`.
    pub fn at_start(root: &Path, on_node: &Path) -> LinkedDir {
        LinkedDir {
            root: root.to_owned(),
            on_node: on_node.to_owned(),
            in_container: path_in_container(root, on_node),
        }
    }

    /// Describes the change, and what to do, if the node's path leads to another directory than at
    /// the start. `None` if the path still leads to the same directory.
    pub fn moved_reason(&self) -> Option<String> {
        let current = path_in_container(&self.root, &self.on_node);
        if current == self.in_container {
            return None;
        }
        Some(format!(
            "{} leads to another directory of the node than at the start: to {} instead of {}; the \
             kubelet restarts the container, otherwise stop this container on the node",
            self.on_node.display(),
            current.display(),
            self.in_container.display(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directory_has_moved_if_a_link_in_its_path_changes() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("data/one/bin")).unwrap();
        symlink("/data/one", root.join("data/current")).unwrap();
        let dir = LinkedDir::at_start(root, Path::new("/data/current/bin"));
        assert_eq!(dir.moved_reason(), None);
        fs::remove_file(root.join("data/current")).unwrap();
        symlink("/data/two", root.join("data/current")).unwrap();
        assert!(
            dir.moved_reason().unwrap().starts_with("/data/current/bin leads to another directory")
        );
    }
}
