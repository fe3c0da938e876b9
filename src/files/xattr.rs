//! Copies extended attributes, such as an SELinux label or an ACL.

use std::path::Path;

use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};

/// Largest list of names, and largest value, in bytes. Attributes beyond this are not copied.
const LIMIT: usize = 16 << 10;

/// Hashes and signatures of a file's content, which differ for other content (IMA, EVM).
const OF_CONTENT: [&[u8]; 2] = [b"security.ima", b"security.evm"];

/// Ignores failures: the file system may not support an attribute, or the process may not set it. Then
/// `to` keeps the directory's default.
pub fn copy(from: &Path, to: &Path) {
    let mut names = vec![0; LIMIT];
    let Ok(length) = llistxattr(from, &mut names) else {
        return;
    };
    let names = names.get(..length).unwrap_or_default();
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    for name in names.filter(|name| !OF_CONTENT.contains(name)) {
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
    fn extended_attributes_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        for path in [&from, &to] {
            std::fs::write(path, "x").unwrap();
        }
        // Some file systems have only attributes that root can set.
        let set = |name| lsetxattr(&from, name, b"cni", XattrFlags::empty()).is_ok();
        let name = ["user.owner", "trusted.owner"].into_iter().find(|name| set(*name));
        assert!(name.is_some() || std::env::var_os("CI").is_none(), "no extended attributes");
        copy(&from, &to);
        let mut value = [0; 8];
        let copied = name.map(|name| lgetxattr(&to, name, &mut value).unwrap());
        assert_eq!(copied.map(|length| &value[..length]), name.map(|_| &b"cni"[..]));
    }
}
