//! Finds the process that holds the xtables lock. Every run of `iptables-legacy` and
//! `iptables-legacy-restore` takes this lock. All network namespaces that see the same lock file
//! share it.

use std::env;
use std::fs;
use std::path::PathBuf;

use nix::sys::stat::{major, minor, stat};

use crate::quote::quote;

/// Describes the lock and the process that holds it. Returns `None` if the holder is unknown, or is
/// the process `except`.
pub fn describe_holder(except: Option<u32>) -> Option<String> {
    let path = path();
    let file = stat(&path).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // The file's ID in `/proc/locks`: major and minor device number in hexadecimal, and inode.
    let id = format!("{:02x}:{:02x}:{}", major(file.st_dev), minor(file.st_dev), file.st_ino);
    let pid = holder_of(&locks, &id)?;
    if Some(pid) == except {
        return None;
    }
    let name = match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!(" ({})", quote(name.trim_end())),
        Err(_) => String::new(),
    };
    Some(format!("{} is held by process {pid}{name}", path.display()))
}

/// Returns the path of the lock file. The iptables programs read the same environment variable.
pub fn path() -> PathBuf {
    match env::var_os("XTABLES_LOCKFILE") {
        Some(path) if !path.is_empty() => path.into(),
        _ => PathBuf::from("/run/xtables.lock"),
    }
}

/// Returns the PID of the process that holds the lock on the file `id`. `locks` is the text of
/// `/proc/locks`.
fn holder_of(locks: &str, id: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The line of a process that waits for the lock has "->" as its second word.
        match words[..] {
            [_, "FLOCK" | "POSIX" | "OFDLCK", _, _, pid, file, ..] if file == id => {
                // The PID is -1 or 0 if the process is not in this PID namespace.
                pid.parse().ok().filter(|&pid| pid > 0)
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_is_the_process_that_has_the_lock_and_not_one_that_waits() {
        let locks = "\
1: FLOCK  ADVISORY  WRITE 10 00:19:7 0 EOF
2: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF
3: FLOCK  ADVISORY  WRITE 12 00:19:77 0 EOF
3: -> FLOCK  ADVISORY  WRITE 13 00:19:77 0 EOF
4: -> FLOCK  ADVISORY  WRITE 14 00:19:78 0 EOF
5: OFDLCK ADVISORY  WRITE -1 00:19:79 0 EOF
6:";
        for (file, pid) in [
            ("00:19:77", Some(12)),
            ("00:19:7", Some(10)),
            ("00:19:78", None),
            ("00:19:79", None),
            ("00:19:80", None),
        ] {
            assert_eq!(holder_of(locks, file), pid, "{file}");
        }
    }
}
