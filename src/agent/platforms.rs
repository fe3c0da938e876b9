//! Where runtimes look for networks and plugins, by platform: what to say where our two
//! directories do not look like the node's.
//!
//! A net dir without any network cannot be served, so that is why the agent is not ready.
//! A bin dir without any of the network's plugins is a doubt, with a log line and a metric.
//! Under our chart it keeps us out of the chain: a runtime that does not find a plugin of
//! its network starts no pod and ends none. It is no more than a doubt, as runtimes can be
//! told of several such directories (containerd's `bin_dirs`, CRI-O's `plugin_dirs`), which
//! cannot be seen from here. So the agent only logs it under upstream's chart, where it is
//! told to, and where an earlier agent chained the plugin from this bin dir: the runtime
//! started the new agent's pod through that chain.
//!
//! The agent sees no directory but the two; where its pod is given more of the host, it
//! looks at them.

use std::path::{Path, PathBuf};

use super::settings::Settings;
use crate::conflist::net_dir::{ConfigFile, ConfigKind, Content};
use crate::conflist::{PLUGIN, plugin_types};
use crate::files;

/// A platform of the chart's, with its two directories on the host.
struct Place {
    /// The chart's `platform`.
    name: &'static str,
    bin: &'static str,
    net: &'static str,
}

/// The directories of the chart's platforms where they are not the usual ones.
const PLACES: [Place; 7] = [
    Place {
        name: "none",
        bin: "/opt/cni/bin",
        net: "/etc/cni/net.d",
    },
    Place {
        name: "gke",
        bin: "/home/kubernetes/bin",
        net: "/etc/cni/net.d",
    },
    Place {
        name: "cos",
        bin: "/home/kubernetes/bin",
        net: "/etc/cni/net.d",
    },
    Place {
        name: "k3s",
        bin: "/var/lib/rancher/k3s/data/cni",
        net: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
    },
    Place {
        name: "k3d",
        bin: "/bin",
        net: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
    },
    Place {
        name: "microk8s",
        bin: "/var/snap/microk8s/current/opt/cni/bin",
        net: "/var/snap/microk8s/current/args/cni-network",
    },
    Place {
        name: "openshift",
        bin: "/var/lib/cni/bin",
        net: "/etc/cni/multus/net.d",
    },
];

/// What to do about a net dir without any network.
pub fn no_network(settings: &Settings) -> String {
    let holds = |dir: &Path| {
        let names = files::names(dir).unwrap_or_default();
        names.iter().any(|name| ConfigKind::of(name).is_some())
    };
    remedy(
        &on_host(settings, &settings.net_dir),
        "destCNINetDir",
        |place| place.net,
        |dir| holds(&below(settings, dir)),
    )
}

/// What to do about a bin dir without any plugin of the network `loaded`, if so.
pub fn no_plugins(settings: &Settings, loaded: &ConfigFile) -> Option<String> {
    let named = plugins(loaded.content.as_ref().ok()?);
    // A link counts, wherever it points: k3s links its plugins to a directory that is not
    // mounted here.
    let is_there = |path: PathBuf| path.symlink_metadata().is_ok();
    let holds = |dir: &Path| named.iter().any(|name| is_there(dir.join(name)));
    if named.is_empty() || holds(&settings.bin_dir) {
        return None;
    }
    let here = on_host(settings, &settings.bin_dir);
    let remedy = remedy(
        &here,
        "destCNIBinDir",
        |place| place.bin,
        |dir| holds(&below(settings, dir)),
    );
    Some(format!(
        "{} calls {}, but {} holds no such program: unless the runtime is told of several \
         directories, it will not find {PLUGIN} either; {remedy}",
        loaded.name,
        named.join(", "),
        here.display()
    ))
}

/// The plugins that a network calls, but for ours.
fn plugins(content: &Content) -> Vec<String> {
    let types = plugin_types(&content.text).into_iter();
    let others = types.filter(|kind| kind != PLUGIN);
    // A type is a file name; anything else is the runtime's to refuse.
    others.filter(|kind| !kind.contains('/')).collect()
}

