//! What each platform of the chart has in its two CNI directories, as it comes: the primary
//! CNI's files and plugins, links included. Sources: the files in the chart's `platforms`.

/// A platform's node, as far as the agent sees it.
pub struct Layout {
    pub platform: &'static str,
    pub bin_dir: &'static str,
    pub net_dir: &'static str,
    /// Links on the way to the two directories, with their targets.
    pub links: &'static [(&'static str, &'static str)],
    pub plugins: &'static [&'static str],
    /// The program that the plugins are links to, where they are links.
    pub multi_call: Option<&'static str>,
    /// The files in the net dir. The first is the active conflist.
    pub files: &'static [(&'static str, &'static str)],
}

pub enum Item {
    Directory(String),
    File(String, String),
    Link(String, String),
}

impl Item {
    pub fn path(&self) -> &str {
        match self {
            Item::Directory(path) | Item::File(path, _) | Item::Link(path, _) => path,
        }
    }
}

impl Layout {
    /// The file that has the plugin entry once the chart is installed.
    pub fn carrier(&self) -> &'static str {
        self.files.first().map_or("linkerd-cni.conf", |(name, _)| name)
    }

    /// All that makes the layout, in an order in which it can be created.
    pub fn items(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for (link, target) in self.links {
            let parent = link.rsplit_once('/').map_or("", |(parent, _)| parent);
            items.push(Item::Directory(format!("{parent}/{target}")));
            items.push(Item::Link((*link).into(), (*target).into()));
        }
        items.push(Item::Directory(self.bin_dir.into()));
        items.push(Item::Directory(self.net_dir.into()));
        let program = "#!/bin/sh\nexit 1\n";
        if let Some(target) = self.multi_call {
            let path = match target.starts_with('/') {
                true => target.to_owned(),
                false => format!("{}/{target}", self.bin_dir),
            };
            items.push(Item::File(path, program.into()));
        }
        for plugin in self.plugins {
            let path = format!("{}/{plugin}", self.bin_dir);
            items.push(match self.multi_call {
                Some(target) => Item::Link(path, target.into()),
                None => Item::File(path, program.into()),
            });
        }
        for (name, text) in self.files {
            items.push(Item::File(format!("{}/{name}", self.net_dir), (*text).into()));
        }
        items
    }
}

const BIN: &str = "/opt/cni/bin";
const NET: &str = "/etc/cni/net.d";

/// The plugins that most nodes have besides those of their network.
const REFERENCE: [&str; 5] = ["bridge", "host-local", "loopback", "portmap", "ptp"];
const FLANNEL: [&str; 6] = ["bandwidth", "bridge", "flannel", "host-local", "loopback", "portmap"];
const CALICO: [&str; 5] = ["bandwidth", "calico", "calico-ipam", "loopback", "portmap"];
const AWS: [&str; 4] = ["aws-cni", "egress-cni", "loopback", "portmap"];

macro_rules! corpus {
    ($name:literal) => {
        include_str!(concat!("../../src/conflist/corpus/", $name))
    };
}

const CALICO_CONFLIST: &str = corpus!("10-calico.conflist");
const CALICO_KUBECONFIG: (&str, &str) = ("calico-kubeconfig", "apiVersion: v1\nkind: Config\n");
const CALICO_FILES: Files = &[("10-calico.conflist", CALICO_CONFLIST), CALICO_KUBECONFIG];
const CANAL_FILES: Files = &[("10-canal.conflist", CALICO_CONFLIST), CALICO_KUBECONFIG];
const AWS_FILES: Files = &[("10-aws.conflist", corpus!("10-aws.conflist"))];
const KINDNET_FILES: Files = &[("10-kindnet.conflist", corpus!("10-kindnet.conflist"))];
const FLANNEL_FILES: Files = &[("10-flannel.conflist", corpus!("10-flannel.conflist"))];
const K3S_FILES: Files = &[("10-flannel.conflist", corpus!("10-k3s.conflist"))];
const GKE_FILES: Files = &[("10-gke-ptp.conflist", corpus!("10-gke-ptp.conflist"))];
const AZURE_FILES: Files = &[("10-azure.conflist", corpus!("10-azure.conflist"))];
const LOOPBACK: &str = "{\n    \"cniVersion\": \"0.3.1\",\n    \"name\": \"loopback\",\n    \"type\": \"loopback\"\n}\n";
/// What the node image brings, renamed so that no runtime loads it, and its loopback.
const MINIKUBE_FILES: Files = &[
    ("10-kindnet.conflist", corpus!("10-kindnet.conflist")),
    ("87-podman-bridge.conflist.mk_disabled", corpus!("10-flannel.conflist")),
    ("200-loopback.conf", LOOPBACK),
];
const MICROK8S_FILES: Files = &[
    ("10-calico.conflist", CALICO_CONFLIST),
    CALICO_KUBECONFIG,
    ("cni.yaml", "kind: DaemonSet\n"),
];

type Files = &'static [(&'static str, &'static str)];

const fn usual(platform: &'static str, plugins: &'static [&'static str], files: Files) -> Layout {
    Layout { platform, bin_dir: BIN, net_dir: NET, links: &[], plugins, multi_call: None, files }
}

pub const LAYOUTS: [Layout; 14] = [
    usual("aks", &["azure-vnet", "azure-vnet-ipam", "loopback", "portmap"], AZURE_FILES),
    usual("bottlerocket", &AWS, AWS_FILES),
    Layout { bin_dir: "/home/kubernetes/bin", ..usual("cos", &CALICO, CALICO_FILES) },
    usual("eks", &AWS, AWS_FILES),
    Layout { bin_dir: "/home/kubernetes/bin", ..usual("gke", &REFERENCE, GKE_FILES) },
    usual("iks", &CALICO, CALICO_FILES),
    // k3s in its image: links beside the program of all plugins.
    Layout {
        bin_dir: "/bin",
        net_dir: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
        multi_call: Some("cni"),
        ..usual("k3d", &FLANNEL, K3S_FILES)
    },
    // The links lead to a directory that is not mounted into the agent.
    Layout {
        bin_dir: "/var/lib/rancher/k3s/data/cni",
        net_dir: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
        multi_call: Some(
            "/var/lib/rancher/k3s/data/3ac4e5a8d1fe9b1f5e6b3c2d7a0f4e8b9c6d5a4f3e2b1c0d9e8f7a6b5c4d3e2f/bin/cni",
        ),
        ..usual("k3s", &FLANNEL, K3S_FILES)
    },
    usual("kind", &REFERENCE, KINDNET_FILES),
    Layout {
        bin_dir: "/var/snap/microk8s/current/opt/cni/bin",
        net_dir: "/var/snap/microk8s/current/args/cni-network",
        links: &[("/var/snap/microk8s/current", "7964")],
        ..usual("microk8s", &CALICO, MICROK8S_FILES)
    },
    usual("minikube", &REFERENCE, MINIKUBE_FILES),
    // Multus' own directory, which the runtime does not read.
    Layout {
        bin_dir: "/var/lib/cni/bin",
        net_dir: "/etc/cni/multus/net.d",
        ..usual("openshift", &["multus", "multus-shim", "ovn-k8s-cni-overlay", "loopback"], &[])
    },
    usual("rke2", &CALICO, CANAL_FILES),
    usual("talos", &FLANNEL, FLANNEL_FILES),
];
