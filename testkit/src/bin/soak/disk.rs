//! A full file system.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

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