/// Which platform's directory it may be instead of `here`. Where the right one can be
/// seen, that one.
fn remedy(
    here: &Path,
    value: &str,
    dir: impl Fn(&Place) -> &'static str,
    holds: impl Fn(&str) -> bool,
) -> String {
    let mut others: Vec<(&str, Vec<&str>)> = Vec::new();
    for place in PLACES.iter().filter(|place| Path::new(dir(place)) != here) {
        match others.iter_mut().find(|(known, _)| *known == dir(place)) {
            Some((_, names)) => names.push(place.name),
            None => others.push((dir(place), vec![place.name])),
        }
    }
    let seen: Vec<_> = others.iter().filter(|(dir, _)| holds(dir)).collect();
    let list = |places: &[&(&str, Vec<&str>)]| {
        let texts = places
            .iter()
            .map(|(dir, names)| format!("{dir} (platform {})", names.join(", ")));
        texts.collect::<Vec<_>>().join(", ")
    };
    match seen.is_empty() {
        false => format!(
            "{} looks like the right one: set the chart's platform or {value}",
            list(&seen)
        ),
        true => format!(
            "if the runtime looks elsewhere, set the chart's platform or {value}; known are {}",
            list(&others.iter().collect::<Vec<_>>())
        ),
    }
}

/// A directory that the agent sees, as the host has it.
fn on_host(settings: &Settings, dir: &Path) -> PathBuf {
    let below = dir.strip_prefix(&settings.prefix).unwrap_or(dir);
    Path::new("/").join(below)
}

/// A directory of the host, as the agent would see it.
fn below(settings: &Settings, dir: &str) -> PathBuf {
    settings.prefix.join(dir.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::conflist::net_dir;

    const LIST: &str =
        r#"{"name":"n","plugins":[{"type":"calico"},{"type":"portmap"},{"type":"linkerd-cni"}]}"#;

    /// A host with these files, and the usual settings.
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

    fn doubt(paths: &[&str]) -> Option<String> {
        let (_dir, settings) = host(paths);
        let found = net_dir::scan(&settings.net_dir, "k").unwrap();
        no_plugins(&settings, &found[0])
    }

    #[test]
    fn one_plugin_of_the_network_is_enough_for_a_bin_dir_to_be_right() {
        assert_eq!(doubt(&["opt/cni/bin/portmap"]), None);
    }

    #[test]
    fn a_link_counts_as_a_plugin_where_its_target_is_not_mounted() {
        let (dir, settings) = host(&["opt/cni/bin/linkerd-cni"]);
        let target = "/var/lib/rancher/k3s/data/0a1b/bin/cni";
        let link = dir.path().join("opt/cni/bin/calico");
        std::os::unix::fs::symlink(target, link).unwrap();
        let found = net_dir::scan(&settings.net_dir, "k").unwrap();
        assert_eq!(no_plugins(&settings, &found[0]), None);
    }

    #[test]
    fn our_own_plugin_proves_nothing_and_the_candidates_are_named_with_their_platforms() {
        let why = doubt(&["opt/cni/bin/linkerd-cni"]).unwrap();
        for part in [
            "10-a.conflist calls calico, portmap, but /opt/cni/bin holds no such program",
            "/home/kubernetes/bin (platform gke, cos)",
            "/var/lib/rancher/k3s/data/cni (platform k3s)",
            "destCNIBinDir",
        ] {
            assert!(why.contains(part), "{part} in {why}");
        }
        assert!(!why.contains("platform none"), "{why}");
    }

    #[test]
    fn a_directory_that_can_be_seen_to_fit_is_the_one_to_take() {
        let why = doubt(&["home/kubernetes/bin/calico"]).unwrap();
        assert!(
            why.ends_with(
                "/home/kubernetes/bin (platform gke, cos) looks like the right one: set the \
                 chart's platform or destCNIBinDir"
            ),
            "{why}"
        );
        let (_dir, settings) = host(&["var/snap/microk8s/current/args/cni-network/10-c.conflist"]);
        let why = no_network(&settings);
        assert!(why.starts_with("/var/snap/microk8s"), "{why}");
    }

    #[test]
    fn the_table_has_each_platform_of_the_chart_whose_directories_are_unusual() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/linkerd2-cni/platforms");
        let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
        let has = |name: &str, place: &Place| {
            let text = text(name);
            text.contains(&format!("destCNIBinDir: {}\n", place.bin))
                && text.contains(&format!("destCNINetDir: {}\n", place.net))
        };
        for file in fs::read_dir(&dir).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            let name = file.strip_suffix(".yaml").unwrap();
            let place = PLACES.iter().find(|place| place.name == name);
            let place = place.unwrap_or(&PLACES[0]);
            assert!(has(&file, place), "{file}");
        }
    }
}
