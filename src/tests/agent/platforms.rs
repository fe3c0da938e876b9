//! Tests the agent on each platform that the chart supports, with the values, directories and
//! mounts that the chart renders for the platform. Needs root, and `helm` on PATH.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use testkit::child::must;
use testkit::cluster::node::files_in;
use testkit::{repository, write_program};

use crate::agent::Agent;
use crate::api::{Api, DaemonSetState, delete_pod};
use crate::filesystems::{bind, in_mount_namespace};
use crate::helm::{Objects, Render, chart, platforms, read, yaml};
use crate::node::Node;
use crate::until::until;

/// Reads the layout of the nodes of each platform. A platform without a preset uses the chart's
/// defaults.
fn layouts() -> Value {
    yaml(include_str!("platforms.yaml"))
}

/// A node with the layout of a platform, and the objects that the chart renders for it.
struct Platform {
    name: String,
    api: Api,
    node: Node,
    objects: Objects,
}

impl Platform {
    fn new(name: &str) -> Platform {
        let api = Api::start();
        let node = Node::with_api(&api);
        let mut render = Render::new();
        let preset = chart().join("platforms").join(name).with_extension("yaml");
        if preset.exists() {
            render = render.file(&preset);
        }
        let objects = render.objects();
        let platform = Platform { name: name.into(), api, node, objects };
        platform.lay_out();
        platform
    }

    /// Returns the path in this test of a path on the node.
    fn host(&self, path: &str) -> PathBuf {
        self.node.root().join("node").join(path.trim_start_matches('/'))
    }

    fn setting(&self, key: &str) -> &str {
        self.objects.get_by_name("ConfigMap", "linkerd-cni-config")["data"][key].as_str().unwrap()
    }

    fn directories(&self) -> [&str; 2] {
        ["dest_cni_bin_dir", "dest_cni_net_dir"].map(|key| self.setting(key))
    }

    fn plugin(&self) -> PathBuf {
        self.host(self.directories()[0]).join("linkerd-cni")
    }

    fn lay_out(&self) {
        for (directory, files) in layouts()[&self.name].as_object().unwrap() {
            let directory = self.host(directory);
            fs::create_dir_all(&directory).unwrap();
            for plugin in files.as_array().into_iter().flatten().filter_map(Value::as_str) {
                match plugin.split_once(" -> ") {
                    Some((link, target)) => symlink(target, directory.join(link)).unwrap(),
                    None => write_program(directory.join(plugin), "#!/bin/sh\nexit 1\n"),
                }
            }
            for (name, content) in files.as_object().into_iter().flatten() {
                let corpus = repository().join("src/conflist/corpus");
                let text = content.as_str().map(|file| read(corpus.join(file)));
                let text = text.unwrap_or_else(|| content.to_string());
                fs::write(directory.join(name), text).unwrap();
            }
        }
        // The kubelet creates this directory before it starts the agent.
        fs::create_dir_all(self.host("run/linkerd-cni")).unwrap();
    }

    fn start(&self) -> Agent {
        let container = self.node.root().join("container");
        let below = |path: &Value| container.join(path.as_str().unwrap().trim_start_matches('/'));
        let agent = self.objects.container("install-cni");
        for mount in agent["volumeMounts"].as_array().unwrap() {
            let mut volumes = self.objects.pod()["spec"]["volumes"].as_array().unwrap().iter();
            let volume = volumes.find(|volume| volume["name"] == mount["name"]).unwrap();
            if let Some(path) = volume["hostPath"]["path"].as_str() {
                fs::create_dir_all(below(&mount["mountPath"])).unwrap();
                // A mount resolves a symbolic link only once, when it is created.
                bind(&self.host(path).canonicalize().unwrap(), &below(&mount["mountPath"]));
            }
        }
        let value = |name| self.objects.variable("install-cni", name);
        let [bin_dir, net_dir] = self.directories();
        self.node.start_ready_with(&[
            ("CONTAINER_MOUNT_PREFIX", container.join("host").to_str().unwrap()),
            ("DEST_CNI_BIN_DIR", bin_dir),
            ("DEST_CNI_NET_DIR", net_dir),
            ("CNI_NETWORK_CONFIG", self.setting("cni_network_config")),
            ("LINKERD_CNI_CHAINED", value("LINKERD_CNI_CHAINED").as_str().unwrap()),
            ("LINKERD_CNI_CONF_NAME", value("LINKERD_CNI_CONF_NAME").as_str().unwrap_or_default()),
            (
                "LINKERD_CNI_REQUIRE_NETWORK_PLUGINS",
                value("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS").as_str().unwrap(),
            ),
            ("LINKERD_CNI_KEEP_BINARY", ""),
            ("LINKERD_CNI_RESYNC_SECONDS", "1"),
        ])
    }

    fn uninstall(&self, agent: &mut Agent) {
        self.api.state().daemon_set = DaemonSetState::Status(404);
        delete_pod(&self.api);
        assert_eq!(agent.stop(), Some(0), "{}: {}", self.name, agent.log());
    }

    /// Returns whether the plugin entry is the last one in the first network config. In standalone
    /// mode, checks the config of the plugin.
    fn has_entry(&self) -> bool {
        let directory = self.host(self.directories()[1]);
        let files = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let conflists =
            files.filter(|path| path.extension().is_some_and(|name| name == "conflist"));
        let carrier = conflists.min().unwrap_or_else(|| directory.join("linkerd-cni.conf"));
        let config = yaml(&read(carrier));
        let last = config["plugins"].as_array().map_or(Some(&config), |plugins| plugins.last());
        last.is_some_and(|entry| entry["type"] == "linkerd-cni")
    }
}

#[test]
fn agent_becomes_ready_and_uninstalls_on_a_node_of_each_platform() {
    let layouts: BTreeSet<_> = layouts().as_object().unwrap().keys().cloned().collect();
    for (name, _) in platforms() {
        assert!(layouts.contains(&name), "no layout of {name}");
    }
    for name in layouts {
        in_mount_namespace(move || {
            let platform = Platform::new(&name);
            let files = || files_in(platform.host("").to_str().unwrap(), &platform.directories());
            let before = files();
            let mut agent = platform.start();
            assert!(platform.plugin().exists() && platform.has_entry(), "{name}: {}", agent.log());
            platform.uninstall(&mut agent);
            // Multus, which OpenShift has, needs the plugin binary to delete existing pods.
            assert_eq!(platform.plugin().exists(), name == "openshift", "{}", agent.log());
            let _ = fs::remove_file(platform.plugin());
            assert_eq!(files(), before, "{name}: {}", agent.log());
        });
    }
}

/// `snap refresh` copies the data of MicroK8s to a new revision, and sets the link `current` to it.
#[test]
fn agent_moves_to_the_new_revision_after_a_refresh_of_microk8s() {
    in_mount_namespace(|| {
        let platform = Platform::new("microk8s");
        let snap = platform.host("var/snap/microk8s");
        must(Command::new("cp").arg("-a").args([snap.join("7964"), snap.join("8000")]));
        let mut agent = platform.start();
        symlink("8000", snap.join("new")).unwrap();
        fs::rename(snap.join("new"), snap.join("current")).unwrap();
        until("the entry in the new revision", || platform.has_entry());
        agent.until_ready();
        assert!(platform.plugin().exists());
        platform.uninstall(&mut agent);
        assert!(!platform.has_entry() && !platform.plugin().exists());
    });
}
