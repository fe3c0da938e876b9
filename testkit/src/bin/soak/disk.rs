//! A full file system.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

/// Largest file system that may be filled, in bytes: scripts/soak mounts small ones at the CNI directories.
const LARGEST: u64 = 256 << 20;

/// A file that takes the rest of a file system. Dropping the value deletes it.
pub struct Ballast(PathBuf);

impl Ballast {
    pub fn fill(directory: &str) -> Ballast {
        let size = statvfs(directory).expect("a file system");
        let bytes = size.blocks() * size.fragment_size();
        assert!(
            bytes <= LARGEST,
            "{directory} is on a file system of {bytes} bytes: run scripts/soak"
        );
        let path = Path::new(directory).join(".soak-ballast");
        let mut file = File::create(&path).expect("the directory can be written");
        let mut block = vec![1; 64 << 10];
        while !block.is_empty() {
            if file.write_all(&block).is_err() {
                // What a smaller block may still find room for.
                block.truncate(block.len() / 2);
            }
        }
        Ballast(path)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
