//! Installs from the folder that `scripts/release` wrote: its chart, and the image in its archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::child::{must, script};
use testkit::release;

use crate::agent::agent_pods;
use crate::pods;
use crate::scene::Scene;

/// Returns the file of the release with this start and end of its name.
fn file(start: &str, end: &str) -> PathBuf {
    for entry in fs::read_dir(release()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with(start) && name.ends_with(end) {
            return path;
        }
    }
    panic!("the release has no {start}*{end}")
}

#[test]
fn release_is_installed_from_its_folder() {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let archive = file("cni-plugin-", &format!("-linux-{architecture}.tar"));
    script("cluster", &["load", archive.to_str().unwrap()]);

    let scene = Scene::begin();
    let helm = &scene.helm;
    let pods = &scene.pods;
    helm.install(&file("linkerd2-cni-", ".tgz"), &["--wait", "--timeout", "60s"]);
    let agent = agent_pods().remove(0);
    let image = agent["status"]["containerStatuses"][0]["imageID"].as_str().unwrap();
    // The digest of the image's configuration or of its manifest. It depends on the version of
    // containerd.
    let digest = image.rsplit(':').next().unwrap();
    assert!(digests(&archive).contains(digest), "{image} is not the image of the archive");

    pods.start(&[pods::meshed("meshed"), pods::unmeshed("unmeshed")]);
    pods.assert_answers("unmeshed", "meshed", "proxy-inbound");
    scene.uninstall();
}

/// Returns the manifests of docker and OCI in the archive, which name all digests.
fn digests(archive: &Path) -> String {
    let read = |name: &str| must(Command::new("tar").arg("-xOf").arg(archive).arg(name));
    read("index.json") + &read("manifest.json")
}
