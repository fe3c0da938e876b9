//! Code that the tests share, and the programs in `src/bin`: `bench`, `fleet`, `kernels`, `matrix`
//! and `soak`. For development only.

pub mod api;
pub mod benchmarks;
pub mod call;
pub mod chart;
pub mod child;
pub mod cluster;
pub mod cni;
pub mod documented;
pub mod fake_cluster;
pub mod fault_page;
pub mod healthy_cluster;
pub mod inner_network;
pub mod list_query;
pub mod mounts;
pub mod namespaces;
pub mod node_copy;
pub mod promtool;
pub mod properties;
pub mod repeated;
pub mod server;
pub mod statistics;
pub mod table;
pub mod until;
pub mod unwritable;
pub mod upstream_agent;

use std::any::Any;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use linkerd2_cni::VERSION;

/// Calls the function when the value is dropped.
pub struct OnDrop<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

pub fn image() -> String {
    format!("cr.l5d.io/linkerd/cni-plugin:v{VERSION}")
}

/// Returns the message of a panic. It is a `String`, or a `&str` if it has no arguments.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    if let Some(message) = panic.downcast_ref::<String>() {
        return message.clone();
    }
    match panic.downcast_ref::<&str>() {
        Some(message) => (*message).to_owned(),
        None => "no message".to_owned(),
    }
}

pub fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the path of a program of this project that was built together with the running one.
pub fn program(name: &str) -> PathBuf {
    let running = std::env::current_exe().unwrap();
    let mut directory = running.parent().unwrap();
    // The running program may be a test program, which Cargo puts into the subdirectory `deps`.
    if directory.ends_with("deps") {
        directory = directory.parent().unwrap();
    }
    directory.join(name)
}

/// Writes a program by another process. The child of another thread would inherit a descriptor of
/// this process until it starts its own program, and Linux starts no program that is open for
/// writing ("Text file busy").
pub fn write_program(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"cat >"$1" && chmod 755 "$1""#, "sh"]).arg(path.as_ref());
    let mut writer = shell.stdin(Stdio::piped()).spawn().unwrap();
    let written = writer.stdin.take().unwrap().write_all(text.as_ref());
    assert!(writer.wait().unwrap().success(), "{}", path.as_ref().display());
    written.unwrap();
}

/// Returns the folder that `scripts/release` wrote and that is tested.
pub fn release() -> PathBuf {
    let folder = std::env::var_os("LINKERD2_CNI_RELEASE").expect(
        "LINKERD2_CNI_RELEASE names a release; scripts/release.d/reproduce DIRECTORY makes one",
    );
    folder.into()
}
