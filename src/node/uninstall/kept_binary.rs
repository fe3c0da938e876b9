//! Decides whether uninstall keeps the plugin binary, because the deletion of existing pods needs
//! it.
//!
//! To delete a pod, containerd calls the plugins of the current network config. CRI-O and Multus
//! call the plugins of the config that they cached when the pod was created. If one of these
//! plugins is missing, the deletion fails and the pod's IP address is not released. The kubeconfig
//! can be removed in any case, because the plugin does not need it for DEL.

use std::fs;

use crate::conflist;
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::ConfigFile;
use crate::node::NodeSettings;

/// File with the mounts of the agent's own container, which show the container runtime.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Returns which program needs the plugin binary to delete existing pods, on a node with these
/// network `configs`. `None` if uninstall can remove the binary.
pub fn needed_by(settings: &NodeSettings, configs: &[ConfigFile]) -> Option<&'static str> {
    match settings.keep_binary {
        Some(true) => return Some("LINKERD_CNI_KEEP_BINARY=true"),
        Some(false) => return None,
        None => {}
    }
    if is_cri_o(&fs::read_to_string(MOUNTINFO).unwrap_or_default()) {
        return Some("CRI-O");
    }
    if multus_calls_plugin(settings, configs) {
        return Some("Multus");
    }
    None
}

/// Returns whether CRI-O made the mounts of the container with this `mountinfo`.
///
/// CRI-O mounts `hostname` and `resolv.conf` from `<storage>/<driver>-containers/<id>/userdata/`.
/// containerd mounts them from `<root>/io.containerd.grpc.v1.cri/sandboxes/<id>/`. If the node is
/// itself a Podman container, containerd's paths also contain `-containers/` and `/userdata/`.
fn is_cri_o(mountinfo: &str) -> bool {
    // CRI-O's mounts are recognized by the fourth field, which is the path of the mounted file or
    // directory in its file system.
    let mut roots = mountinfo.lines().filter_map(|line| line.split(' ').nth(3));
    roots.any(|root| {
        root.contains("-containers/")
            && root.contains("/userdata/")
            && !root.contains("/io.containerd.")
    })
}

/// Returns whether Multus calls the plugin on this node.
fn multus_calls_plugin(settings: &NodeSettings, configs: &[ConfigFile]) -> bool {
    // A standalone config is only for Multus. The config of Multus itself may be in a directory
    // that the agent does not read.
    if matches!(settings.mode, ChainMode::Standalone(_)) {
        return true;
    }
    let loadable = configs.iter().filter(|file| !file.is_renamed());
    let mut types = loadable.flat_map(|file| conflist::plugin_types(file.text()));
    types.any(|name| name == "multus" || name == "multus-shim")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRI_O: &str = "612 590 0:24 /containers/storage/overlay-containers/0a1b/userdata/hostname /etc/hostname rw,nosuid - tmpfs tmpfs rw\n";
    const CONTAINERD: &str = "612 590 8:1 /var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/0a1b/hostname /etc/hostname rw - ext4 /dev/sda1 rw\n";

    #[test]
    fn cri_o_is_recognized_by_the_mounts_of_the_agents_container() {
        let overlay = "590 500 0:60 / / ro - overlay overlay rw,upperdir=/var/lib/containers/storage/overlay/1/diff\n";
        let in_podman = CONTAINERD
            .replace("/var/lib/containerd/", "/containers/storage/overlay-containers/1/userdata/");
        for (mountinfo, expected) in [
            (CRI_O.to_owned(), true),
            (format!("{overlay}{CRI_O}"), true),
            (CRI_O.replace("overlay-containers", "vfs-containers"), true),
            (CONTAINERD.to_owned(), false),
            (in_podman, false),
            (overlay.to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_cri_o(&mountinfo), expected, "{mountinfo}");
        }
    }
}
