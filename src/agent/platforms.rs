//! Names the right net dir and bin dir by platform, if the configured ones look wrong.
//!
//! Without a network config in the net dir the agent is not ready.
//!
//! A bin dir without any plugin of the primary CNI is probably the wrong one. If a runtime
//! does not find a plugin of its network config, it can neither start nor stop pods. The agent
//! cannot be certain, because runtimes can use several bin dirs (containerd's `bin_dirs`,
//! CRI-O's `plugin_dirs`), and their configuration is not visible to the agent. So:
//! - The agent always logs a warning and sets a metric.
//! - With `LINKERD_CNI_REQUIRE_NETWORK_PLUGINS`, which this project's chart sets by default, it
//!   also does not chain the plugin.
//! - It chains all the same if an earlier agent chained the plugin from this bin dir: the
//!   runtime started this agent's pod through that chain.

use std::path::{Path, PathBuf};

use super::settings::Settings;
use crate::conflist::net_dir::{ConfigFile, Content};
use crate::conflist::{PLUGIN, plugin_types};

/// A directory on the host, and the values of the chart's `platform` with this directory.
type PlatformDir = (&'static str, &'static str);

/// CNI bin dirs. All platforms that are not named have the default.
const BIN_DIRS: [PlatformDir; 6] = [
    ("/opt/cni/bin", "the default, without platform"),
    ("/home/kubernetes/bin", "platform gke, cos"),
    ("/var/lib/rancher/k3s/data/cni", "platform k3s"),
    ("/bin", "platform k3d"),
    ("/var/snap/microk8s/current/opt/cni/bin", "platform microk8s"),
    ("/var/lib/cni/bin", "platform openshift"),
];

/// CNI net dirs. All platforms that are not named have the default.
const NET_DIRS: [PlatformDir; 4] = [
    ("/etc/cni/net.d", "the default, without platform; platform gke, cos"),
    ("/var/lib/rancher/k3s/agent/etc/cni/net.d", "platform k3s, k3d"),
    ("/var/snap/microk8s/current/args/cni-network", "platform microk8s"),
    ("/etc/cni/multus/net.d", "platform openshift"),
];

/// Returns the remedy for a net dir without any network config.
pub fn no_network(settings: &Settings) -> String {
    remedy(&on_host(settings, &settings.node.net_dir), "destCNINetDir", &NET_DIRS)
}

/// Returns a warning with the remedy if the bin dir holds none of the plugins that the active
/// conflist `active` names. The agent's own plugin does not count.
pub fn no_plugins(settings: &Settings, active: &ConfigFile) -> Option<String> {
    let plugins = other_plugins(active.content.as_ref().ok()?);
    // A symbolic link counts even if its target is missing here: on k3s the plugins are links
    // into a directory that is not mounted in the agent's container.
    let exists = |name: &String| settings.node.bin_dir.join(name).symlink_metadata().is_ok();
    if plugins.is_empty() || plugins.iter().any(exists) {
        return None;
    }
    let here = on_host(settings, &settings.node.bin_dir);
    Some(format!(
        "{} names the plugins {}, but {} contains none of them: unless the runtime is configured \
         with several directories, it cannot find {PLUGIN} either; {}",
        active.name,
        plugins.join(", "),
        here.display(),
        remedy(&here, "destCNIBinDir", &BIN_DIRS)
    ))
}

/// Returns the plugins that a network config names, without this project's plugin.
fn other_plugins(content: &Content) -> Vec<String> {
    let types = plugin_types(&content.text).into_iter();
    let others = types.filter(|kind| kind != PLUGIN);
    // A plugin type is a file name. The runtime rejects a type with a slash.
    others.filter(|kind| !kind.contains('/')).collect()
}

/// Suggests the directories of other platforms instead of `here`. `value` is the chart value that
/// sets the directory.
fn remedy(here: &Path, value: &str, dirs: &[PlatformDir]) -> String {
    let others = dirs.iter().filter(|(dir, _)| Path::new(dir) != here);
    let others: Vec<_> = others.map(|(dir, platforms)| format!("{dir} ({platforms})")).collect();
    format!(
        "if the runtime uses another directory, set the chart's platform or {value}; directories of \
         other platforms: {}",
        others.join(", ")
    )
}

/// Returns the path on the host of a directory in the agent's container.
fn on_host(settings: &Settings, dir: &Path) -> PathBuf {
    let below = dir.strip_prefix(&settings.node.mount_prefix).unwrap_or(dir);
    Path::new("/").join(below)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_default_directories_are_suggested_without_a_platform() {
        let elsewhere = Path::new("/elsewhere");
        let bin = remedy(elsewhere, "destCNIBinDir", &BIN_DIRS);
        assert!(bin.contains("/opt/cni/bin (the default, without platform), "), "{bin}");
        let net = remedy(elsewhere, "destCNINetDir", &NET_DIRS);
        let default = "/etc/cni/net.d (the default, without platform; platform gke, cos), ";
        assert!(net.contains(default), "{net}");
        let at_default = remedy(Path::new("/opt/cni/bin"), "destCNIBinDir", &BIN_DIRS);
        assert!(!at_default.contains("the default"), "{at_default}");
    }

    #[test]
    fn the_tables_match_the_platforms_of_the_chart() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/linkerd2-cni/platforms");
        for file in fs::read_dir(&dir).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let text = fs::read_to_string(&path).unwrap();
            for (value, dirs) in [("destCNIBinDir", &BIN_DIRS[..]), ("destCNINetDir", &NET_DIRS)] {
                let is_named = |(_, platforms): &&PlatformDir| {
                    platforms.split([';', ' ', ',']).any(|word| word == name)
                };
                let (expected, _) = dirs.iter().find(is_named).unwrap_or(&dirs[0]);
                assert!(text.contains(&format!("{value}: {expected}\n")), "{name}: {expected}");
            }
        }
    }
}
