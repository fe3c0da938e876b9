//! The network config that the runtime loads, and whether the plugin is installed there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

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
    let plugins = serde_json::from_str(&text).map(|config| plugins_of(root, &config));
    let plugins = plugins.unwrap_or_default();
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

/// Whether a kubeconfig has a token. Upstream's is YAML, with the current context in its last line.
fn is_kubeconfig(text: &str) -> bool {
    text.trim_end().ends_with("current-context: linkerd-cni-context")
        || super::agent::token_in(text).is_some_and(|token| !token.is_empty())
}

pub fn is_program(root: &str, name: &str) -> bool {
    let file = fs::metadata(format!("{root}{BIN_DIR}/{name}"));
    file.is_ok_and(|file| file.len() > 0 && file.permissions().mode() & 0o111 != 0)
}

/// The plugins that the runtime calls, in this order; none without a valid network config. Instead of Multus, those of
/// its delegate, of which its config has a copy or the path.
pub fn plugins() -> Vec<Value> {
    let config = path("").and_then(|path| fs::read_to_string(path).ok());
    let config = config.and_then(|text| serde_json::from_str(&text).ok());
    config.map_or_else(Vec::new, |config| plugins_of("", &config))
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
