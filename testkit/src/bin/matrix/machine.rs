//! One of several nodes, as this machine sees it. Each is a node that `scripts/node` made.

use std::path::Path;

use serde_json::{Value, json};
use testkit::child::script;
use testkit::cluster::api;
use testkit::cluster::node::{Files, files_of};
use testkit::cluster::watcher::Watcher;

pub struct Machine {
    pub name: String,
    root: String,
    pub before: Files,
}

impl Machine {
    /// Returns a node of the cluster. Fails if the plugin is installed on the node.
    pub fn in_cluster(name: &str) -> Machine {
        let root = script("node", &["root", name]).trim().to_owned();
        let before = files_of(&root);
        let machine = Machine { name: name.to_owned(), root, before };
        assert!(!machine.has_plugin(), "the plugin is on {name} already");
        machine
    }

    /// Adds a node to the cluster on `first`. It registers with the taint `taint`.
    pub fn join(first: &Machine, name: &str, taint: &str) -> Machine {
        let taint = format!("--register-with-taints={taint}=:NoSchedule");
        script("node", &["join", &first.name, name, &taint]);
        Machine::in_cluster(name)
    }

    /// Loads the image in this archive on the node.
    pub fn load(&self, archive: &Path) {
        let archive = archive.to_str().unwrap();
        script("node", &["run", &self.name, "scripts/cluster", "load", archive]);
    }

    pub fn files(&self) -> Files {
        files_of(&self.root)
    }

    pub fn has_plugin(&self) -> bool {
        Path::new(&format!("{}/opt/cni/bin/linkerd-cni", self.root)).exists()
    }

    pub fn watch(&self) -> Watcher {
        Watcher::of_root(self.root.clone())
    }

    pub fn has_taint(&self, key: &str) -> bool {
        let node = api::get(&format!("/api/v1/nodes/{}", self.name));
        let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
        taints.any(|taint| taint["key"] == key)
    }

    /// Lets the scheduler place the pod only on this node.
    pub fn only(&self, mut pod: Value) -> Value {
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": self.name});
        pod
    }
}
