//! Denials that AppArmor writes to the kernel's log. What a profile denies by a `deny` rule is not
//! logged.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

use nix::fcntl::OFlag;

/// Longest record of the kernel's log, in bytes.
const RECORD_LIMIT: usize = 8192;

/// A reader of the kernel's log.
pub struct Denials(File);

impl Denials {
    /// Skips the present log.
    pub fn begin() -> Denials {
        // 0 means that the kernel drops no messages.
        fs::write("/proc/sys/kernel/printk_ratelimit", "0").unwrap();
        let nonblocking = OFlag::O_NONBLOCK.bits();
        let mut log =
            OpenOptions::new().read(true).custom_flags(nonblocking).open("/dev/kmsg").unwrap();
        log.seek(SeekFrom::End(0)).unwrap();
        Denials(log)
    }

    /// Returns the denials since the last call.
    pub fn read(&mut self) -> Vec<String> {
        let mut denials = Vec::new();
        let mut record = [0; RECORD_LIMIT];
        loop {
            match self.0.read(&mut record) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]).into_owned();
                    if text.contains("apparmor=\"DENIED\"") {
                        denials.push(text);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return denials,
                // Records were overwritten before they were read.
                Err(error) => panic!("/dev/kmsg: {error}"),
            }
        }
    }
}
