//! Other programs that tests run.

use std::process::{Child, Command};

/// Makes `bind` fail, which only netlink sockets call: in the plugin, and in `iptables-nft`. strace
/// waits for every process that the plugin leaves, so its time is limited.
pub const WITHOUT_NETLINK: [&str; 10] = [
    "timeout",
    "60",
    "strace",
    "-f",
    "-qq",
    "-o",
    "/dev/null",
    "-e",
    "trace=bind",
    "-einject=bind:error=EPERM",
];

/// A process that is killed when this is dropped.
pub struct KilledOnDrop(pub Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether tests can use strace, which CI must have.
pub fn has_strace() -> bool {
    let found = Command::new("strace").arg("-V").output().is_ok();
    assert!(found || std::env::var_os("CI").is_none(), "strace is missing");
    if !found {
        println!("skipped: strace is missing (scripts/tools debian)");
    }
    found
}
