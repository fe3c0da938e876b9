//! Resolves paths of the node below the directory in which they are mounted in this container.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Largest number of symbolic links that are followed for one path. The kernel has the same limit
/// (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// Returns where the node's `path` is in this container, in which the node's directories are
/// mounted below `root`. An absolute link on the way is resolved here, because the kernel would
/// follow it from the container's `/` instead of from `root`.
///
/// A path without absolute links, or one that cannot be resolved, is only joined to `root`. The
/// kernel then follows its links at each access, so later changes of the links have an effect.
pub fn path_in_container(root: &Path, path: &Path) -> PathBuf {
    resolve(root, path).unwrap_or_else(|| join(root, path))
}

/// Returns the path with all links resolved. `None` if no absolute link is on the way, or if there
/// are too many links.
fn resolve(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut remaining = split_names(path);
    let mut resolved = PathBuf::new();
    let mut link_count = 0;
    let mut has_absolute_link = false;
    while let Some(name) = remaining.pop_front() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        let Ok(target) = fs::read_link(root.join(&resolved).join(&name)) else {
            resolved.push(name);
            continue;
        };
        link_count += 1;
        if link_count > MAX_LINKS {
            return None;
        }
        if target.is_absolute() {
            has_absolute_link = true;
            resolved = PathBuf::new();
        }
        // The names of the link's target come before the names that are left of the path.
        let mut target_names = split_names(&target);
        target_names.append(&mut remaining);
        remaining = target_names;
    }
    if has_absolute_link { Some(root.join(resolved)) } else { None }
}

/// Returns the names in a path, including `..`.
fn split_names(path: &Path) -> VecDeque<OsString> {
    let mut names = VecDeque::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push_back(name.to_owned()),
            Component::ParentDir => names.push_back("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    names
}

fn join(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn absolute_links_are_resolved_below_the_root_and_relative_links_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("data/one/bin")).unwrap();
        for (link, target) in [
            ("data/current", "/data/one"),
            ("data/relative", "one"),
            ("data/twice", "/data/current"),
            ("data/up", "/data/one/../one"),
            ("data/loop", "/data/loop"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        for (path, expected) in [
            ("/data/one/bin", "data/one/bin"),
            ("/data/current/bin", "data/one/bin"),
            ("/data/twice/bin", "data/one/bin"),
            ("/data/up/bin", "data/one/bin"),
            ("/data/relative/bin", "data/relative/bin"),
            ("/data/loop/bin", "data/loop/bin"),
            ("/missing/bin", "missing/bin"),
        ] {
            assert_eq!(path_in_container(root, Path::new(path)), root.join(expected), "{path}");
        }
    }
}
