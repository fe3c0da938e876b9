//! Symbolic links in a mounted directory of the host.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Largest number of symbolic links that the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// Returns the link target by which the file `name` in `dir` leaves what is mounted, if there is one.
/// On the host the target may exist.
///
/// An absolute target is resolved from another root directory there, so it always counts. A relative
/// one counts if it leads out of `dir` to a path that is missing here.
pub fn target_out_of(dir: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    let dir = fs::canonicalize(dir)?;
    let mut here = dir.clone();
    let mut left = VecDeque::from([OsString::from(name)]);
    let mut links = 0;
    let mut last_target = PathBuf::new();
    while let Some(part) = left.pop_front() {
        if part == ".." {
            here.pop();
            continue;
        }
        let next = here.join(part);
        match fs::read_link(&next) {
            Ok(target) if target.is_absolute() => return Ok(Some(target)),
            Ok(_) if links == MAX_LINKS => break,
            Ok(target) => {
                links += 1;
                let parts = target.components().filter(|part| *part != Component::CurDir);
                for part in parts.rev() {
                    left.push_front(part.as_os_str().to_owned());
                }
                last_target = target;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !here.starts_with(&dir) => {
                return Ok(Some(last_target));
            }
            Err(_) => here = next,
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_leaves_the_directory_if_it_is_absolute_or_leads_to_a_missing_path_outside() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("net.d");
        fs::create_dir_all(dir.join("sub")).unwrap();
        for file in ["beside", "net.d/file", "net.d/sub/file"] {
            fs::write(root.path().join(file), "").unwrap();
        }
        symlink(&dir, dir.join("absolute-sub")).unwrap();
        for (target, expected) in [
            ("file", None),
            ("./sub/../file", None),
            ("missing", None),
            ("sub/missing", None),
            ("file/x", None),
            ("link", None),
            ("../beside", None),
            ("../missing", Some("../missing")),
            ("sub/../../missing/x", Some("sub/../../missing/x")),
            ("/etc/passwd", Some("/etc/passwd")),
            ("absolute-sub/file", Some(dir.to_str().unwrap())),
        ] {
            let link = dir.join("link");
            symlink(target, &link).unwrap();
            let found = target_out_of(&dir, "link").unwrap();
            assert_eq!(found.as_deref(), expected.map(Path::new), "{target}");
            fs::remove_file(link).unwrap();
        }
        assert_eq!(target_out_of(&dir, "file").unwrap(), None);
    }
}
