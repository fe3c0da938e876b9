//! A platform on which the node's directories move: the agent with the directories and mounts that the chart renders. That every platform gets ready
//! and is restored is a test on the cluster. Needs root, and `helm` on PATH.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use testkit::write_program;

use crate::api::{Api, DaemonSetState};
use crate::filesystems::{bind, with_mounts};
use crate::helm::Render;
use crate::layouts::{Item, LAYOUTS, Layout};
use crate::node::Node;
use crate::until::until;

/// `snap refresh` copies the data of MicroK8s to a new revision, and sets the link `current` to it.
#[test]
fn the_agent_follows_microk8s_to_the_revision_that_a_refresh_makes_current() {
    with_mounts(|_| {
        let layout = LAYOUTS.iter().find(|layout| layout.platform == "microk8s").unwrap();
        let api = Api::start();
        let node = Node::with_api(&api);
        let (host, container) = (node.root().join("node"), node.root().join("container"));
        lay_out(layout, &host);
        let objects = Render::new().values(&json!({"platform": layout.platform})).objects();
        let pod = &objects.pod()["spec"];
        for mount in objects.container("install-cni")["volumeMounts"].as_array().unwrap() {
            let mut volumes = pod["volumes"].as_array().unwrap().iter();
            let volume = volumes.find(|volume| volume["name"] == mount["name"]).unwrap();
            let below = |path: &str| path.trim_start_matches('/').to_owned();
            if let Some(path) = volume["hostPath"]["path"].as_str() {
                let inside = container.join(below(mount["mountPath"].as_str().unwrap()));
                fs::create_dir_all(&inside).unwrap();
                // A mount follows the link once.
                let outside = host.join(below(path));
                if volume["hostPath"]["type"] == "DirectoryOrCreate" {
                    fs::create_dir_all(&outside).unwrap();
                }
                bind(&outside.canonicalize().unwrap(), &inside);
            }
        }
        let data = &objects.get("ConfigMap")["data"];
        let [net_dir, bin_dir] =
            ["dest_cni_net_dir", "dest_cni_bin_dir"].map(|key| data[key].as_str().unwrap());
        let mut agent = node.start_ready_with(&[
            ("CONTAINER_MOUNT_PREFIX", container.join("host").to_str().unwrap()),
            ("DEST_CNI_NET_DIR", net_dir),
            ("DEST_CNI_BIN_DIR", bin_dir),
            ("LINKERD_CNI_RESYNC_SECONDS", "1"),
        ]);

        let snap = host.join("var/snap/microk8s");
        lay_out(&Layout { links: &[], ..*layout }, &node.root().join("new"));
        fs::rename(node.root().join("new/var/snap/microk8s/current"), snap.join("8000")).unwrap();
        symlink("8000", snap.join("new")).unwrap();
        fs::rename(snap.join("new"), snap.join("current")).unwrap();
        let list = snap.join("8000/args/cni-network").join(layout.carrier());
        until("the entry in the new revision", || carries(&list));
        agent.until_ready();
        assert!(snap.join("8000/opt/cni/bin/linkerd-cni").exists());
        api.state().daemon_set = DaemonSetState::Status(404);
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        assert!(!carries(&list) && !snap.join("8000/opt/cni/bin/linkerd-cni").exists());
    });
}

/// Whether the file is, or has last, the plugin entry.
fn carries(path: &Path) -> bool {
    let config: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let last = config["plugins"].as_array().map(|plugins| plugins.last());
    last.map_or(Some(&config), |last| last).is_some_and(|entry| entry["type"] == "linkerd-cni")
}

fn lay_out(layout: &Layout, host: &Path) {
    // The kubelet creates it before it starts the agent.
    fs::create_dir_all(host.join("run/linkerd-cni")).unwrap();
    for item in layout.items() {
        let path = host.join(item.path().trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match item {
            Item::Directory(_) => fs::create_dir_all(path).unwrap(),
            Item::Link(_, target) => symlink(target, path).unwrap(),
            Item::File(_, text) => write_program(path, text),
        }
    }
}
