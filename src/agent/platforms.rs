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
//!
//! Usually only these two directories of the host are mounted. If more of the host is mounted,
//! the agent checks the directories of the other platforms too.

use std::path::{Path, PathBuf};

use super::settings::Settings;
use crate::conflist::net_dir::{ConfigFile, ConfigKind, Content};
use crate::conflist::{PLUGIN, plugin_types};
use crate::files;

/// A platform that the chart knows, with its directories on the host.
struct Platform {
    /// Value of the chart's `platform`.
    name: &'static str,
    bin: &'static str,
    net: &'static str,
}

/// Stands for the chart's default directories in [`PLATFORMS`]. The chart has no platform of this
/// name.
const DEFAULT: &str = "";

/// The chart's platforms. All platforms without an entry have the default directories, which the
/// first entry has.
const PLATFORMS: [Platform; 7] = [
    Platform { name: DEFAULT, bin: "/opt/cni/bin", net: "/etc/cni/net.d" },
    Platform { name: "gke", bin: "/home/kubernetes/bin", net: "/etc/cni/net.d" },
    Platform { name: "cos", bin: "/home/kubernetes/bin", net: "/etc/cni/net.d" },
    Platform {
        name: "k3s",
        bin: "/var/lib/rancher/k3s/data/cni",
        net: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
    },
    Platform { name: "k3d", bin: "/bin", net: "/var/lib/rancher/k3s/agent/etc/cni/net.d" },
    Platform {
        name: "microk8s",
        bin: "/var/snap/microk8s/current/opt/cni/bin",
        net: "/var/snap/microk8s/current/args/cni-network",
    },
    Platform { name: "openshift", bin: "/var/lib/cni/bin", net: "/etc/cni/multus/net.d" },
];

/// Returns the remedy for a net dir without any network config.
pub fn no_network(settings: &Settings) -> String {
    let holds = |dir: &Path| {
        let names = files::file_names(dir).unwrap_or_default();
        names.iter().any(|name| ConfigKind::of(name).is_some())
    };
    remedy(
        &on_host(settings, &settings.node.net_dir),
        "destCNINetDir",
        |platform| platform.net,
        |dir| holds(&in_container(settings, dir)),
    )
}

/// Returns a warning with the remedy if the bin dir holds none of the plugins that the active
/// conflist `active` names. The agent's own plugin does not count.
pub fn no_plugins(settings: &Settings, active: &ConfigFile) -> Option<String> {
    let plugins = other_plugins(active.content.as_ref().ok()?);
    // A symbolic link counts even if its target is missing here: on k3s the plugins are links
    // into a directory that is not mounted in the agent's container.
    let exists = |path: PathBuf| path.symlink_metadata().is_ok();
    let holds = |dir: &Path| plugins.iter().any(|name| exists(dir.join(name)));
    if plugins.is_empty() || holds(&settings.node.bin_dir) {
        return None;
    }
    let here = on_host(settings, &settings.node.bin_dir);
    let remedy = remedy(
        &here,
        "destCNIBinDir",
        |platform| platform.bin,
        |dir| holds(&in_container(settings, dir)),
    );
    Some(format!(
        "{} names the plugins {}, but {} contains none of them: unless the runtime is configured \
         with several directories, it cannot find {PLUGIN} either; {remedy}",
        active.name,
        plugins.join(", "),
        here.display()
    ))
}

/// Returns the plugins that a network config names, without this project's plugin.
fn other_plugins(content: &Content) -> Vec<String> {
    let types = plugin_types(&content.text).into_iter();
    let others = types.filter(|kind| kind != PLUGIN);
    // A plugin type is a file name. The runtime rejects a type with a slash.
    others.filter(|kind| !kind.contains('/')).collect()
}

/// Suggests the directories of other platforms instead of `here`: those for which `holds` is
/// true, or all of them if there is none. `value` is the chart value that sets the directory.
fn remedy(
    here: &Path,
    value: &str,
    dir: impl Fn(&Platform) -> &'static str,
    holds: impl Fn(&str) -> bool,
) -> String {
    let mut candidates: Vec<(&str, Vec<&str>)> = Vec::new();
    for platform in PLATFORMS.iter().filter(|platform| Path::new(dir(platform)) != here) {
        match candidates.iter_mut().find(|(known, _)| *known == dir(platform)) {
            Some((_, names)) => names.push(platform.name),
            None => candidates.push((dir(platform), vec![platform.name])),
        }
    }
    let fitting: Vec<_> = candidates.iter().filter(|(dir, _)| holds(dir)).collect();
    let list = |candidates: &[&(&str, Vec<&str>)]| {
        let texts = candidates.iter().map(|(dir, names)| format!("{dir} ({})", platforms(names)));
        texts.collect::<Vec<_>>().join(", ")
    };
    match fitting.is_empty() {
        false => format!(
            "{0} {1}: {3}, or set {value} to {2}",
            list(&fitting),
            if fitting.len() == 1 { "holds matching files" } else { "hold matching files" },
            if fitting.len() == 1 { "this directory" } else { "one of these directories" },
            match fitting.as_slice() {
                [(_, names)] if names.as_slice() == [DEFAULT] => "remove the chart's platform",
                _ => "set the chart's platform",
            },
        ),
        true => format!(
            "if the runtime uses another directory, set the chart's platform or {value}; \
             directories of other platforms: {}",
            list(&candidates.iter().collect::<Vec<_>>())
        ),
    }
}

