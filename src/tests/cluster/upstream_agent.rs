//! A stand-in for upstream's agent, which writes the same files: binary and kubeconfig when it starts, and its plugin
//! entry whenever the conflist changes. When it ends, it removes all three, binary first.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use crate::agent::KUBECONFIG;
use crate::cni::upstream_entry;
use crate::pods::{self, kubectl};
use crate::scene::OnDrop;

const NET_DIR: &str = "/etc/cni/net.d";
const BINARY: &str = "/opt/cni/bin/linkerd-cni";
const ACCOUNT: &str = "upstream-agent";

/// The active conflist and its text.
pub fn active_conflist() -> (PathBuf, String) {
    let names = fs::read_dir(NET_DIR).unwrap();
    let mut paths: Vec<PathBuf> = names.map(|name| name.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "conflist"));
    let first = paths.into_iter().min().unwrap();
    let text = fs::read_to_string(&first).unwrap();
    (first, text)
}

/// Creates a ServiceAccount with the rights of upstream's. Dropping the value deletes it.
pub fn account() -> OnDrop<impl FnMut()> {
    kubectl(&format!("create serviceaccount {ACCOUNT} -n default"));
    let account = format!("--serviceaccount=default:{ACCOUNT}");
    kubectl(&format!("create clusterrolebinding {ACCOUNT} --clusterrole=view {account}"));
    OnDrop(|| {
        for object in ["serviceaccount", "clusterrolebinding"] {
            let _ = pods::command(&format!("delete {object} {ACCOUNT} -n default")).output();
        }
    })
}

/// The stand-in for upstream's agent. Dropping the value removes its files.
pub struct Upstream {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Upstream {
    pub fn start(list: &Path, original: &str) -> Upstream {
        Upstream::start_until(list, original, || false)
    }

    /// The same; uninstalls as soon as it `is_over`.
    pub fn start_until(
        list: &Path,
        original: &str,
        is_over: impl Fn() -> bool + Send + 'static,
    ) -> Upstream {
        let plugin = fs::read(env!("CARGO_BIN_EXE_linkerd-cni")).unwrap();
        replace(Path::new(BINARY), &plugin, 0o755);
        replace(Path::new(KUBECONFIG), kubeconfig().as_bytes(), 0o644);
        let stop = Arc::<AtomicBool>::default();
        let (own, path, text) = (Arc::clone(&stop), list.to_owned(), chained(original));
        let original = original.to_owned();
        let thread = thread::spawn(move || {
            while !own.load(Ordering::Relaxed) && !is_over() {
                if fs::read_to_string(&path).unwrap_or_default() != text {
                    replace(&path, text.as_bytes(), 0o644);
                }
                thread::sleep(Duration::from_millis(1));
            }
            for path in [BINARY, KUBECONFIG] {
                let _ = fs::remove_file(path);
            }
            let _ = fs::write(&path, original);
        });
        Upstream { stop, thread: Some(thread) }
    }

    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Replaces a file by renaming a temporary file with upstream's name for it. This project's agent may delete that file
/// as a leftover; then the next turn writes it again.
fn replace(path: &Path, bytes: &[u8], mode: u32) {
    let name = path.file_name().unwrap().to_str().unwrap();
    let beside = path.with_file_name(format!("{name}.install"));
    fs::write(&beside, bytes).unwrap();
    let _ = fs::set_permissions(&beside, fs::Permissions::from_mode(mode));
    let _ = fs::rename(&beside, path);
}

/// The conflist with upstream's plugin entry.
fn chained(original: &str) -> String {
    let mut list: Value = serde_json::from_str(original).unwrap();
    let mut entry = upstream_entry();
    entry["kubernetes"]["kubeconfig"] = KUBECONFIG.into();
    list["plugins"].as_array_mut().unwrap().push(entry);
    serde_json::to_string_pretty(&list).unwrap()
}

/// A kubeconfig in YAML, as upstream writes it, with a token of [`account`]. API server and CA are kubectl's.
fn kubeconfig() -> String {
    let own = kubectl("config view --raw --minify --flatten -o json");
    let own: Value = serde_json::from_str(&own).unwrap();
    let cluster = &own["clusters"][0]["cluster"];
    let token = kubectl(&format!("create token {ACCOUNT} -n default"));
    let lines = [
        "# upstream".to_owned(),
        "apiVersion: v1".to_owned(),
        "kind: Config".to_owned(),
        format!("clusters: [{{name: local, cluster: {cluster}}}]"),
        "users:".to_owned(),
        "- name: linkerd-cni".to_owned(),
        "  user:".to_owned(),
        format!("    token: {}", token.trim()),
        "contexts:".to_owned(),
        "- {name: linkerd-cni-context, context: {cluster: local, user: linkerd-cni}}".to_owned(),
        "current-context: linkerd-cni-context".to_owned(),
    ];
    lines.join("\n")
}
