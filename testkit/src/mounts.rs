//! Mounts that end with their test. Needs root.

use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// An argument of `mount` that the kernel ignores.
const NONE: Option<&str> = None;

/// Runs `test` on a thread with a mount namespace of its own. Programs that `test` starts are in
/// the same mount namespace.
pub fn in_mount_namespace<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(NONE, "/", NONE, flags, NONE).unwrap();
        test()
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Mounts `from` at `to`.
pub fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, NONE, MsFlags::MS_BIND, NONE).unwrap();
}
