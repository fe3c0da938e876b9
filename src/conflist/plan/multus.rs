//! Network configs of Multus' daemon, which name the primary CNI's conflist.
//!
//! The daemon reads that conflist at each call, so the plugin entry belongs there. The daemon
//! removes its own `.conf` when it stops, and the runtime then loads the primary CNI's conflist. A
//! conflist that is made from the daemon's `.conf` would stay. The runtime would load it and call
//! the daemon that no longer runs, and no pod could start. So the agent makes no such conflist, and
//! removes one that an earlier agent made.

use serde::Deserialize;
use serde_json::Value;

use super::conf_conversion::{conflist_names, text_without_entry};
use crate::conflist::net_dir::{ConfigFile, ConfigKind};

/// Members of a config of Multus, or of a conflist that calls it.
#[derive(Deserialize)]
struct MultusConf {
    #[serde(rename = "type", default)]
    plugin_type: String,
    /// The primary CNI's network config that Multus calls (the delegate): its path, or the name of
    /// the network or of a Kubernetes object.
    #[serde(rename = "clusterNetwork", default)]
    cluster_network: String,
    #[serde(default)]
    plugins: Vec<Value>,
}

impl MultusConf {
    /// Returns the file name of the delegate, if Multus names the delegate by its path. The
    /// directory is left out, because Multus may see the CNI net dir at another path than the
    /// runtime.
    fn delegate(&self) -> Option<&str> {
        let (_, name) = self.cluster_network.rsplit_once('/')?;
        match self.plugin_type.as_str() {
            "multus" | "multus-shim" => Some(name),
            _ => None,
        }
    }
}

fn parse_conf(file: &ConfigFile) -> Option<MultusConf> {
    let text = file.text();
    // Parsing takes memory, and few files name a delegate. So the other files are not parsed.
    if !text.contains("clusterNetwork") {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// Returns whether `file` never gets the plugin entry. A `.conf` of Multus' daemon does not,
/// because the conflist that it names gets the entry. A conflist that an earlier agent made from
/// such a `.conf` does not, because it is removed.
pub(super) fn keeps_unchanged(file: &ConfigFile, files: &[&ConfigFile]) -> bool {
    is_daemon_conf(file, files) || is_stale_conflist(file, files)
}

/// Returns the conflist among `files` that Multus reads at each call, if `file` is the `.conf` of
/// Multus' daemon and names that conflist by its path.
pub(super) fn find_delegate<'f>(
    file: &ConfigFile,
    files: &[&'f ConfigFile],
) -> Option<&'f ConfigFile> {
    if file.kind != ConfigKind::Conf {
        return None;
    }
    let conf = parse_conf(file)?;
    let name = conf.delegate()?;
    let mut conflists = files.iter().filter(|other| other.kind == ConfigKind::Conflist);
    conflists.find(|other| other.name == name).copied()
}

/// Returns whether `file` is a `.conf` of Multus' daemon that names one of `files` by its path.
fn is_daemon_conf(file: &ConfigFile, files: &[&ConfigFile]) -> bool {
    find_delegate(file, files).is_some()
}

/// Returns whether `file` is a `.conf` or `.json` that Multus reads at each call, so that it must
/// not be converted and removed.
pub(super) fn is_delegate_conf(file: &ConfigFile, files: &[&ConfigFile]) -> bool {
    file.kind != ConfigKind::Conflist && files.iter().any(|other| has_delegate(other, &file.name))
}

/// Returns whether `config` is a config of Multus, or a conflist with Multus as a plugin, whose
/// delegate is the file `name`.
fn has_delegate(config: &ConfigFile, name: &str) -> bool {
    let Some(conf) = parse_conf(config) else {
        return false;
    };
    if conf.delegate() == Some(name) {
        return true;
    }
    for plugin in &conf.plugins {
        if let Ok(plugin) = MultusConf::deserialize(plugin)
            && plugin.delegate() == Some(name)
        {
            return true;
        }
    }
    false
}

/// Returns the conflists that an earlier agent, such as upstream's, made from a `.conf` of Multus'
/// daemon. They are to be removed.
pub(super) fn find_stale_conflists<'f>(files: &[&'f ConfigFile]) -> Vec<&'f ConfigFile> {
    files.iter().filter_map(|conf| find_conflist_made_from(conf, files)).collect()
}

/// Returns whether `file` is one of the conflists that [`find_stale_conflists`] returns.
pub(super) fn is_stale_conflist(file: &ConfigFile, files: &[&ConfigFile]) -> bool {
    find_stale_conflists(files).iter().any(|stale| stale.name == file.name)
}

/// Returns the conflist among `files` that an agent made from `conf`, if `conf` is a `.conf` of
/// Multus' daemon. The conflist is recognized by its only plugin besides the plugin entry, because
/// agents differ in the other members of a conflist that they make.
fn find_conflist_made_from<'f>(
    conf: &ConfigFile,
    files: &[&'f ConfigFile],
) -> Option<&'f ConfigFile> {
    if !is_daemon_conf(conf, files) {
        return None;
    }
    let plugin: Value = serde_json::from_str(conf.text()).ok()?;
    let names = conflist_names(&conf.name);
    let mut candidates = files.iter().filter(|other| names.contains(&other.name));
    candidates.find(|other| other_plugins(other) == Some(vec![plugin.clone()])).copied()
}

/// Returns the plugins of a conflist, without the plugin entry.
fn other_plugins(file: &ConfigFile) -> Option<Vec<Value>> {
    let conf: MultusConf = serde_json::from_str(&text_without_entry(file)?).ok()?;
    Some(conf.plugins)
}
