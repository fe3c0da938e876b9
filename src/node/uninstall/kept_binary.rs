//! Decides whether uninstall keeps the plugin binary, because the deletion of existing pods needs it.
//!
//! containerd deletes a pod by the current network config. CRI-O and Multus delete it by the
//! config that they cached when the pod was created. The deletion fails if a plugin of that config
//! is missing, and the pod's IP address is not released. DEL of the plugin needs no kubeconfig.
//!
//! The agent's container does not mount the cache. Only if it is visible, as in a debug container
//! with the host's whole file system, it decides whether a pod still needs the binary.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::conflist::net_dir::ConfigFile;
use crate::conflist::{self, PLUGIN};
use crate::files;
use crate::node::settings::NodeSettings;

/// Directories of cached network configs on the host, of libcni and of Multus.
const CACHE_DIRS: [&str; 3] =
    ["var/lib/cni/results", "var/lib/cni/multus", "var/lib/cni/multus/results"];
/// The agent's own mounts, which show its container runtime.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Returns which program needs the plugin binary to delete existing pods, on a node with these network
/// `configs`. `None` if uninstall can remove the binary.
pub fn needed_by(settings: &NodeSettings, configs: &[ConfigFile]) -> Option<&'static str> {
    if let Some(keep) = settings.keep_binary {
        return keep.then_some("LINKERD_CNI_KEEP_BINARY=true");
    }
    let program = match is_cri_o(&fs::read_to_string(MOUNTINFO).unwrap_or_default()) {
        true => "CRI-O",
        false if is_multus(settings, configs) => "Multus",
        false => return None,
    };
    is_cached(&settings.mount_prefix).unwrap_or(true).then_some(program)
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
    let texts = loaded.filter_map(|file| Some(&file.content.as_ref().ok()?.text));
    let mut types = texts.flat_map(|text| conflist::plugin_types(text));
    // A standalone config is only for Multus, whose own config may be in another directory.
    !settings.chained || types.any(|name| name == "multus" || name == "multus-shim")
}

/// Returns whether a cached network config names the plugin; `None` if no cache is visible below
/// `prefix`, where the host's file system is mounted.
fn is_cached(prefix: &Path) -> Option<bool> {
    let listed = CACHE_DIRS.map(|dir| (prefix.join(dir), files::file_names(&prefix.join(dir))));
    if listed.iter().all(|(_, names)| names.as_ref().is_err_and(files::Error::is_missing)) {
        return None;
    }
    Some(listed.into_iter().any(|(dir, names)| match names {
        Ok(names) => names.iter().any(|name| may_name_plugin(&dir.join(name))),
        Err(error) => !error.is_no_file(),
    }))
}

/// A network config that libcni cached, as base64.
#[derive(Deserialize)]
struct CachedConfig {
    #[serde(default)]
    config: String,
}

/// Returns whether the cached network config in the file `path` may name the plugin.
fn may_name_plugin(path: &Path) -> bool {
    let bytes = match files::read(path) {
        Ok((bytes, _)) => bytes,
        Err(error) => return !error.is_no_file(),
    };
    let cached = serde_json::from_slice::<CachedConfig>(&bytes);
    let config = cached.ok().and_then(|cached| STANDARD.decode(cached.config).ok());
    [Some(bytes), config].into_iter().flatten().any(|text| names_plugin(&text))
}

fn names_plugin(text: &[u8]) -> bool {
    text.windows(PLUGIN.len()).any(|part| part == PLUGIN.as_bytes())
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

    #[test]
    fn the_cache_names_the_plugin_in_the_config_of_libcni_and_in_the_delegates_of_multus() {
        let chain = r#"{"name":"n","plugins":[{"type":"a"},{"type":"linkerd-cni"}]}"#;
        let cached = |config: &str| {
            format!(
                r#"{{"kind":"cniCacheV1","config":"{}","ifName":"eth0"}}"#,
                STANDARD.encode(config)
            )
        };
        for (dir, text, expected) in [
            ("results", cached(chain), true),
            ("results", cached(r#"{"name":"n","plugins":[{"type":"a"}]}"#), false),
            ("results", "{".into(), false),
            ("multus", format!(r#"[{{"ConfList":{chain}}}]"#), true),
            ("multus", "[]".into(), false),
            ("multus/results", cached(chain), true),
        ] {
            let host = tempfile::tempdir().unwrap();
            assert_eq!(is_cached(host.path()), None);
            let dir = host.path().join("var/lib/cni").join(dir);
            fs::create_dir_all(&dir).unwrap();
            assert_eq!(is_cached(host.path()), Some(false));
            fs::write(dir.join("n-pod-eth0"), &text).unwrap();
            assert_eq!(is_cached(host.path()), Some(expected), "{text}");
        }
    }
}
