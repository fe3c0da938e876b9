//! The network config that the runtime loads, and the plugins that it calls for a pod's primary network.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

const NET_DIR: &str = "/etc/cni/net.d";

/// The plugins that the runtime calls, in this order; empty if there is no valid network config. Multus stands for the
/// plugins of its delegate, which it calls in its place: its config has a copy of the primary CNI's conflist, or the
/// path of that conflist.
pub fn plugins() -> Vec<Value> {
    plugins_of_node("")
}

/// The same for the node whose file system is at the path `root`.
pub fn plugins_of_node(root: &str) -> Vec<Value> {
    let config = path(root).and_then(|path| fs::read_to_string(path).ok());
    let config = config.and_then(|text| serde_json::from_str(&text).ok());
    config.map_or_else(Vec::new, |config| plugins_of(root, &config))
}

/// The first network config by name, which the runtime loads.
pub fn path(root: &str) -> Option<PathBuf> {
    let names = fs::read_dir(format!("{root}{NET_DIR}")).ok()?.flatten();
    let names = names.map(|entry| entry.path());
    let is_config = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("conf" | "conflist" | "json"))
    };
    names.filter(is_config).min()
}

fn plugins_of(root: &str, config: &Value) -> Vec<Value> {
    let plugins = match config["plugins"].as_array() {
        Some(plugins) => plugins.clone(),
        None => vec![config.clone()],
    };
    plugins.into_iter().flat_map(|plugin| with_delegate(root, plugin)).collect()
}

/// The plugin, or the plugins that it calls if it is Multus.
fn with_delegate(root: &str, plugin: Value) -> Vec<Value> {
    match plugin["type"].as_str() {
        Some("multus" | "multus-shim") => match plugin["clusterNetwork"].as_str() {
            Some(path) => {
                let text = fs::read_to_string(format!("{root}{path}")).unwrap_or_default();
                serde_json::from_str(&text)
                    .map_or_else(|_| Vec::new(), |list| plugins_of(root, &list))
            }
            None => plugins_of(root, &plugin["delegates"][0]),
        },
        _ => vec![plugin],
    }
}
