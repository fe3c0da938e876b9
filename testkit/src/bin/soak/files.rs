//! Damage to files: a full file system, immutable files, and files that another program replaces.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Largest file system that may be filled, in bytes: scripts/soak mounts small ones at the CNI directories.
const LARGEST: u64 = 256 << 20;

/// A file that takes the rest of a file system. Dropping the value deletes it.
pub struct Ballast(PathBuf);

impl Ballast {
    pub fn fill(directory: &str) -> Ballast {
        let ballast = Ballast(Path::new(directory).join(".soak-ballast"));
        let mut file = File::create(&ballast.0).expect("the directory can be written");
        let filled = io::copy(&mut io::repeat(1).take(LARGEST), &mut file);
        assert!(
            filled.is_err(),
            "{directory} has more than {LARGEST} bytes left: run scripts/soak"
        );
        ballast
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A file or directory that nobody can change. Dropping the value ends that.
pub struct Immutable(PathBuf);

impl Immutable {
    pub fn make(path: PathBuf) -> Immutable {
        let _ = Command::new("chattr").arg("+i").arg(&path).stderr(Stdio::null()).status();
        Immutable(path)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        let _ = Command::new("chattr").arg("-i").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// Replaces a file by renaming, as another program writes it.
pub fn replace(path: &Path, text: &str, mode: u32) {
    let name = path.file_name().expect("a file").to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.soak"));
    fs::write(&beside, text).expect("the file beside can be written");
    let _ = fs::set_permissions(&beside, fs::Permissions::from_mode(mode));
    fs::rename(&beside, path).expect("the file can be replaced");
}
