//! Extended attributes: an SELinux label, an ACL.

use std::path::Path;

use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};

/// More than any file of a network configuration has.
const LIMIT: usize = 16 << 10;

/// Gives `to` the extended attributes of `from`, as far as the file system and our rights
/// allow: a label that is not ours to set is what the directory's rules give.
pub fn copy(from: &Path, to: &Path) {
    let mut names = vec![0; LIMIT];
    let Ok(length) = llistxattr(from, &mut names) else {
        return;
    };
    let names = names.get(..length).unwrap_or_default();
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; LIMIT];
        let Ok(length) = lgetxattr(from, name, &mut value) else {
            continue;
        };
        let value = value.get(..length).unwrap_or_default();
        let _ = lsetxattr(to, name, value, XattrFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_go_along() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        for path in [&from, &to] {
            std::fs::write(path, "x").unwrap();
        }
        if lsetxattr(&from, "user.owner", b"cni", XattrFlags::empty()).is_err() {
            // Not on every file system; the copy must then be harmless.
            return copy(&from, &to);
        }
        copy(&from, &to);
        let mut value = [0; 8];
        let length = lgetxattr(&to, "user.owner", &mut value).unwrap();
        assert_eq!(&value[..length], b"cni");
    }
}
