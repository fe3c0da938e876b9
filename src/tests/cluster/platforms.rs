//! The chart's platforms on the real node, whose directories are laid out like those of each platform in turn. If a
//! platform uses the default directories, the runtime loads the laid-out conflist: the cluster's own network with the
//! platform's names. Other directories are used by the agent only.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::chart::Applied;
use crate::helm::Helm;
use crate::layouts::{Item, LAYOUTS, Layout};
use crate::node::{Files, Node, files_in};
use crate::pods::{self, Pods, kubectl};
use crate::scene::OnDrop;

const NET: &str = "/etc/cni/net.d";
const BIN: &str = "/opt/cni/bin";
/// The cluster's own conflist, and its path while a platform's conflist replaces it.
const NETWORK: &str = "/etc/cni/net.d/10-bridge.conflist";
const ASIDE: &str = "/etc/cni/net.d/10-bridge.conflist.aside";
/// The paths that are laid out, one a line, so that they can be removed after a killed test.
const RECORD: &str = "/run/linkerd2-cni-layout";

#[test]
fn each_platform_preset_gets_ready_and_uninstalls_on_a_node_laid_out_like_it() {
    let _node = Node::exclusive();
    clear();
    let _multus = Applied::new(include_str!("multus_kind.yaml"));
    let kind = "network-attachment-definitions.k8s.cni.cncf.io";
    kubectl(&format!("wait --for=condition=Established --timeout=60s crd {kind}"));
    for layout in &LAYOUTS {
        installs_and_uninstalls(layout);
    }
}

fn installs_and_uninstalls(layout: &Layout) {
    let platform = layout.platform;
    let _laid_out = lay_out(layout);
    let before = snapshot(layout);
    // After a panic the release is removed before the layout.
    let helm = Helm::new();
    helm.run("install", &["--set", &format!("platform={platform}")]);

    let plugin = Path::new(layout.bin_dir).join("linkerd-cni");
    assert!(plugin.exists(), "{platform}: no {}", plugin.display());
    let carrier = Path::new(layout.net_dir).join(layout.carrier());
    assert!(carries(&carrier), "{platform}: {}", carrier.display());
    if platform == "gke" {
        let pods = Pods::default();
        pods.start(&[pods::native_sidecar("on-gke")]);
    }

    helm.remove();
    let after = snapshot(layout);
    let all = before.keys().chain(after.keys());
    let left: Vec<_> = all.filter(|path| before.get(*path) != after.get(*path)).collect();
    // Multus, which OpenShift has, needs the plugin binary to delete existing pods.
    let kept: &[_] = if platform == "openshift" { &[&plugin] } else { &[] };
    assert_eq!(left, kept, "{platform}");
    for path in kept {
        fs::remove_file(path).unwrap();
    }
}

/// Whether the file is the plugin entry, or has it as its last plugin.
fn carries(path: &Path) -> bool {
    let config: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let last = config["plugins"].as_array().map_or(Some(&config), |plugins| plugins.last());
    last.is_some_and(|entry| entry["type"] == "linkerd-cni")
}

/// Lays out this machine. Dropping the value removes the layout.
fn lay_out(layout: &Layout) -> OnDrop<impl FnMut()> {
    let laid_out = OnDrop(clear);
    let usual = layout.net_dir == NET;
    for item in layout.items() {
        let path = PathBuf::from(item.path());
        let in_bin_dir = path.starts_with(layout.bin_dir);
        match item {
            // Another path of the runtime's own directory.
            Item::Directory(_) if usual && path == Path::new(layout.bin_dir) => {
                if layout.bin_dir != BIN {
                    make(&path, |path| symlink(BIN, path));
                }
            }
            Item::Directory(_) if path.is_dir() => {}
            Item::Directory(_) => make(&path, create_dir),
            // A link to one of the node's plugins stands in for each of the network's.
            Item::File(..) if usual && in_bin_dir => {
                if path.symlink_metadata().is_err() {
                    make(&path, |path| symlink("bridge", path));
                }
            }
            Item::File(_, text) if usual && text.contains("plugins") => {
                make(&path, |path| fs::write(path, network_like(&text)));
            }
            Item::File(_, text) => make(&path, |path| {
                fs::write(path, text)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            }),
            Item::Link(_, target) => make(&path, |path| symlink(target, path)),
        }
    }
    if usual {
        // From now on the runtime loads the platform's conflist.
        fs::rename(NETWORK, ASIDE).unwrap();
    }
    laid_out
}

/// The cluster's own conflist, with the name of the first plugin in `text`.
fn network_like(text: &str) -> String {
    let [like, mut network] = [text, &fs::read_to_string(NETWORK).unwrap()]
        .map(|text| serde_json::from_str::<Value>(text).unwrap());
    network["plugins"][0]["type"] = like["plugins"][0]["type"].clone();
    format!("{network:#}\n")
}

fn create_dir(path: &Path) -> io::Result<()> {
    fs::create_dir(path)
}

/// Creates a path that must not exist, and its parent directories, and records them.
fn make(path: &Path, how: impl FnOnce(&Path) -> io::Result<()>) {
    if let Some(parent) = path.parent()
        && !parent.exists()
    {
        make(parent, create_dir);
    }
    assert!(
        path.symlink_metadata().is_err(),
        "{} exists on this machine; the test does not overwrite it",
        path.display()
    );
    let mut record = fs::File::options().create(true).append(true).open(RECORD).unwrap();
    writeln!(record, "{}", path.display()).unwrap();
    how(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Removes the layout, also one of an earlier test that was killed.
fn clear() {
    if Path::new(ASIDE).exists() {
        fs::rename(ASIDE, NETWORK).unwrap();
    }
    let record = fs::read_to_string(RECORD).unwrap_or_default();
    for path in record.lines().rev().map(Path::new) {
        // Fails if others have created files in it.
        let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
    }
    let _ = fs::remove_file(RECORD);
}

/// The files in the layout's and the runtime's directories.
fn snapshot(layout: &Layout) -> Files {
    files_in("", &[layout.bin_dir, layout.net_dir, BIN, NET])
}
