//! The network config that the runtime loads, and whether the plugin is installed in it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub const NET_DIR: &str = "/etc/cni/net.d";
pub const BIN_DIR: &str = "/opt/cni/bin";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The active conflist has the plugin entry; kubeconfig and binary are whole.
    Installed,
    NoConflist,
    BrokenConflist(String),
    Unchained,
    NoKubeconfig,
    /// The active conflist has the plugin entry, and another file is missing or damaged.
    Damaged(String),
}

pub fn state(root: &str) -> State {
    let Some(text) = path(root).and_then(|path| fs::read_to_string(path).ok()) else {
        return State::NoConflist;
    };
    let plugins = match serde_json::from_str(&text) {
        Ok(config) => called_plugins(root, &config),
        Err(_) => Vec::new(),
    };
    if plugins.is_empty() {
        return State::BrokenConflist(format!("no JSON or no plugins: {} bytes", text.len()));
    }
    let Some(entry) = plugins.iter().find(|plugin| plugin["type"] == "linkerd-cni") else {
        return State::Unchained;
    };
    let kubeconfig = entry["kubernetes"]["kubeconfig"].as_str().unwrap_or_default();
    match fs::read_to_string(format!("{root}{kubeconfig}")) {
        Err(_) => State::NoKubeconfig,
        Ok(text) if !is_kubeconfig(&text) => {
            State::Damaged(format!("the kubeconfig has {} bytes and no token", text.len()))
        }
        Ok(_) if is_program(root, "linkerd-cni") => State::Installed,
        Ok(_) => State::Damaged("the plugin binary is missing or damaged".to_owned()),
    }
}

/// Whether a kubeconfig has a token. Upstream's kubeconfig is YAML, with the current context in its
/// last line.
fn is_kubeconfig(text: &str) -> bool {
    text.trim_end().ends_with("current-context: linkerd-cni-context")
        || super::agent::token_in(text).is_some_and(|token| !token.is_empty())
}

pub fn is_program(root: &str, name: &str) -> bool {
    let file = fs::metadata(format!("{root}{BIN_DIR}/{name}"));
    file.is_ok_and(|file| file.len() > 0 && file.permissions().mode() & 0o111 != 0)
}

/// Returns the plugins that are called for a pod, in this order. Empty without a valid network
/// config. Instead of Multus, the list has the plugins of its delegate. The config of Multus
/// contains either the delegate's config or the path of the delegate's file.
pub fn plugins() -> Vec<Value> {
    match path("") {
        Some(path) => plugins_in_file("", path),
        None => Vec::new(),
    }
}

/// Returns the path of the network config that the runtime loads: the first one by name.
pub fn path(root: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(format!("{root}{NET_DIR}")).ok()?.flatten();
    entries.map(|entry| entry.path()).filter(|path| is_config(path)).min()
}

fn is_config(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("conf" | "conflist" | "json"))
}

/// Returns the plugins of a network config in a file; none if the file is no such config.
fn plugins_in_file(root: &str, path: impl AsRef<Path>) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    match serde_json::from_str(&text) {
        Ok(config) => called_plugins(root, &config),
        Err(_) => Vec::new(),
    }
}

fn called_plugins(root: &str, config: &Value) -> Vec<Value> {
    let plugins = match config["plugins"].as_array() {
        Some(plugins) => plugins.clone(),
        None => vec![config.clone()],
    };
    plugins.into_iter().flat_map(|plugin| expand_multus(root, plugin)).collect()
}

/// Returns the plugins that Multus calls. Returns any other plugin unchanged.
fn expand_multus(root: &str, plugin: Value) -> Vec<Value> {
    if plugin["type"] != "multus" && plugin["type"] != "multus-shim" {
        return vec![plugin];
    }
    match plugin["clusterNetwork"].as_str() {
        Some(path) => plugins_in_file(root, format!("{root}{path}")),
        None => called_plugins(root, &plugin["delegates"][0]),
    }
}
