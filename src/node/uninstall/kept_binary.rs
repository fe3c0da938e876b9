//! Decides whether uninstall keeps the plugin binary, because the deletion of existing pods needs
//! it.
//!
//! containerd deletes a pod by the current network config. CRI-O and Multus delete it by the
//! config that they cached when the pod was created. The deletion fails if a plugin of that config
//! is missing, and the pod's IP address is not released. DEL of the plugin needs no kubeconfig.

use std::fs;

use crate::conflist;
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir::ConfigFile;
use crate::node::NodeSettings;

/// The agent's own mounts, which show its container runtime.
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
    if is_multus(settings, configs) {
        return Some("Multus");
    }
    None
}

/// Returns whether CRI-O made the mounts of a container, listed as in `/proc/self/mountinfo`.
///
/// CRI-O mounts `hostname` and `resolv.conf` from `<storage>/<driver>-containers/<id>/userdata/`.
/// containerd mounts them from `<root>/io.containerd.grpc.v1.cri/sandboxes/<id>/`. If the node is
/// itself a Podman container, containerd's paths also contain `-containers/` and `/userdata/`.
fn is_cri_o(mountinfo: &str) -> bool {
    // The fourth field is the path of the mount's root in its file system.
    let mut roots = mountinfo.lines().filter_map(|line| line.split(' ').nth(3));
    roots.any(|root| {
        root.contains("-containers/")
            && root.contains("/userdata/")
            && !root.contains("/io.containerd.")
    })
}

/// Returns whether Multus calls the plugin on this node.
fn is_multus(settings: &NodeSettings, configs: &[ConfigFile]) -> bool {
    let loaded = configs.iter().filter(|file| file.split_name().1.is_empty());
    let mut types = loaded.flat_map(|file| conflist::plugin_types(file.text()));
    // A standalone config is only for Multus, whose own config may be in another directory.
    let is_standalone = matches!(settings.mode, ChainMode::Standalone(_));
    is_standalone || types.any(|name| name == "multus" || name == "multus-shim")
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
