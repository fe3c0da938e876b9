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
    /// Multus may see the CNI net dir at another path than the runtime, so only the file name counts.
    fn delegate(&self) -> Option<&str> {
        let (_, name) = self.cluster_network.rsplit_once('/')?;
        matches!(self.plugin.as_str(), "multus" | "multus-shim").then_some(name)
    }
}

fn parse(file: &ConfigFile) -> Option<MultusConf> {
    let text = file.text();
    text.contains("clusterNetwork").then(|| serde_json::from_str(text).ok())?
}

/// Returns the conflist among `files` that Multus reads at each call, if `file` is the `.conf` of
/// Multus' daemon and names that conflist by its path.
pub(super) fn delegate<'f>(file: &ConfigFile, files: &[&'f ConfigFile]) -> Option<&'f ConfigFile> {
    if file.kind != ConfigKind::Conf {
        return None;
    }
    let conf = parse(file)?;
    let name = conf.delegate()?;
    let is_delegate =
        |other: &&&ConfigFile| other.name == name && other.kind == ConfigKind::Conflist;
    files.iter().find(is_delegate).copied()
}

/// Whether Multus reads the `.conf` or `.json` `file` at each call, so that it must stay.
pub(super) fn is_delegate_conf(file: &ConfigFile, files: &[&ConfigFile]) -> bool {
    let names = |other: &&ConfigFile| {
        let Some(conf) = parse(other) else {
            return false;
        };
        let plugins = conf.plugins.iter().filter_map(|plugin| MultusConf::deserialize(plugin).ok());
        let is_file = |conf: &MultusConf| conf.delegate() == Some(&file.name);
        is_file(&conf) || plugins.into_iter().any(|plugin| is_file(&plugin))
    };
    file.kind != ConfigKind::Conflist && files.iter().any(names)
}

/// Returns the conflists that another agent made from a `.conf` of Multus' daemon, to remove them.
pub(super) fn made<'f>(files: &[&'f ConfigFile]) -> impl Iterator<Item = &'f ConfigFile> {
    files.iter().filter_map(|conf| made_from(conf, files))
}

fn made_from<'f>(file: &ConfigFile, files: &[&'f ConfigFile]) -> Option<&'f ConfigFile> {
    delegate(file, files)?;
    let conf: Value = serde_json::from_str(file.text()).ok()?;
    let names = conflist_names(&file.name);
    let is_made = |other: &&&ConfigFile| {
        names.contains(&other.name) && other_plugins(other) == Some(vec![conf.clone()])
    };
    files.iter().find(is_made).copied()
}

/// Returns only the plugins: agents differ in the other members of a conflist that they make.
fn other_plugins(file: &ConfigFile) -> Option<Vec<Value>> {
    let conf: MultusConf = serde_json::from_str(&without_entry_of(file)?).ok()?;
    Some(conf.plugins)
}