/// Names the platforms that have a directory.
fn platforms(names: &[&str]) -> String {
    let others: Vec<_> = names.iter().copied().filter(|name| *name != DEFAULT).collect();
    match (others.len() < names.len(), others.is_empty()) {
        (true, true) => "the default, without platform".to_owned(),
        (true, false) => format!("the default, without platform; platform {}", others.join(", ")),
        (false, _) => format!("platform {}", others.join(", ")),
    }
}

/// Returns the path on the host of a directory in the agent's container.
fn on_host(settings: &Settings, dir: &Path) -> PathBuf {
    let below = dir.strip_prefix(&settings.node.mount_prefix).unwrap_or(dir);
    Path::new("/").join(below)
}

/// Returns the path in the agent's container of a directory on the host, mounted or not.
fn in_container(settings: &Settings, dir: &str) -> PathBuf {
    settings.node.mount_prefix.join(dir.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::conflist::net_dir;

    const LIST: &str =
        r#"{"name":"n","plugins":[{"type":"calico"},{"type":"portmap"},{"type":"linkerd-cni"}]}"#;

    /// Creates a host with `paths`, and settings with the default directories.
    fn host(paths: &[&str]) -> (tempfile::TempDir, Settings) {
        let dir = tempfile::tempdir().unwrap();
        for path in [&["etc/cni/net.d/10-a.conflist"], paths].concat() {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, LIST).unwrap();
        }
        let prefix = dir.path().to_str().unwrap().to_owned();
        let lookup = |name: &str| (name == "CONTAINER_MOUNT_PREFIX").then(|| prefix.clone());
        let settings = Settings::read(lookup, None, None).unwrap();
        (dir, settings)
    }

    fn warning(paths: &[&str]) -> Option<String> {
        let (_dir, settings) = host(paths);
        let found = net_dir::scan(&settings.node.net_dir, "k").unwrap();
        no_plugins(&settings, &found[0])
    }

    #[test]
    fn one_plugin_of_the_primary_cni_is_enough_for_the_bin_dir() {
        assert_eq!(warning(&["opt/cni/bin/portmap"]), None);
    }

    #[test]
    fn a_link_counts_as_a_plugin_even_if_its_target_is_not_mounted() {
        let (dir, settings) = host(&["opt/cni/bin/linkerd-cni"]);
        let target = "/var/lib/rancher/k3s/data/0a1b/bin/cni";
        let link = dir.path().join("opt/cni/bin/calico");
        std::os::unix::fs::symlink(target, link).unwrap();
        let found = net_dir::scan(&settings.node.net_dir, "k").unwrap();
        assert_eq!(no_plugins(&settings, &found[0]), None);
    }

    #[test]
    fn without_plugins_of_the_primary_cni_all_platforms_are_suggested() {
        let why = warning(&["opt/cni/bin/linkerd-cni"]).unwrap();
        for part in [
            "10-a.conflist names the plugins calico, portmap, but /opt/cni/bin contains none of them",
            "/home/kubernetes/bin (platform gke, cos)",
            "/var/lib/rancher/k3s/data/cni (platform k3s)",
            "destCNIBinDir",
        ] {
            assert!(why.contains(part), "{part} in {why}");
        }
        assert!(!why.contains("the default"), "{why}");
    }

    #[test]
    fn the_default_directories_are_suggested_without_a_platform() {
        let all = |value, dir: fn(&Platform) -> &'static str| {
            remedy(Path::new("/elsewhere"), value, dir, |_| false)
        };
        let bin = all("destCNIBinDir", |platform| platform.bin);
        assert!(bin.contains("/opt/cni/bin (the default, without platform), "), "{bin}");
        let net = all("destCNINetDir", |platform| platform.net);
        let default = "/etc/cni/net.d (the default, without platform; platform gke, cos), ";
        assert!(net.contains(default), "{net}");
    }

    #[test]
    fn a_directory_that_fits_is_the_only_suggestion() {
        let why = warning(&["home/kubernetes/bin/calico"]).unwrap();
        assert!(
            why.ends_with(
                "/home/kubernetes/bin (platform gke, cos) holds matching files: set the chart's \
                 platform, or set destCNIBinDir to this directory"
            ),
            "{why}"
        );
        let (_dir, settings) = host(&["var/snap/microk8s/current/args/cni-network/10-c.conflist"]);
        let why = no_network(&settings);
        assert!(why.starts_with("/var/snap/microk8s"), "{why}");
    }

    #[test]
    fn the_table_matches_the_platforms_of_the_chart() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/linkerd2-cni/platforms");
        let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
        let has = |name: &str, platform: &Platform| {
            let text = text(name);
            text.contains(&format!("destCNIBinDir: {}\n", platform.bin))
                && text.contains(&format!("destCNINetDir: {}\n", platform.net))
        };
        for file in fs::read_dir(&dir).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            let name = file.strip_suffix(".yaml").unwrap();
            let platform = PLATFORMS.iter().find(|platform| platform.name == name);
            let platform = platform.unwrap_or(&PLATFORMS[0]);
            assert!(has(&file, platform), "{file}");
        }
    }
}
