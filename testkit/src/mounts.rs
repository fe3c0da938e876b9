//! Mounts that end with their test. Needs root.

use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Runs `test` on a thread with a mount namespace of its own. Programs that `test` starts are in
/// the same mount namespace.
pub fn in_mount_namespace<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        let none = None::<&str>;
        mount(none, "/", none, private, none).unwrap();
        test()
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

pub fn bind(from: &Path, to: &Path) {
    let none = None::<&str>;
    mount(Some(from), to, none, MsFlags::MS_BIND, none).unwrap();
}
