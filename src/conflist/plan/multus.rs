//! Network configs of Multus' daemon, which name the primary CNI's conflist.
//!
//! The daemon reads that conflist at each call, so the plugin entry belongs there. The daemon
//! removes its own `.conf` when it stops, and the runtime then loads the primary CNI's conflist. A
//! conflist made from that `.conf` would stay, and no pod could start. So it is removed.

use serde::Deserialize;
use serde_json::Value;

use super::conf_conversion::{conflist_names, without_entry_of};
use crate::conflist::net_dir::{ConfigFile, ConfigKind};

/// Members of a config of Multus, or of a conflist that calls it.
#[derive(Deserialize)]
struct MultusConf {
    #[serde(rename = "type", default)]
    plugin: String,
    /// The delegate: the path of a network config, or the name of a network or an object.
    #[serde(rename = "clusterNetwork", default)]
    cluster_network: String,
    #[serde(default)]
    plugins: Vec<Value>,
}

impl MultusConf {
    /// Returns the file name of the delegate, if the delegate is a path.
    ///
    /// Multus may see the CNI net dir at another path than the runtime, so only the file name
    /// counts.
    fn delegate(&self) -> Option<&str> {
        let (_, name) = self.cluster_network.rsplit_once('/')?;
        match self.plugin.as_str() {
            "multus" | "multus-shim" => Some(name),
            _ => None,
        }
    }
}

fn parse(file: &ConfigFile) -> Option<MultusConf> {
    let text = file.text();
    // Few files name a delegate, and parsing takes memory.
    if !text.contains("clusterNetwork") {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// Returns whether `file` never gets the plugin entry: a `.conf` of Multus' daemon, whose delegate
/// gets it, or a conflist that another agent made from that `.conf`.
pub(super) fn keeps_unchanged(file: &ConfigFile, files: &[&ConfigFile]) -> bool {
    delegate(file, files).is_some() || is_stale_conflist(file, files)
}

/// Returns the conflist among `files` that Multus reads at each call, if `file` is the `.conf` of
/// Multus' daemon and names that conflist by its path.
pub(super) fn delegate<'f>(file: &ConfigFile, files: &[&'f ConfigFile]) -> Option<&'f ConfigFile> {
    if file.kind != ConfigKind::Conf {
        return None;
    }
    let conf = parse(file)?;
    let name = conf.delegate()?;
    let mut conflists = files.iter().filter(|other| other.kind == ConfigKind::Conflist);
    conflists.find(|other| other.name == name).copied()
}

/// Returns whether Multus reads the `.conf` or `.json` `file` at each call, so that it must stay.
pub(super) fn is_delegate_conf(file: &ConfigFile, files: &[&ConfigFile]) -> bool {
    file.kind != ConfigKind::Conflist && files.iter().any(|other| has_delegate(other, &file.name))
}

/// Returns whether `config` is a config of Multus, or a conflist that calls Multus, with the
/// delegate `name`.
fn has_delegate(config: &ConfigFile, name: &str) -> bool {
    let Some(conf) = parse(config) else {
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

/// Returns the conflists that another agent made from a `.conf` of Multus' daemon, to remove them.
pub(super) fn stale_conflists<'f>(files: &[&'f ConfigFile]) -> Vec<&'f ConfigFile> {
    files.iter().filter_map(|conf| conflist_made_from(conf, files)).collect()
}

/// Returns whether another agent made `file` from a `.conf` of Multus' daemon.
pub(super) fn is_stale_conflist(file: &ConfigFile, files: &[&ConfigFile]) -> bool {
    stale_conflists(files).iter().any(|stale| stale.name == file.name)
}

fn conflist_made_from<'f>(conf: &ConfigFile, files: &[&'f ConfigFile]) -> Option<&'f ConfigFile> {
    delegate(conf, files)?;
    let plugin: Value = serde_json::from_str(conf.text()).ok()?;
    let names = conflist_names(&conf.name);
    let mut candidates = files.iter().filter(|other| names.contains(&other.name));
    candidates.find(|other| other_plugins(other) == Some(vec![plugin.clone()])).copied()
}

/// Returns the plugins of a conflist, without the plugin entry. Agents differ in the other members
/// of a conflist that they make.
fn other_plugins(file: &ConfigFile) -> Option<Vec<Value>> {
    let conf: MultusConf = serde_json::from_str(&without_entry_of(file)?).ok()?;
    Some(conf.plugins)
}
