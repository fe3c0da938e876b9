//! Installs from the folder that `scripts/release` wrote: its chart, and the image in its archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use testkit::release;

use crate::pods::{self, kubectl};
use crate::scene::Scene;

/// Returns the file of the release whose name starts and ends like this.
fn file(start: &str, end: &str) -> PathBuf {
    let mut files = fs::read_dir(release()).unwrap().map(|entry| entry.unwrap().path());
    let matches = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(start) && name.ends_with(end)
    };
    files.find(|path| matches(path)).unwrap_or_else(|| panic!("the release has no {start}*{end}"))
}

#[test]
fn a_release_is_installed_from_its_folder() {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let archive = file("cni-plugin-", &format!("-linux-{architecture}.tar"));
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/cluster");
    let load = Command::new(scripts).arg("load").arg(&archive).output().unwrap();
    assert!(load.status.success(), "{}", String::from_utf8_lossy(&load.stderr));

    let scene = Scene::begin();
    let Scene { helm, pods, .. } = &scene;
    helm.install_chart(&file("linkerd2-cni-", ".tgz"));
    // The digest of the image's configuration or of its manifest, by the version of containerd.
    let running = kubectl(
        "get pods -n linkerd-cni -o jsonpath={.items[0].status.containerStatuses[0].imageID}",
    );
    let digest = running.rsplit(':').next().unwrap();
    assert!(
        digests(&archive).contains(digest),
        "{running} is not the image of {}",
        archive.display()
    );

    pods.start(&[pods::meshed("meshed"), pods::unmeshed("unmeshed")]);
    pods.assert_answers("unmeshed", "meshed", "proxy-inbound");
    scene.uninstall();
}

/// Returns the manifests of docker and OCI in the archive, which name all digests.
fn digests(archive: &Path) -> String {
    let read = |name: &str| {
        let output = Command::new("tar").arg("-xOf").arg(archive).arg(name).output().unwrap();
        assert!(output.status.success(), "{name}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap().to_string()
    };
    read("index.json") + &read("manifest.json")
}
