//! Notices that a symbolic link on the way to a directory of the node was changed since the start,
//! so that the path leads to another directory.

use std::path::{Path, PathBuf};

use super::below;

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
            in_container: below(root, on_node),
        }
    }

    /// Returns that the node's path leads to another directory than at the start, and what to do.
    /// `None` if the path still leads to the same directory.
    pub fn moved(&self) -> Option<String> {
        let now = below(&self.root, &self.on_node);
        if now == self.in_container {
            return None;
        }
        Some(format!(
            "{} leads to another directory of the node than at the start: to {} instead of {}; the \
             kubelet restarts the container, otherwise stop this container on the node",
            self.on_node.display(),
            now.display(),
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
    fn a_directory_has_moved_once_a_link_on_the_way_leads_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("data/one/bin")).unwrap();
        symlink("/data/one", root.join("data/current")).unwrap();
        let dir = LinkedDir::at_start(root, Path::new("/data/current/bin"));
        assert_eq!(dir.moved(), None);
        fs::remove_file(root.join("data/current")).unwrap();
        symlink("/data/two", root.join("data/current")).unwrap();
        assert!(dir.moved().unwrap().starts_with("/data/current/bin leads to another directory"));
    }
}
